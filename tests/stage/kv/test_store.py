"""Block lists and the cache behind them: nothing is lost, nothing public is written to, nothing is done by halves."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.kv_stores import ids, new_store, run

from stagewire.stage.kv.blocks import Copy, MissingTokens, OutOfBlocks
from stagewire.wire.request import CacheStatistics

# --- block lists ---


def test_a_sequence_takes_blocks_as_it_grows() -> None:
    """One more at each multiple of the block size, the last one partly used."""
    store = new_store()
    assert store.append(1, 0, ids(4)) is None
    assert store.append(1, 4, ids(1, 4)) is None
    assert store.block_table(1).tolist() == [0, 1] and store.length(1) == 5


def test_behind_changes_nothing() -> None:
    """The tokens before the position are not there: a miss."""
    store = new_store()
    store.append(1, 0, ids(3))
    assert store.append(1, 4, ids(1)) == MissingTokens(3)
    assert store.append(2, 1, ids(1)) == MissingTokens(0)
    assert store.length(1) == 3 and store.length(2) == 0 and store.num_free == 7


def test_a_rewind_keeps_the_blocks_that_are_needed_again() -> None:
    """What lies at or after the position is written anew, in place."""
    store = new_store()
    store.append(1, 0, ids(16))
    assert store.append(1, 5, ids(3)) is None
    assert store.block_table(1).tolist() == [0, 1] and store.num_free == 6


def test_a_rewind_into_a_public_block_copies_it() -> None:
    """Others may have found it already."""
    store = new_store()
    store.append(1, 0, ids(8))
    store.append(1, 8, ids(1, 8))
    assert store.append(1, 5, ids(3, 50)) == Copy(1, 2)
    assert store.block_table(1).tolist() == [0, 2] and store.lookup(ids(8), 8) == 8


def test_too_little_room_changes_nothing() -> None:
    """Not a part of the blocks either."""
    store = new_store(2)
    store.append(1, 0, ids(4))
    assert store.append(2, 0, ids(5)) == OutOfBlocks(2, 1)
    assert store.length(2) == 0 and store.num_free == 1
    store.check_invariants()


def test_release_is_idempotent() -> None:
    """It goes down the whole chain, also after a miss."""
    store = new_store(2)
    store.append(1, 0, ids(8))
    store.release(1)
    store.release(1)
    store.release(99)
    assert store.num_free == 2


# --- what is found ---


@pytest.mark.parametrize(
    ("prompt", "limit", "held"),
    [
        (ids(10), 9, 9),  # the whole prompt, but for the token to decode from
        (ids(10), 10, 10),
        (ids(9), 8, 8),  # a prompt that ends within the kept one's last block: its full blocks
        (ids(30), 29, 10),  # a longer one: the partial block too
        (np.concatenate([ids(6), ids(9, 50)]), 14, 4),  # differing in the second block
        (ids(10, 1), 9, 0),
        (ids(3), 2, 0),
    ],
)
def test_a_prompt_is_found_by_its_full_blocks_and_then_by_its_partial_one(
    prompt: NDArray[np.int32], limit: int, held: int
) -> None:
    """Ten tokens in blocks of four were computed: two full blocks, and one of two tokens under its own key."""
    store = new_store()
    run(store, ids(10))
    assert store.lookup(prompt, limit) == store.restore(1, prompt, limit) == held
    assert store.length(1) == held
    store.check_invariants()


def test_a_full_block_may_be_restored_but_for_its_end() -> None:
    """Eight tokens are two full blocks; the seven before the last are all that a restore-and-decode wants."""
    store = new_store()
    run(store, ids(8))
    assert store.restore(1, ids(8), 7) == 7
    copy = store.append(1, 7, ids(1, 7), is_decode=True)
    assert isinstance(copy, Copy) and store.block_table(1).tolist() == [0, copy.target] and copy.source == 1


def test_restoring_is_taking_references_and_writing_is_to_a_copy() -> None:
    """Two sequences share all blocks until one of them writes into the last."""
    store = new_store()
    run(store, ids(10))
    for seq_id in (1, 2):
        assert store.restore(seq_id, ids(10), 9) == 9
    assert store.block_table(1).tolist() == store.block_table(2).tolist() == [0, 1, 2] and store.num_used == 3
    assert store.append(1, 9, ids(1, 9), is_decode=True) == Copy(2, 3)
    assert store.append(2, 9, ids(1, 9), is_decode=True) == Copy(2, 4)
    store.check_invariants()


def test_what_is_computed_is_public_only_once_a_later_step_or_the_release_confirms_it() -> None:
    """A step's own rows are not: it may still fail."""
    store = new_store()
    store.append(1, 0, ids(8))
    assert store.lookup(ids(8), 8) == 0
    store.append(1, 8, ids(2, 8))
    assert store.lookup(ids(10), 10) == 8
    store.append(1, 10, ids(1, 10), is_decode=True, is_prompt=False)
    assert store.lookup(ids(10), 10) == 10, "a decode ends the prompt, so its partial block counts"


