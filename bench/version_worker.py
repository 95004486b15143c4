"""One version's cluster and client, for `bench.versions`: run by that version's own Python, asked in JSON lines.

All that is imported of `stagewire` is what older versions have, too.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bench.cpu_cost import NUM_STREAMS, cpu_ms_per_token
from bench.mixed_load import MIXED_PROMPT_TOKENS, mixed_load
from bench.results import MILLISECONDS, TOKENS_PER_S, Figure
from bench.samples import median
from bench.stagewire_side import MeasurementError, StagewireSide
from bench.token_cost import measure_token_cost
from bench.worker_process import serve
from bench.works import Work, decode, prefill
from stagewire.client import StagewireError
from stagewire.cluster import local
from stagewire.cluster.local import LocalCluster

_SHORT_RUNS = 3
_REFUSALS = (StagewireError, MeasurementError, TimeoutError, ValueError, LookupError)


def _rate(work: Work, side: StagewireSide) -> list[Figure]:
    """One sequence alone takes less than half a second: the median of some."""
    rates = [side.tokens_per_s(work) for _ in range(_SHORT_RUNS if work.num_sequences == 1 else 1)]
    return [Figure(work.name, median(rates), TOKENS_PER_S)]


def _overhead(side: StagewireSide) -> list[Figure]:
    cost = measure_token_cost(side, _SHORT_RUNS)
    parts = {"token_cost": cost.total_s, "token_cost_overhead": cost.overhead_s}
    return [Figure(name, 1000 * seconds, MILLISECONDS) for name, seconds in parts.items()]


def _mixed(side: StagewireSide) -> list[Figure]:
    found = mixed_load(side)
    parts = {"inter_token_p50_alone": found.calm_p50_s}
    parts[f"inter_token_p99_while_{MIXED_PROMPT_TOKENS}_prefill"] = found.loaded_p99_s
    return [Figure(name, 1000 * seconds, MILLISECONDS) for name, seconds in parts.items()]


def _cpu(num_streams: int, side: StagewireSide) -> list[Figure]:
    found = cpu_ms_per_token(side, num_streams)
    return [Figure(f"cpu_{num_streams}_{process}", value, MILLISECONDS) for process, value in found.items()]


MEASURES: dict[str, Callable[[StagewireSide], list[Figure]]] = {
    **{work.name: partial(_rate, work) for work in (prefill(512), decode(1), decode(8), decode(16))},
    "overhead": _overhead,
    **{f"cpu_{num_streams}": partial(_cpu, num_streams) for num_streams in NUM_STREAMS},
    "mixed": _mixed,  # the longest, so the last
}


class VersionWorker:
    """A cluster of two stages of one thread each, from `start` until the worker ends."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._side: StagewireSide | None = None

    def start(self, model: str, seed: int) -> str:
        """Returns where the package is that was imported."""
        cluster = self._stack.enter_context(LocalCluster(model, stages=2, threads=1))
        self._side = self._stack.enter_context(StagewireSide(cluster, seed))
        self._side.tokens_per_s(prefill(256))  # warms up
        self._side.tokens_per_s(decode(4))
        return str(Path(local.__file__).resolve())

    def measure(self, name: str) -> list[dict[str, object]]:
        assert self._side is not None, "nothing has been started"
        return [asdict(figure) for figure in MEASURES[name](self._side)]


def main() -> None:
    # What anything else prints is not an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with contextlib.ExitStack() as stack:
        worker = VersionWorker(stack)
        serve(sys.stdin, answers, lambda method, arguments: getattr(worker, method)(**arguments), _REFUSALS)


if __name__ == "__main__":
    main()
