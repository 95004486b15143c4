"""Our own figures, without a peer: time to first token, gaps, overhead, bytes per hop, memory, mixed load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import psutil

from bench.samples import median, percentile
from bench.stagewire_side import RunningStream, StagewireSide, Stream
from bench.streams import gaps, overlapping_gaps
from bench.works import GENERATE_TOKENS, PROMPT_TOKENS
from stagewire.wire.codec import Envelope, encode_ring
from stagewire.wire.epoch import Epoch
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import Phase, Slice, Step
from stagewire.wire.tensor import Tensor, TokenIds

_OVERHEAD_TOKENS = 200
_MIXED_SEQUENCES = 4
MIXED_PROMPT_TOKENS = 6000
_CALM_TOKENS = 48
_ENDLESS = 7000
_PATIENCE_S = 300.0
_LOOK_S = 0.005


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number, in words."""

    what: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class TokenCost:
    """Of one greedy token of a single sequence, in seconds: the client's whole, and what the stages spent of it."""

    total_s: float
    forward_s: float
    sample_s: float

    @property
    def overhead_s(self) -> float:
        """Everything but forward passes and sampling."""
        return self.total_s - self.forward_s - self.sample_s


def token_cost(stream: Stream) -> TokenCost:
    """From a stream whose prompt is one token, so that each of its steps is like the others."""
    num_tokens = len(stream.arrivals)
    stages = stream.result.timings.stages
    return TokenCost(
        total_s=(stream.arrivals[-1] - stream.arrivals[0]) / (num_tokens - 1),
        forward_s=sum(stage.compute_s / stage.steps for stage in stages),
        sample_s=sum(stage.sample_s / stage.steps for stage in stages),
    )


def measure_token_cost(side: StagewireSide, runs: int) -> TokenCost:
    """The run with the median overhead."""
    costs = [token_cost(side.generate_together([side.prompts.draw(1)], _OVERHEAD_TOKENS)[0]) for _ in range(runs)]
    return sorted(costs, key=lambda cost: cost.overhead_s)[len(costs) // 2]


def cost_figures(cost: TokenCost, num_stages: int) -> list[Figure]:
    parts = (("in all", cost.total_s), ("forward passes", cost.forward_s), ("sampling", cost.sample_s))
    figures = [Figure(f"one greedy token over {num_stages} stages, {name}", 1000 * s, "ms") for name, s in parts]
    return [
        *figures,
        Figure("overhead of that token: all but forward passes and sampling", 1000 * cost.overhead_s, "ms"),
    ]


def latency_figures(side: StagewireSide, runs: int) -> list[Figure]:
    figures = []
    for num_sequences in (1, 8):
        streams: list[Stream] = []
        for _ in range(runs):
            prompts = [side.prompts.draw(PROMPT_TOKENS) for _ in range(num_sequences)]
            streams += side.generate_together(prompts, GENERATE_TOKENS)
        first = median([stream.first_token_s for stream in streams])
        every = [gap for stream in streams for gap in gaps(stream.arrivals)]
        together = f"{num_sequences} sequence{'s' * (num_sequences > 1)} of {PROMPT_TOKENS} prompt tokens"
        figures += [
            Figure(f"time to first token, {together}, median", 1000 * first, "ms"),
            Figure(f"inter-token time, {together}, p50", 1000 * percentile(every, 0.5), "ms"),
            Figure(f"inter-token time, {together}, p99", 1000 * percentile(every, 0.99), "ms"),
        ]
    return figures


def memory_figures(side: StagewireSide) -> list[Figure]:
    figures = []
    for name, pid in side.cluster.pids.items():
        figures.append(Figure(f"resident memory of {name}", psutil.Process(pid).memory_info().rss / 1e6, "MB"))
    return figures


def hop_bytes(num_tokens: int, hidden_size: int) -> int:
    """What one decode step of `num_tokens` sequences puts on a hop, all frames together."""
    slices = tuple(Slice(index, Phase.DECODE, 1000, 1, True) for index in range(num_tokens))
    hidden_states = Tensor.from_numpy(np.zeros((num_tokens, hidden_size), np.float32))
    timings = (StageTiming(0, 1, 0.001, 0.0, 0.0001),)
    step = Step(1000, (), (), slices, (), timings, TokenIds.of([1000] * num_tokens), hidden_states)
    frames = encode_ring(Envelope(Epoch(1, 1), 0, 0, 1000), step)
    return sum(len(memoryview(frame).cast("B")) for frame in frames)


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
    running = [RunningStream(0.0) for _ in range(_MIXED_SEQUENCES)]
    jobs = [asyncio.ensure_future(side.follow(one, side.prompts.draw(PROMPT_TOKENS), _ENDLESS)) for one in running]
    try:
        await _until_each_has(running, jobs, 2)
        calm_from = time.perf_counter()
        await _until_each_has(running, jobs, _longest(running) + _CALM_TOKENS)
        long = RunningStream(0.0)
        await side.follow(long, side.prompts.draw(MIXED_PROMPT_TOKENS), 1)
        start, end = long.sent, long.arrivals[0]
        # One more token of each, so that a gap that was open at the end is seen whole.
        await _until_each_has(running, jobs, _longest(running) + 1)
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
    calm = [gap for one in running for gap in gaps(one.arrivals, calm_from, start)]
    loaded = [gap for one in running for gap in overlapping_gaps(one.arrivals, start, end)]
    return MixedLoad(percentile(calm, 0.5), percentile(loaded, 0.99), end - start)


def _longest(streams: list[RunningStream]) -> int:
    return max(len(stream.arrivals) for stream in streams)


async def _until_each_has(streams: list[RunningStream], jobs: Sequence[asyncio.Future[None]], num_tokens: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while any(len(stream.arrivals) < num_tokens for stream in streams):
        for job in jobs:
            if job.done():
                job.result()  # raises what ended it
        if time.monotonic() > deadline:
            raise TimeoutError(f"not every stream had {num_tokens} tokens within {_PATIENCE_S:g} s")
        await asyncio.sleep(_LOOK_S)
