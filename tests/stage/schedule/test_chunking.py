"""The budget of prefill chunks: what it learns, and who gets how much of it."""

from __future__ import annotations

import pytest
from support.sequences import sequence

from stagewire.stage.schedule.chunking import CHUNK_PER_DECODE, ChunkBudget
from stagewire.stage.schedule.sequence import Sequence
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import Phase, Slice


def decode(seq_id: int, position: int = 500) -> Slice:
    return Slice(seq_id, Phase.DECODE, position, 1, True)


def chunk(num_tokens: int, pos_start: int = 0) -> Slice:
    return Slice(99, Phase.PREFILL, pos_start, num_tokens, False)


def timings(*compute_s: float) -> tuple[StageTiming, ...]:
    return tuple(StageTiming(index, 1, spent_s, 0.1, 0.1) for index, spent_s in enumerate(compute_s))


def taught(max_tokens: int = 256, target_s: float = 0.25) -> ChunkBudget:
    """A token of a chunk costs 1 ms, and two decodes cost 20 ms, on the slowest stage."""
    budget = ChunkBudget(max_tokens, target_s)
    for _ in range(100):
        budget.observe((chunk(100),), timings(0.05, 0.1))
        budget.observe((decode(1), decode(2)), timings(0.02, 0.01))
        # The pass over the weights is counted with the decodes, so chunks alone seem 20 ms cheaper.
        budget.observe((decode(1), decode(2), chunk(100)), timings(0.12, 0.03))
    return budget


def shares(budget: ChunkBudget, prompts: list[Sequence], num_decodes: int) -> list[tuple[int, int]]:
    return [(item.seq_id, num_tokens) for item, num_tokens in budget.share_out(prompts, num_decodes)]


def scheduled(seq_id: int, num_prompt: int, num_scheduled: int = 0) -> Sequence:
    item = sequence(seq_id, num_prompt)
    item.num_scheduled = num_scheduled
    return item


def test_before_anything_is_known_a_chunk_is_moderate() -> None:
    """Alone 128 tokens; beside decodes a quarter of that."""
    budget = ChunkBudget(256, 0.25)
    assert shares(budget, [sequence(1, 1000)], 0) == [(1, 128)]
    assert shares(budget, [sequence(1, 1000)], 2) == [(1, 32)]
    assert shares(ChunkBudget(20, 0.25), [sequence(1, 1000)], 0) == [(1, 16)], "never more than max_tokens"


def test_a_chunk_takes_no_longer_than_the_decodes_beside_it() -> None:
    """The budget follows from the pace of the decodes, and is large where nobody decodes."""
    budget = taught()
    beside = budget.tokens(budget.room_s(2), 0)
    assert budget.room_s(2) == pytest.approx(CHUNK_PER_DECODE * 0.02, rel=0.01)
    assert 16 <= beside <= 24
    assert budget.room_s(0) == 0.25
    assert budget.tokens(0.25, 0) == 256


def test_the_target_bounds_a_chunk_beside_slow_decodes() -> None:
    """On a machine that is slow altogether, a step still ends in time for a cancel."""
    budget = ChunkBudget(256, 0.25)
    budget.observe((decode(1),), timings(3.0))
    assert budget.room_s(1) == 0.25


def test_a_token_costs_what_others_did_at_its_position() -> None:
    """Attention grows with the position: further on, chunks are shorter; where nothing is known, the nearest counts."""
    budget = ChunkBudget(256, 0.25)
    for _ in range(100):
        budget.observe((chunk(100, 0),), timings(0.1))
        budget.observe((chunk(100, 5000),), timings(0.5))
    assert budget.seconds(100, 0) == pytest.approx(0.1, rel=0.01)
    assert budget.seconds(100, 5000) == pytest.approx(0.5, rel=0.01)
    assert budget.seconds(100, 7000) == pytest.approx(0.5, rel=0.01)
    assert (budget.tokens(0.0805, 0), budget.tokens(0.0805, 5000)) == (64, 16)


def test_chunks_fill_whole_tiles_where_they_can() -> None:
    """Rows of half a tile cost as much as those of a whole one."""
    budget = taught()
    per_token = budget.seconds(1, 0)
    assert [budget.tokens(room * per_token, 0) for room in (0.5, 3.5, 9.5, 31.5, 40.5, 100.5)] == [0, 3, 8, 24, 32, 96]


