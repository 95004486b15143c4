"""Where a request's time went, in simulated time: every part is the true one, and all of them make up the whole."""

from __future__ import annotations

import random

import pytest
from support.timed_ring import Costs, TimedRing

from stagewire.wire.ring import Step
from stagewire.wire.timing import RequestTiming

EXACT = pytest.approx
PROMPT = [3, 4, 5, 6, 7]


def total(timing: RequestTiming) -> float:
    """All parts; `unread_s` is none of them."""
    waited = timing.admission_s + timing.queue_s + timing.paused_s + timing.restore_s + timing.prefill_s
    return waited + sum(timing.compute_s) + timing.plan_s + timing.sample_s + timing.codec_s + timing.hops_s


def timing_of(ring: TimedRing, request_id: str) -> RequestTiming:
    timing = ring.endings[request_id].timing
    assert timing is not None
    return timing


def unexplained_s(ring: TimedRing, request_id: str) -> float:
    """What of the time from the head to the last draw the parts do not say."""
    truth = ring.truths[request_id]
    return truth.ended_at - truth.read_at - total(timing_of(ring, request_id))


def first_way_s(ring: TimedRing, request_id: str, known_s: float) -> float:
    """What of the first step's way to the tail no stage can know."""
    step_id = ring.truths[request_id].steps[0]
    return ring.drawn_at[step_id] - ring.launched_at[step_id] - known_s


def test_a_request_alone_has_every_part_as_it_was() -> None:
    """Two stages, a cold prompt of 5 and 4 tokens: a prefill and three decodes."""
    costs = Costs()
    ring = TimedRing(2, costs)
    ring.start(1.0, "r", PROMPT, 4)
    ring.run()
    timing = timing_of(ring, "r")
    assert timing.queue_s == EXACT(0.0, abs=1e-9)
    last_write_s = costs.write_s  # by the head, of the last step: nobody is left whom it could tell
    assert timing.hops_s == EXACT(3 * (costs.hop_s + costs.feed_s) + last_write_s)
    assert timing.compute_s == EXACT((30 / 1024, 30 / 1024))
    assert timing.plan_s == EXACT(3 * 2 * costs.plan_s)
    assert timing.sample_s == EXACT(3 * costs.sample_s)
    codec_s = 3 * 2 * (costs.read_s + costs.write_s)
    assert timing.codec_s == EXACT(codec_s - last_write_s), "steps and their results, written and read"
    first_s = 2 * (costs.plan_s + 10 / 1024) + costs.sample_s + costs.write_s + costs.read_s
    assert timing.prefill_s == EXACT(first_s)
    assert (timing.restore_s, timing.paused_s, timing.admission_s, timing.unread_s) == (0, 0, 0, 0)
    assert unexplained_s(ring, "r") == EXACT(costs.hop_s), "of the first step, which is in no round trip"


def test_the_clocks_of_the_stages_may_be_hours_apart() -> None:
    """In the simulation each is a thousand seconds off its neighbour, and no part is longer than the request."""
    ring = TimedRing(3, Costs())
    ring.start(0.0, "r", PROMPT, 3)
    ring.run()
    truth = ring.truths["r"]
    assert 0 < total(timing_of(ring, "r")) < truth.ended_at - truth.read_at


def test_a_warm_prompt_is_restored_and_decoded_in_one_step() -> None:
    """Making the step ready is where references to the cached blocks are taken; the rest is a decode like any other."""
    costs = Costs()
    ring = TimedRing(2, costs)
    ring.start(0.0, "cold", list(range(40)), 1)
    ring.start(5.0, "warm", list(range(40)), 2)
    ring.run()
    assert ring.endings["warm"].usage.cached_tokens == 39
    timing = timing_of(ring, "warm")
    assert timing.restore_s == EXACT(2 * costs.plan_s)
    assert timing.prefill_s == 0
    assert timing.compute_s == EXACT((20 / 1024, 20 / 1024)), "the step that restored computed a row, too"
    assert timing.plan_s == EXACT(2 * costs.plan_s), "of the second step"


def test_a_prompt_that_is_partly_cached_is_prefilled_behind_it() -> None:
    costs = Costs()
    ring = TimedRing(2, costs)
    ring.start(0.0, "cold", list(range(40)), 1)
    ring.start(5.0, "longer", [*range(32), *range(10)], 1)
    ring.run()
    assert ring.endings["longer"].usage.cached_tokens == 32
    timing = timing_of(ring, "longer")
    assert timing.restore_s == EXACT(2 * costs.plan_s)
    assert timing.prefill_s == EXACT(2 * 10 / 1024 + costs.read_s + costs.sample_s)
    assert timing.compute_s == (0, 0)


