"""The head's account of what snapshots hold: a block that several share counts once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagewire.stage.schedule.pinned_blocks import PinnedBlocks

SIZE = 4


@pytest.mark.parametrize(
    ("prompts", "num_blocks", "freed"),
    [
        ([[1] * 8] * 22, 2, [0] * 22),
        ([[1] * 9] * 22, 2 + 22, [1] * 22),
        ([[1] * 8, [1] * 12, [1] * 4 + [2] * 4], 3 + 1, [0, 1, 1]),
        ([[1, 2, 3], [1, 2, 3]], 2, [1, 1]),
        ([[1, 2, 3, 4], [2, 2, 3, 4, 1, 2, 3, 4]], 3, [1, 2]),
        ([[1] * 8, [2] * 4 + [1] * 4], 4, [2, 2]),
    ],
    ids=[
        "the same",
        "the same, with ends",
        "beginnings",
        "no full one",
        "another first",
        "another before",
    ],
)
def test_full_blocks_with_the_same_beginning_count_once(
    prompts: list[list[int]], num_blocks: int, freed: list[int]
) -> None:
    """A block is what it is by all tokens through it; a partial one is each snapshot's own."""
    pinned = PinnedBlocks(SIZE, is_shared=True)
    for seq_id, token_ids in enumerate(prompts):
        expected = pinned.num_with(token_ids)
        pinned.add(seq_id, token_ids)
        assert pinned.num_blocks == expected
    assert pinned.num_blocks == num_blocks
    assert [pinned.num_freed(seq_id) for seq_id in range(len(prompts))] == freed
    for seq_id in range(len(prompts)):
        before, given_back = pinned.num_blocks, pinned.num_freed(seq_id)
        pinned.remove(seq_id)
        assert pinned.num_blocks == before - given_back
        pinned.check_invariants()
    assert pinned.num_blocks == 0


def test_where_stages_find_no_equal_blocks_each_counts_in_full() -> None:
    """Without a prefix cache, say."""
    pinned = PinnedBlocks(SIZE, is_shared=False)
    for seq_id in range(3):
        pinned.add(seq_id, [1] * 9)
    assert (pinned.num_blocks, pinned.num_freed(1), pinned.num_with([1] * 9)) == (9, 3, 12)


@given(st.data())
def test_any_order_of_adding_and_removing_adds_up(data: st.DataObject) -> None:
    """Against a set of the prefixes themselves."""
    pinned, held = PinnedBlocks(SIZE, is_shared=True), dict[int, list[int]]()
    for number in range(data.draw(st.integers(1, 25))):
        is_removing: bool = bool(held) and data.draw(st.booleans())
        if is_removing:
            seq_id: int = data.draw(st.sampled_from(sorted(held)))
            del held[seq_id]
            pinned.remove(seq_id)
        else:
            held[number] = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=14))
            pinned.add(number, held[number])
        full = {tuple(ids[:end]) for ids in held.values() for end in range(SIZE, len(ids) + 1, SIZE)}
        assert pinned.num_blocks == len(full) + sum(len(ids) % SIZE > 0 for ids in held.values())
        pinned.check_invariants()