def test_decodes_never_seen_alone_are_what_the_chunk_does_not_explain() -> None:
    """A prompt that arrives with the first token of another leaves no step without a chunk to learn from."""
    budget = ChunkBudget(256, 0.25)
    for _ in range(100):
        budget.observe((chunk(100),), timings(0.1))
    budget.observe((decode(1), chunk(100)), timings(0.13))
    assert budget.room_s(1) == pytest.approx(0.03, rel=0.05)


def test_a_step_without_rows_or_timings_teaches_nothing() -> None:
    """Releases alone, and results of a stage that reports no time."""
    budget = ChunkBudget(256, 0.25)
    budget.observe((), timings(0.5))
    budget.observe((chunk(10),), ())
    budget.observe((chunk(10),), timings(0.0))
    assert budget.tokens(0.25, 0) == 128


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    """Half of the time is the oldest's; of the others the shortest comes first."""
    prompts = [scheduled(3, 20), scheduled(1, 6000), scheduled(2, 500), scheduled(4, 10)]
    budget = ChunkBudget(256, 0.25)
    assert shares(budget, prompts, 0) == [(1, 64), (4, 10), (3, 20), (2, 32)]


def test_what_the_others_do_not_need_is_the_oldests() -> None:
    """And what the oldest does not need is theirs."""
    budget = ChunkBudget(256, 0.25)
    assert shares(budget, [scheduled(1, 6000), scheduled(2, 30)], 0) == [(1, 96), (2, 30)]
    assert shares(budget, [scheduled(1, 6000, 5990), scheduled(2, 500)], 0) == [(1, 10), (2, 96)]


def test_the_oldest_gets_a_token_however_slow_the_stages_are() -> None:
    """No budget is too small for a prompt to end."""
    budget = ChunkBudget(256, 0.001)
    budget.observe((chunk(32),), timings(100.0))
    assert shares(budget, [scheduled(1, 100), scheduled(2, 100)], 0) == [(1, 1)]


def test_one_of_sixteen_steps_leaves_the_decodes_alone() -> None:
    """Else what they cost would not be known any more by the end of a long prompt."""
    budget = ChunkBudget(256, 0.25)
    beside = [bool(shares(budget, [scheduled(1, 6000)], 2)) for _ in range(32)]
    assert beside == ([True] * 15 + [False]) * 2
    assert all(shares(budget, [scheduled(1, 6000)], 0) for _ in range(32)), "nobody decodes: nothing to find out"


def test_a_prompt_alone_is_cut_so_that_all_stages_have_a_chunk_to_work_on() -> None:
    """At least four chunks for each stage, of whole granules and 64 tokens at least; one stage needs no such cuts."""
    budget = ChunkBudget(256, 1000.0, num_stages=2)
    assert shares(budget, [sequence(1, 2048)], 0) == [(1, 128)], "nothing is known yet"
    for _ in range(100):
        budget.observe((chunk(100),), timings(0.05, 0.1))
    assert shares(budget, [sequence(1, 2048)], 0) == [(1, 256)]
    assert shares(budget, [sequence(1, 1000)], 0) == [(1, 128)]
    assert shares(budget, [sequence(1, 300)], 0) == [(1, 64)]
    assert shares(budget, [sequence(1, 300), sequence(2, 300)], 0) == [(1, 96)]
    alone = ChunkBudget(256, 1000.0)
    alone.observe((chunk(100),), timings(0.1))
    assert shares(alone, [sequence(1, 300)], 0) == [(1, 256)]


def test_a_chunk_that_moves_behind_a_restored_part_shrinks_to_what_it_costs_there() -> None:
    """Tokens further on look at more before them; what was budgeted in time stays that time."""
    budget = ChunkBudget(256, 1000.0)
    for _ in range(200):
        budget.observe((chunk(100),), timings(0.1))
        budget.observe((chunk(100, 6000),), timings(0.4))
    assert budget.moved(128, 0) == 128
    assert budget.moved(128, 6000) == 32
    assert budget.moved(1, 6000) == 1
