"""Block lists: appended, rewound, released; nothing is lost, nothing is held twice, nothing is done by halves."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stagewire.stage.kv_blocks import Behind, BlockTables, OutOfBlocks


def test_a_sequence_takes_blocks_as_it_grows() -> None:
    """One more at each multiple of the block size, the last one partly used."""
    tables = BlockTables(8, 4)
    assert tables.append(1, 0, 4) is None
    assert tables.append(1, 4, 1) is None
    assert tables.block_table(1).tolist() == [0, 1] and tables.length(1) == 5


def test_behind_changes_nothing() -> None:
    """The tokens before the position are not there: a miss."""
    tables = BlockTables(8, 4)
    tables.append(1, 0, 3)
    assert tables.append(1, 4, 1) == Behind(3)
    assert tables.append(2, 1, 1) == Behind(0)
    assert tables.length(1) == 3 and tables.length(2) == 0 and tables.num_free == 7


def test_a_rewind_keeps_the_blocks_that_are_needed_again() -> None:
    """What lies at or after the position is written anew, in place."""
    tables = BlockTables(8, 4)
    tables.append(1, 0, 16)
    assert tables.append(1, 5, 3) is None
    assert tables.block_table(1).tolist() == [0, 1] and tables.num_free == 6


def test_too_little_room_changes_nothing() -> None:
    """Not a part of the blocks either."""
    tables = BlockTables(2, 4)
    tables.append(1, 0, 4)
    assert tables.append(2, 0, 5) == OutOfBlocks(2, 1)
    assert tables.length(2) == 0 and tables.num_free == 1
    tables.check_invariants()


def test_release_is_idempotent() -> None:
    """It goes down the whole chain, also after a miss."""
    tables = BlockTables(2, 4)
    tables.append(1, 0, 8)
    tables.release(1)
    tables.release(1)
    tables.release(99)
    assert tables.num_free == 2


class AnySteps(RuleBasedStateMachine):
    """Whatever is appended, rewound and released, in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.tables, self.twin = BlockTables(6, 4), BlockTables(6, 4)
        self.lengths: dict[int, int] = {}

    @rule(seq_id=st.integers(1, 4), pos_start=st.integers(0, 20), num_tokens=st.integers(1, 12))
    def append(self, seq_id: int, pos_start: int, num_tokens: int) -> None:
        answer = self.tables.append(seq_id, pos_start, num_tokens)
        assert answer == self.twin.append(seq_id, pos_start, num_tokens)
        if pos_start > self.lengths.get(seq_id, 0):
            assert answer == Behind(self.lengths.get(seq_id, 0))
        elif answer is None:
            self.lengths[seq_id] = pos_start + num_tokens

    @rule(seq_id=st.integers(1, 4))
    def release(self, seq_id: int) -> None:
        self.tables.release(seq_id)
        self.twin.release(seq_id)
        self.lengths.pop(seq_id, None)

    @invariant()
    def books_add_up(self) -> None:
        self.tables.check_invariants()
        for seq_id, length in self.lengths.items():
            assert self.tables.length(seq_id) == length
            assert self.tables.block_table(seq_id).tolist() == self.twin.block_table(seq_id).tolist()


AnySteps.TestCase.settings = settings(max_examples=100, deadline=None)
TestAnySteps = AnySteps.TestCase
