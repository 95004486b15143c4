"""How evenly tokens come while prompts are computed: the head's scheduler before stages that cost simulated time."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from support.sequences import limits, sampled, sequence

from stagewire.stage.schedule.scheduler import Scheduler
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import Step, StepResult


@dataclass
class Pipeline:
    """Stages in a row that take steps in order; all times in seconds.

    `row_s` of a token and `pair_s` of a token and one that it looks at are those of half of the default model.
    `noise` makes a step take up to so many times longer, now and then.
    """

    scheduler: Scheduler
    num_stages: int = 2
    pass_s: float = 0.0024
    row_s: float = 0.00045
    pair_s: float = 3.5e-7
    noise: float = 0.0
    now: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(5))
    arrivals: dict[int, list[float]] = field(default_factory=dict)
    _free_at: list[float] = field(default_factory=list)
    _results: list[tuple[float, int, Step, float]] = field(default_factory=list)

    def cost_s(self, step: Step) -> float:
        if not step.slices:
            return 0.0
        pairs = sum(span.num_tokens * (span.pos_start + span.num_tokens / 2) for span in step.slices)
        spent_s = self.pass_s + self.row_s * len(step.token_ids) + self.pair_s * pairs
        return spent_s * (1 + self.random.expovariate(1 / self.noise) if self.noise else 1)

    def launch(self) -> None:
        self._free_at = self._free_at or [0.0] * self.num_stages
        while (step := self.scheduler.next_step(self.now)) is not None:
            at, slowest_s = self.now, 0.0
            for index in range(self.num_stages):
                spent_s = self.cost_s(step)
                at = self._free_at[index] = max(at, self._free_at[index]) + spent_s
                slowest_s = max(slowest_s, spent_s)
            heapq.heappush(self._results, (at, step.step_id, step, slowest_s))

    def turn(self) -> None:
        """Launch what can be launched, and take one result."""
        self.launch()
        self.now, _, step, slowest_s = heapq.heappop(self._results)
        for span in step.slices:
            if span.sample:
                self.arrivals.setdefault(span.seq_id, []).append(self.now)
        results = sampled(step).results
        self.scheduler.complete(StepResult(step.step_id, results, (StageTiming(0, 1, slowest_s, 0.0, 0.0),)))
        self.scheduler.check_invariants()

    def run_until(self, seq_id: int, num_tokens: int) -> None:
        for _ in range(100_000):
            if len(self.arrivals.get(seq_id, [])) >= num_tokens:
                return
            self.turn()
        raise AssertionError(f"sequence {seq_id} does not get its tokens")

    def gaps(self, seq_ids: range, start: float, end: float) -> list[float]:
        """Between the tokens of each sequence within a span, sorted."""
        spans = [[at for at in self.arrivals[seq_id] if start <= at <= end] for seq_id in seq_ids]
        return sorted(late - early for span in spans for early, late in pairwise(span))


def pipeline(num_decoding: int = 4, noise: float = 0.0, num_stages: int = 2) -> Pipeline:
    """Sequences 1 to `num_decoding` have been decoding for a while."""
    size = limits(num_stages=num_stages, num_blocks=100_000, max_sequences=64, chunk_tokens=256, chunk_target_s=0.25)
    running = Pipeline(Scheduler(size), num_stages=num_stages, noise=noise)
    for seq_id in range(1, num_decoding + 1):
        running.scheduler.add(sequence(seq_id, num_prompt=128, max_tokens=100_000))
    if num_decoding:
        running.run_until(num_decoding, 200)
    return running


@pytest.mark.parametrize(
    ("num_decoding", "num_stages", "noise"),
    [(1, 1, 0.0), (4, 1, 0.0), (1, 2, 0.0), (4, 2, 0.0), (4, 2, 0.2), (16, 2, 0.0), (4, 4, 0.0)],
)
def test_a_long_prompt_slows_running_sequences_by_a_small_factor(
    num_decoding: int, num_stages: int, noise: float
) -> None:
    """Inter-token p99 while 6,000 tokens are prefilled, against the p50 before: at most 4 times."""
    running = pipeline(num_decoding, noise, num_stages)
    others = range(1, num_decoding + 1)
    before = running.gaps(others, running.now / 2, running.now)
    start = running.now
    running.scheduler.add(sequence(99, num_prompt=6000, max_tokens=1))
    running.run_until(99, 1)
    during = running.gaps(others, start, running.now)
    assert during[int(0.99 * len(during))] <= 4 * before[len(before) // 2]


def test_the_long_prompt_keeps_its_share_of_the_time() -> None:
    """Half of what it would take alone on a pipeline, decodes taking the other half."""
    running, alone = pipeline(4), pipeline(0)
    start = running.now
    for line in (running, alone):
        line.scheduler.add(sequence(99, num_prompt=6000, max_tokens=1))
        line.run_until(99, 1)
    assert running.now - start < 3 * alone.now


def test_short_prompts_get_in_while_a_long_one_is_prefilled() -> None:
    """Each of ten has its first token before the long prompt is a quarter through, though all came after it."""
    running = pipeline(4)
    running.scheduler.add(long := sequence(50, num_prompt=6000, max_tokens=1))
    running.turn()
    for seq_id in range(60, 70):
        running.scheduler.add(sequence(seq_id, num_prompt=50, max_tokens=1))
    running.run_until(69, 1)
    assert all(running.arrivals.get(seq_id) for seq_id in range(60, 70))
    assert 100 < long.num_scheduled < 1500, "and it goes on itself"


def test_a_decode_never_waits_for_more_than_a_chunk_at_each_stage() -> None:
    """Whatever is in flight, a token's way is its own step, and the other steps' chunks."""
    running = pipeline(1, num_stages=2)
    running.scheduler.add(sequence(99, num_prompt=6000, max_tokens=1))
    start = running.now
    running.run_until(99, 1)
    decode_s = running.pass_s + running.row_s + running.pair_s * 2000
    assert running.gaps(range(1, 2), start, running.now)[-1] < 2 * (decode_s + 2 * decode_s) + 0.002