def test_a_slow_link_shows_as_hops_and_nowhere_else() -> None:
    fast, slow = TimedRing(2, Costs()), TimedRing(2, Costs(hop_s=0.5))
    for ring in (fast, slow):
        ring.start(0.0, "r", PROMPT, 5)
        ring.run()
    before, after = timing_of(fast, "r"), timing_of(slow, "r")
    assert after.hops_s - before.hops_s == EXACT(4 * (0.5 - Costs().hop_s))
    assert total(after) - after.hops_s == EXACT(total(before) - before.hops_s)


def test_waiting_behind_another_prompt_is_queue() -> None:
    """The head computes for a second when the request comes: it reads it late, and then both share the stages."""

    def slow_prefill(_index: int, step: Step) -> float:
        return 1.0 if len(step.token_ids) > 20 else 0.01

    costs = Costs(compute_s=slow_prefill)
    ring = TimedRing(2, costs, chunk_tokens=32)
    ring.start(0.0, "long", list(range(32)), 1)
    ring.start(1.5, "short", PROMPT, 2)
    ring.run()
    timing = timing_of(ring, "short")
    assert timing.prefill_s < 0.2, "its own step is short"
    assert timing.unread_s > 0.5, "and lay unread at the tail, which was busy with the other prompt"
    way_s = first_way_s(ring, "short", timing.prefill_s)
    assert costs.hop_s < way_s <= timing.unread_s + costs.hop_s
    assert unexplained_s(ring, "short") == EXACT(way_s)


@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_in_company_the_parts_miss_only_the_first_steps_way(num_stages: int, seed: int) -> None:
    """Random arrivals, prompts, chunks and costs: nothing is counted twice, and nothing is lost."""
    draw = random.Random(seed)
    costs = Costs(
        compute_s=lambda _index, step: draw.uniform(0.001, 0.02) + 0.0005 * len(step.token_ids),
        hop_s=draw.choice([0.0001, 0.003]),
        feed_s=draw.choice([0.0001, 0.002]),
    )
    ring = TimedRing(num_stages, costs, chunk_tokens=32)
    for number in range(6):
        prompt = [draw.randrange(60) for _ in range(draw.choice([5, 40, 100]))]
        ring.start(draw.uniform(0, 0.5), f"r{number}", prompt, draw.randrange(1, 12))
    ring.run()
    assert len(ring.endings) == 6
    for request_id, truth in ring.truths.items():
        timing = timing_of(ring, request_id)
        first = ring.truths[request_id].steps[0]
        last = truth.steps[-1]
        assert truth.ended_at == EXACT(ring.drawn_at[last])
        # From the first draw on all is on one clock; until the first launch on another: exact, whatever else ran.
        since_first_s = truth.ended_at - ring.drawn_at[first]
        until_first_s = ring.launched_at[first] - truth.read_at
        known_s = total(timing) - since_first_s - until_first_s
        way_s = ring.drawn_at[first] - ring.launched_at[first] - known_s
        hops_s = (num_stages - 1) * costs.hop_s
        ended_at_once = (num_stages - 1) * costs.write_s if first == last else 0.0
        others_first_s = 6 * num_stages * costs.read_s  # what a stage reads before it in the same turn
        assert hops_s - 1e-9 <= way_s <= hops_s + timing.unread_s + ended_at_once + others_first_s + 1e-9
        assert timing.hops_s >= -1e-9


@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_no_part_is_below_zero_where_tokens_are_computed_again(num_stages: int, seed: int) -> None:
    """A memory so small that requests lose theirs: tokens that are known already do not wait for one another."""
    draw = random.Random(seed)
    costs = Costs(compute_s=lambda _index, step: draw.uniform(0.001, 0.02) + 0.0005 * len(step.token_ids))
    ring = TimedRing(num_stages, costs, chunk_tokens=draw.choice([4, 8, 16]), num_blocks=10)
    for number in range(6):
        prompt = [draw.randrange(60) for _ in range(draw.choice([5, 20, 40]))]
        ring.start(draw.uniform(0, 0.1), f"r{number}", prompt, draw.randrange(10, 80))
    ring.run()
    assert len(ring.endings) == 6
    assert any(len(truth.steps) > 1 + (ring.endings[name].num_tokens or 0) for name, truth in ring.truths.items())
    for request_id, truth in ring.truths.items():
        timing = timing_of(ring, request_id)
        parts = [timing.queue_s, timing.prefill_s, timing.restore_s, *timing.compute_s, timing.plan_s]
        assert min(*parts, timing.sample_s, timing.codec_s, timing.hops_s) >= -1e-9
        assert total(timing) <= truth.ended_at - truth.read_at + 1e-9
