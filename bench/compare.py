"""One run of the bench: starts both sides, has them take turns at every work, and gathers what came out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.llama_setting import LlamaSetting
from bench.llama_side import LlamaFailedError, LlamaSide
from bench.peers import FILE, KINDS, TOTAL_THREADS, Peer, peers_at, peers_of_single_stage
from bench.quiet import quiet_gate
from bench.record import Record
from bench.results import TOKENS_PER_S, row_of
from bench.rpc_servers import RpcServerError, rpc_servers
from bench.stagewire_side import StagewireSide
from bench.tuning import Tuning
from bench.turns import OURS, Rules, Turns, take_turns
from bench.works import SINGLE_STAGE_WORKS, Work, prefill
from stagewire.cluster.local import LocalCluster
from stagewire.cluster.spec import StageLimits
from stagewire.model.catalogue import resolve
from stagewire.wire.cache_folder import cache_folder

Progress = Callable[[str], None]
_QUIET_RATIO = 1.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure. `split` and `precision` None are Stagewire's own defaults."""

    model: str
    works: tuple[Work, ...]
    rules: Rules
    tune: bool
    patience_s: float
    split: str | None = None
    precision: str | None = None


class SideBySide:
    """Measures a `Plan` into a record, row by row."""

    def __init__(self, plan: Plan, record: Record, progress: Progress) -> None:
        self.record = record
        self._plan, self._progress = plan, progress
        self.files: dict[str, str] = {}
        self._quiet = quiet_gate(plan.rules.max_busy_share, plan.patience_s, progress)
        self._llama = LlamaSide(TOTAL_THREADS)  # for all but the turns themselves
        self._tuning = Tuning(self._llama.tokens_per_s, progress, thorough=plan.tune)

    def prepare(self) -> None:
        """Makes the peers' model files, and looks how quiet the machine is.

        Raises:
            LlamaFailedError: llama.cpp does not run.
        """
        source = resolve(self._plan.model, self._progress)
        with self._llama as llama:
            self.record.versions["llama.cpp"] = llama.system_info()
            for kind in KINDS:
                self._progress(f"model file of kind {kind}")
                path = source if kind == FILE else llama.quantized(source, kind, cache_folder() / "bench")
                self.files[kind] = str(path)
            self._check_quiet()

    def cluster(self, stages: int, threads: int, cache_tokens: int | None = None) -> LocalCluster:
        split = self._plan.split if stages > 1 else None
        return LocalCluster(
            self._plan.model,
            stages=stages if split is None else None,
            split=split,
            threads=threads,
            precision=self._plan.precision,
            limits=StageLimits(cache_tokens=cache_tokens),
            progress=self._progress,
        )

    def two_stages(self, side: StagewireSide) -> None:
        """All works, against all peers."""
        self.record.measured.cluster = _describe(side.cluster)
        side.tokens_per_s(prefill(256))  # warms up
        with contextlib.ExitStack() as stack:
            servers = self._rpc_servers(stack)
            for work in self._plan.works:
                peers = peers_at(work, with_rpc=bool(servers))
                self.record.step(work.name, partial(self._compare, work.name, work, side, peers, servers))

    def one_stage(self) -> None:
        """A single stage with all threads."""
        with self.cluster(1, TOTAL_THREADS) as cluster, StagewireSide(cluster, seed=2) as side:
            side.tokens_per_s(prefill(256))
            for work in SINGLE_STAGE_WORKS:
                name = f"{work.name}_single_stage"
                self.record.step(name, partial(self._compare, name, work, side, peers_of_single_stage(), ()))

    def _compare(
        self, name: str, work: Work, side: StagewireSide, peers: Sequence[Peer], servers: tuple[str, ...]
    ) -> None:
        settings = self._settings(work, peers, servers)
        with contextlib.ExitStack() as stack:
            # A process for each peer: every one keeps its context from turn to turn.
            sides = {peer: stack.enter_context(LlamaSide(TOTAL_THREADS)) for peer in settings}
            theirs = {peer: partial(sides[peer].tokens_per_s, setting, work) for peer, setting in settings.items()}
            words = {peer: str(setting) for peer, setting in settings.items()}
            self._take_turns(name, TOKENS_PER_S, lambda: side.tokens_per_s(work), theirs, words)

    def take_turns(
        self, name: str, unit: str, ours: Callable[[], float], theirs: Mapping[str, Callable[[], float]]
    ) -> None:
        """A step that adds a row for each of the others."""
        self.record.step(name, partial(self._take_turns, name, unit, ours, theirs, {}))

    def _take_turns(
        self,
        name: str,
        unit: str,
        ours: Callable[[], float],
        theirs: Mapping[str, Callable[[], float]],
        settings: Mapping[str, str],
    ) -> None:
        """`settings` are theirs, in words. Who fails is left out, and the others begin again."""
        left = dict(theirs)
        while left:
            self._progress(f"{name}: {', '.join([OURS, *left])}")
            try:
                comparisons = take_turns(
                    Turns(list(left), self._plan.rules),
                    partial(_sample, ours, left),
                    self._quiet,
                    lambda line: self._progress(f"  {line}"),
                )
            except _PeerFailedError as failed:
                self.record.left_out(f"{failed.peer} at {name}", failed)
                del left[failed.peer]
                continue
            self.record.rows += [row_of(name, comparison, unit) for comparison in comparisons]
            self.record.measured.add(name, comparisons, settings)
            return

    def best_setting(self, kind: str, threads: int, work: Work) -> LlamaSetting:
        """Of llama.cpp with this file.

        Raises:
            LlamaFailedError: no setting works.
        """
        with self._llama:
            return self._tuning.best(self.files[kind], threads, work)

    def _settings(self, work: Work, peers: Sequence[Peer], servers: tuple[str, ...]) -> dict[str, LlamaSetting]:
        """Each peer's best; who cannot do the work at all is noted and left out."""
        found: dict[str, LlamaSetting] = {}
        with self._llama:
            for peer in peers:
                file = self.files[peer.kind]
                try:
                    if peer.is_rpc:
                        found[peer.name] = LlamaSetting(file=file, threads=peer.threads, servers=servers)
                    else:
                        self._progress(f"{work.name}: {peer.name} gets its best setting")
                        found[peer.name] = self._tuning.best(file, peer.threads, work)
                except LlamaFailedError as error:
                    self.record.left_out(f"{peer.name} at {work.name}", error)
        return found

    def _rpc_servers(self, stack: contextlib.ExitStack) -> tuple[str, ...]:
        try:
            return stack.enter_context(rpc_servers(TOTAL_THREADS, threads=1))
        except RpcServerError as error:
            self.record.left_out("llama.cpp split over RPC servers", error)
            return ()

    def _check_quiet(self) -> None:
        """Two threads are nearly twice as fast as one only if nobody else computes."""
        self._quiet()
        work = prefill(512)
        rates = []
        for threads in (1, TOTAL_THREADS):
            setting = self._tuning.best(self.files[FILE], threads, work)
            rates.append(max(self._llama.tokens_per_s(setting, work) for _ in range(3)))
        ratio = rates[1] / rates[0]
        verdict = "a quiet machine" if ratio >= _QUIET_RATIO else f"not a quiet machine (below {_QUIET_RATIO})"
        note = f"Before the run, llama.cpp with two threads prefilled {ratio:.2f} times as fast as with one: {verdict}."
        self._progress(note)
        self.record.measured.notes.append(note)


class _PeerFailedError(Exception):
    """One side of the turns could not do its part."""

    def __init__(self, peer: str, error: LlamaFailedError) -> None:
        super().__init__(str(error))
        self.peer = peer


def _sample(ours: Callable[[], float], theirs: Mapping[str, Callable[[], float]], who: str) -> float:
    if who == OURS:
        return ours()
    try:
        return theirs[who]()
    except LlamaFailedError as error:
        raise _PeerFailedError(who, error) from None


def _describe(cluster: LocalCluster) -> str:
    """The stages in words, as the broker reports them."""
    stages = sorted((stage.info for stage in cluster.status().stages), key=lambda info: info.layer_start)
    parts = [f"{info.layer_start}:{info.layer_end}" for info in stages]
    name = Path(stages[0].model_name).name
    return (
        f"Stagewire: {name}, {len(stages)} stages of layers {', '.join(parts)}, {stages[0].threads} thread each, "
        f"precision {stages[0].precision}, weights {sum(info.weight_bytes for info in stages) / 1e6:.0f} MB."
    )
