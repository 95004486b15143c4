"""Four sequences that run, alone and then beside a prompt of 6,000 tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.running import running_streams
from bench.samples import percentile
from bench.stagewire_side import RunningStream, StagewireSide
from bench.streams import gaps, overlapping_gaps
from bench.works import PROMPT_TOKENS

MIXED_PROMPT_TOKENS = 6000
_MIXED_SEQUENCES = 4
_CALM_TOKENS = 48
_ENDLESS = 7000


@dataclass(frozen=True, slots=True)
class MixedLoad:
    """Gaps of running sequences, in seconds: median with nothing else, and 99th percentile under a long prefill."""

    calm_p50_s: float
    loaded_p99_s: float
    prefill_s: float


def mixed_load(side: StagewireSide) -> MixedLoad:
    """Four sequences run; then a prompt of 6,000 tokens arrives, and they run on while it is prefilled."""
    return side.loop.run_until_complete(_mixed_load(side))


async def _mixed_load(side: StagewireSide) -> MixedLoad:
    async with running_streams(side, _MIXED_SEQUENCES, PROMPT_TOKENS, _ENDLESS) as running:
        await running.until_each_has(2)
        calm_from = time.perf_counter()
        await running.until_each_has(running.longest + _CALM_TOKENS)
        long = RunningStream(0.0)
        await side.follow(long, side.prompts.draw(MIXED_PROMPT_TOKENS), 1)
        start, end = long.sent, long.arrivals[0]
        # One more token of each, so that a gap that was open at the end is seen whole.
        await running.until_each_has(running.longest + 1)
    calm = [gap for one in running.streams for gap in gaps(one.arrivals, calm_from, start)]
    loaded = [gap for one in running.streams for gap in overlapping_gaps(one.arrivals, start, end)]
    return MixedLoad(percentile(calm, 0.5), percentile(loaded, 0.99), end - start)