def test_what_an_epoch_ends_in_never_gets_public() -> None:
    """Its last step may have failed; what was public before stays."""
    store = new_store()
    store.append(1, 0, ids(8))
    store.append(1, 8, ids(4, 8))
    store.begin_epoch("n", 8, 8, is_row_exact=True)
    assert store.lookup(ids(12), 12) == 8 and store.num_used == 0
    store.check_invariants()


def test_what_a_rewind_drops_never_gets_public() -> None:
    """Tokens at or after a later `pos_start` were wrong."""
    store = new_store()
    store.append(1, 0, ids(12))
    store.append(1, 4, ids(8, 70))
    store.release(1)
    assert store.lookup(ids(12), 12) == 4


def test_generated_tokens_are_found_too() -> None:
    """In full blocks; where decode's rows may differ from prefill's, only what prefill has computed."""
    for is_row_exact, held in ((1, 12), (0, 6)):
        store = new_store(is_row_exact=is_row_exact)
        store.append(1, 0, ids(6))
        for position in range(6, 13):
            store.append(1, position, ids(1, position), is_decode=True, is_prompt=False)
        store.release(1)
        assert store.lookup(ids(13), 13) == held


def test_two_that_compute_the_same_hold_the_same_blocks_afterwards() -> None:
    """The second gives up its own, so that whoever holds a block holds all before it."""
    store = new_store()
    for seq_id in (1, 2):
        store.append(seq_id, 0, ids(9))
    for seq_id in (1, 2):
        store.append(seq_id, 9, ids(1, 9), is_decode=True, is_prompt=False)
    assert store.block_table(1).tolist()[:2] == store.block_table(2).tolist()[:2]
    store.check_invariants()


def test_other_arithmetic_or_weights_find_nothing() -> None:
    """The same tokens under another digest are another key; the old ones come back with the old digest."""
    store = new_store()
    run(store, ids(8))
    store.begin_epoch("other", 8, 8, is_row_exact=True)
    assert store.lookup(ids(8), 8) == 0
    store.begin_epoch("n", 8, 8, is_row_exact=True)
    assert store.lookup(ids(8), 8) == 8


def test_a_cache_of_no_blocks_is_off() -> None:
    """Nothing is recorded, nothing found."""
    store = new_store(max_cached_blocks=0)
    run(store, ids(8))
    assert store.lookup(ids(8), 8) == 0 and store.num_cached == 0


# --- what is kept ---


def test_what_is_kept_stays_when_its_source_goes_on_and_goes() -> None:
    """The source writes to a copy; what is kept becomes public with the next step."""
    store = new_store()
    store.append(1, 0, ids(6))
    assert store.keep(1, 2, 6) and store.lookup(ids(6), 6) == 0
    store.begin_step(2)
    assert store.lookup(ids(6), 6) == 6
    assert store.append(1, 6, ids(2, 70)) == Copy(1, 2)
    store.release(1)
    store.clear()
    assert store.length(2) == 6 and store.num_used == 2 and store.lookup(ids(6), 6) == 6
    store.check_invariants()


