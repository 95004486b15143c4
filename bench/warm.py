"""A prompt of 4,096 tokens that was seen before: its time to first token, against cold, and against kept KV elsewhere.

Each sample is the client's time. llama.cpp keeps the same prefix in its context and is timed from the call that
decodes what comes behind it; a new session of it shares the prefix by `llama_memory_seq_cp`, which copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.compare import SideBySide
from bench.llama_side import LlamaFailedError, LlamaSide
from bench.peers import FILE, LLAMA
from bench.results import MILLISECONDS, Figure, row
from bench.samples import median
from bench.stagewire_side import StagewireSide, Stream
from bench.streams import gaps
from bench.targets import RESTORE_LIMIT
from bench.works import decode_at, prefill

PREFIX_TOKENS = 4096
SUFFIX_TOKENS = 16
RESTORE_WORK = f"restore_{PREFIX_TOKENS}"
_MORE_TOKENS = 8
COLD, WITHOUT_CACHE = "cold", "without_cache"
LIMIT = "limit"


@dataclass
class Warmth:
    """One cluster that has seen a prefix, and what is asked of it: every sample in milliseconds."""

    side: StagewireSide
    prefix: list[int]

    @classmethod
    def of(cls, side: StagewireSide) -> Warmth:
        warmth = cls(side, [])
        warmth.cold_ms()
        return warmth

    def cold_ms(self) -> float:
        """A prefix that nobody has seen; the next ones are asked about this one."""
        self.prefix = self.side.prompts.draw(PREFIX_TOKENS)
        return 1000 * self.side.first(self.prefix, "one", num_cached=0).first_token_s

    def again(self) -> Stream:
        """The same prompt from a new session: one token less than all is there."""
        return self.side.first(self.prefix, None, num_cached=PREFIX_TOKENS - 1, max_tokens=_MORE_TOKENS)

    def warm_ms(self) -> float:
        return 1000 * self.again().first_token_s

    def follow_up_ms(self, session_id: str | None) -> float:
        """Some more tokens behind the prefix, from the session that sent it, or from a new one."""
        prompt = [*self.prefix, *self.side.prompts.draw(SUFFIX_TOKENS)]
        return 1000 * self.side.first(prompt, session_id, num_cached=PREFIX_TOKENS).first_token_s


def warm(bench: SideBySide, side: StagewireSide, runs: int, progress: Callable[[str], None]) -> None:
    """Rows for a repetition, a session that goes on, a new one with the same prefix, and what recording costs."""
    name = f"warm_ttft_{PREFIX_TOKENS}"
    warmth = Warmth.of(side)
    bench.take_turns(name, MILLISECONDS, warmth.warm_ms, {COLD: warmth.cold_ms})
    progress(f"what restoring {PREFIX_TOKENS} tokens costs besides the step behind them")
    bench.record.step(RESTORE_WORK, lambda: _restoring(bench, warmth, runs))
    with LlamaSide(1) as llama:
        try:
            bench.take_turns(
                f"{name}_resident",
                MILLISECONDS,
                lambda: warmth.follow_up_ms("one"),
                {LLAMA: _kept(bench, llama, False)},
            )
            bench.take_turns(
                f"{name}_shared", MILLISECONDS, lambda: warmth.follow_up_ms(None), {LLAMA: _kept(bench, llama, True)}
            )
        except LlamaFailedError as error:
            bench.record.left_out(f"{LLAMA} at {name}", error)
    with bench.cluster(2, 1, cache_tokens=0) as plain, StagewireSide(plain, seed=9) as other:
        bare = Warmth(other, [])
        other.tokens_per_s(prefill(256))
        bench.take_turns(f"cold_{PREFIX_TOKENS}", MILLISECONDS, warmth.cold_ms, {WITHOUT_CACHE: bare.cold_ms})


def _restoring(bench: SideBySide, warmth: Warmth, runs: int) -> None:
    """What restoring costs besides the step behind it."""
    colds, extras = [], []
    for _ in range(runs):
        colds.append(warmth.cold_ms())
        again = warmth.again()
        extras.append(1000 * (again.first_token_s - median(gaps(again.arrivals))))
    bench.record.measured.figures.append(
        Figure(f"restoring {PREFIX_TOKENS} tokens: first token, less a decode step there", median(extras), "ms")
    )
    limit_ms = RESTORE_LIMIT * median(colds)
    restored = row(RESTORE_WORK, LIMIT, MILLISECONDS, max(median(extras), 0.001), limit_ms, runs)
    bench.record.rows.append(restored)


def _kept(bench: SideBySide, llama: LlamaSide, is_shared: bool) -> Callable[[], float]:
    setting = bench.best_setting(FILE, 1, decode_at(PREFIX_TOKENS))
    return lambda: 1000 * llama.kept_s(setting, PREFIX_TOKENS, SUFFIX_TOKENS, is_shared)
