"""Our own figures, without a peer: time to first token, gaps, the parts of a token, bytes per hop, memory."""

from __future__ import annotations

import numpy as np
import psutil

from bench.results import Figure
from bench.samples import median, percentile
from bench.stagewire_side import StagewireSide, Stream
from bench.streams import gaps
from bench.token_cost import TokenCost
from bench.works import GENERATE_TOKENS, PROMPT_TOKENS
from stagewire.wire.codec import Envelope, encode_ring
from stagewire.wire.epoch import Epoch
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import Phase, Slice, Step
from stagewire.wire.tensor import Tensor, TokenIds


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
    """What one decode step of `num_tokens` sequences puts on a hop."""
    slices = tuple(Slice(index, Phase.DECODE, 1000, 1, True) for index in range(num_tokens))
    hidden_states = Tensor.from_numpy(np.zeros((num_tokens, hidden_size), np.float32))
    timings = (StageTiming(0, 1, 0.001, 0.0, 0.0001),)
    step = Step(1000, (), (), slices, (), timings, TokenIds.of([1000] * num_tokens), hidden_states)
    return len(encode_ring(Envelope(Epoch(1, 1), 0, 0, 1000), step))