def test_what_is_not_there_is_not_kept() -> None:
    """Nor is an unknown sequence; a sequence of the new id stays as it is."""
    store = new_store()
    store.append(1, 0, ids(6))
    assert not store.keep(1, 2, 7) and not store.keep(5, 2, 1)
    assert store.length(2) == 0 and store.num_used == 2


def test_what_is_kept_may_end_before_its_source() -> None:
    """Then its last block goes on with other tokens, which it never sees, and which become public as a full block."""
    store = new_store()
    store.append(1, 0, ids(12))
    assert store.keep(1, 2, 6)
    store.begin_step(2)
    store.append(1, 12, ids(1, 12))
    assert store.block_table(2).tolist() == [0, 1] and store.lookup(ids(12), 12) == 12
    store.check_invariants()


def test_what_is_kept_of_something_kept_leaves_the_block_to_its_source() -> None:
    """A snapshot within a block, resumed before its source has made that block public, as a full one."""
    store = new_store(6)
    store.begin_step(1)
    store.append(1, 0, ids(4))
    assert store.keep(1, 2, 1) and store.keep(2, 3, 1)
    store.begin_step(2)
    store.release(1)
    store.check_invariants()
    assert store.restore(4, ids(4), 4) == 4
    assert store.block_table(4).tolist() == store.block_table(3).tolist()


# --- what is given up ---


def test_the_longest_unused_goes_first_and_of_a_chain_the_deepest() -> None:
    """Two chains in a pool of six; a third prompt needs three blocks."""
    store = new_store(6)
    run(store, ids(12), step_id=1)
    run(store, ids(12, 100), step_id=2)
    run(store, ids(12, 200), step_id=3)
    assert [store.lookup(ids(12, first), 12) for first in (0, 100, 200)] == [0, 12, 12]
    run(store, ids(4, 300), step_id=4)
    assert [store.lookup(ids(12, first), 12) for first in (0, 100, 200)] == [0, 8, 12]


def test_use_keeps_a_prefix_alive() -> None:
    """A restore counts as one, and reaches all blocks of the chain."""
    store = new_store(6)
    run(store, ids(12), step_id=1)
    run(store, ids(12, 100), step_id=2)
    store.begin_step(3)
    assert store.restore(1, ids(12), 12) == 12
    store.release(1)
    run(store, ids(8, 200), step_id=4)
    assert [store.lookup(ids(12, first), 12) for first in (0, 100)] == [12, 4]


def test_a_budget_bounds_what_rests() -> None:
    """Beyond it the same order decides at once."""
    store = new_store(8, max_cached_blocks=2)
    run(store, ids(12))
    assert store.num_cached == 2 and store.lookup(ids(12), 12) == 8
    assert store.take_statistics().evicted_blocks == 1


def test_without_another_block_a_sequence_writes_over_its_own_key() -> None:
    """A pool that is full to the last block costs the key, never the request."""
    store = new_store(2)
    store.append(1, 0, ids(6))
    assert store.append(1, 6, ids(1, 6), is_decode=True, is_prompt=False) is None
    assert store.lookup(ids(6), 6) == 4
    store.check_invariants()


def test_a_clear_forgets_what_no_sequence_holds() -> None:
    """What runs keeps its blocks."""
    store = new_store()
    run(store, ids(8, 50))
    store.append(1, 0, ids(4))
    store.append(1, 4, ids(1, 4))
    assert store.clear() == 2
    assert store.lookup(ids(8, 50), 8) == 0 and store.lookup(ids(4), 4) == 4
    store.check_invariants()


def test_what_happened_is_counted() -> None:
    """Once each: tokens and bytes both ways. Looking changes and counts nothing; who restores counts lookups."""
    store = new_store()
    run(store, ids(10))
    assert store.restore(1, ids(10), 9) == 9
    assert store.restore(2, ids(14), 13) == 10
    assert store.lookup(ids(4, 70), 3) == 0
    assert store.take_statistics() == CacheStatistics(
        restored_tokens=19, restored_bytes=190, recorded_tokens=10, recorded_bytes=100
    )
    assert store.take_statistics() == CacheStatistics()
    assert store.statistics.restored_tokens == 19
