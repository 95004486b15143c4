"""A stage's books for one step: what is released, restored, kept, missed, written and copied, and which rows go on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from support.executor_steps import activations, decode, prefill, rows_of, step, taken
from support.in_process import EPOCH, executor_of
from support.kv_stores import ids, new_store, run
from support.toy_operators import ToyOperators

from stagewire.stage.executor import Plan, StepExecutor, StepFailed, Write
from stagewire.stage.files.jobs import FetchBlocks, JobDone, Staged
from stagewire.stage.kv.blocks import Copy
from stagewire.stage.kv.store import KvStore
from stagewire.wire.errors import ErrorCode
from stagewire.wire.file_orders import FileAction, FileOrder
from stagewire.wire.request import CacheStatistics, StageTiming
from stagewire.wire.ring import Keep, Miss, Phase, Slice, Step
from stagewire.wire.tensor import DType

# --- rows ---


def test_rows_take_blocks_and_follow_each_other() -> None:
    """A step of nothing but rows goes on as it came; where the tail draws or keeps, the last row has logits."""
    store = new_store(max_cached_blocks=0)
    executor = executor_of(store, 0)
    executor.plan(step(prefill(1, 5)))
    kept = replace(prefill(4, 2, sample=False), keep=Keep(50, 2))
    one = step(decode(1, 5), prefill(2, 6, sample=False), prefill(3, 2), kept, step_id=3)
    plan = executor.plan(one)
    assert rows_of(plan.batch) == [
        ([5], 5, [0, 1]),
        ([0, 1, 2, 3, 4, 5], 0, [2, 3]),
        ([0, 1], 0, [4]),
        ([0, 1], 0, [5]),
    ]
    assert plan.batch is not None and plan.batch.logit_rows.tolist() == [0, 8, 10]
    assert (plan.step, plan.misses, plan.copies, plan.writes, plan.jobs) == (one, (), (), (), ())
    assert store.num_used == 6
    store.check_invariants()


def test_a_step_without_rows_computes_nothing() -> None:
    """It goes on unchanged, and needs no hidden states."""
    executor = executor_of(new_store(), 1)
    plan = executor.plan(step())
    assert plan == Plan(step(), None, None, (), ())
    missed = step(replace(decode(1, 7), missed=True))
    assert executor.plan(missed) == Plan(missed, None, None, (), ())


def test_a_later_stage_takes_the_rows_that_came_and_the_first_none() -> None:
    """The first one embeds the tokens, whatever else the step holds."""
    one = step(prefill(1, 2), hidden_states=activations(2))
    assert taken(executor_of(new_store(), 1).plan(one)) == [[0.0, 1.0], [2.0, 3.0]]
    assert taken(executor_of(new_store(), 0).plan(one)) is None


def test_what_goes_on_has_this_stages_rows_and_time() -> None:
    """Behind the times of the stages before; no rows, no hidden states."""
    before, own = StageTiming(0, 1, 0.5, 0.0, 0.0), StageTiming(1, 1, 0.25, 0.0, 0.0)
    one = replace(step(prefill(1, 2), hidden_states=activations(2)), timings=(before,))
    plan = executor_of(new_store(), 1).plan(one)
    passed = StepExecutor.forward(plan, np.full((2, 2), 7.0, np.float32), own)
    assert passed.hidden_states is not None and passed.hidden_states.to_numpy().tolist() == [[7.0, 7.0]] * 2
    assert replace(passed, hidden_states=None) == replace(one, timings=(before, own), hidden_states=None)
    assert StepExecutor.forward(plan, None, own).hidden_states is None


def test_a_stage_that_is_ahead_rewinds() -> None:
    """`pos_start` is authoritative: the rows after it are written anew."""
    store = KvStore(16, 16)
    executor = executor_of(store, 0)
    executor.plan(step(prefill(1, 40), step_id=1))
    executor.plan(step(prefill(1, 3, pos_start=10), step_id=2))
    assert store.length(1) == 13 and store.num_free == 15
    store.check_invariants()


# --- releases ---


def test_releases_come_first() -> None:
    """Their blocks are there for the slices of the same step."""
    store = new_store(2, max_cached_blocks=0)
    executor = executor_of(store, 0)
    executor.plan(step(prefill(1, 8)))
    plan = executor.plan(step(prefill(2, 8), step_id=3, releases=(1, 99)))
    assert (store.length(1), store.length(2), store.num_free) == (0, 8, 0)
    assert rows_of(plan.batch) == [([0, 1, 2, 3, 4, 5, 6, 7], 0, store.block_table(2).tolist())]


def test_to_begin_a_step_again_changes_nothing() -> None:
    """The head begins a step before it makes it, so that its lookups know of the releases; the plan does so too."""
    store = new_store()
    executor = executor_of(store, 0)
    executor.plan(step(replace(prefill(1, 6), keep=Keep(50, 6))))
    executor.begin(2, ())
    assert executor.lookup([0, 1, 2, 3, 4, 5], 6, None) == 0, "what a step keeps is public with the next one only"
    for releases in ((), (1,), (1,)):
        executor.begin(3, releases)
        assert (store.length(50), store.num_used, executor.lookup([0, 1, 2, 3, 4, 5], 6, None)) == (6, 2, 6)
    executor.plan(step(step_id=3, releases=(1,)))
    assert (store.length(1), store.length(50), store.num_used) == (0, 6, 2)
    store.check_invariants()


# --- misses ---


def test_a_stage_that_is_behind_reports_a_miss_and_computes_nothing_of_it() -> None:
    """The other slices of the step go on; the missed one travels on without rows."""
    executor = executor_of(KvStore(16, 16), 0)
    slices = (decode(1, 7), prefill(2, 2))
    plan = executor.plan(step(*slices, step_id=4, token_ids=[9, 5, 6]))
    assert plan.misses == (Miss(4, 1, 0),)
    assert plan.step.slices == (replace(slices[0], missed=True), slices[1])
    assert plan.batch is not None and plan.batch.token_ids.tolist() == [5, 6]
    assert plan.batch.logit_rows.tolist() == [1]


def test_the_rows_of_a_miss_are_left_out_of_what_came() -> None:
    """Those before and behind it are computed, each with its own."""
    executor = executor_of(new_store(), 1)
    executor.plan(step(prefill(2, 3), hidden_states=activations(3)))
    slices = (prefill(1, 2), prefill(2, 3, pos_start=4), prefill(3, 1))
    plan = executor.plan(step(*slices, step_id=3, hidden_states=activations(6)))
    assert plan.misses == (Miss(3, 2, 3),)
    assert plan.step.slices == (slices[0], replace(slices[1], missed=True), slices[2])
    assert rows_of(plan.batch) == [([0, 1], 0, [1]), ([0], 0, [2])]
    assert taken(plan) == [[0.0, 1.0], [2.0, 3.0], [10.0, 11.0]]


def test_a_miss_is_reported_by_the_first_that_misses_only() -> None:
    """The next stage gets no rows of it, and says nothing, though it lacks the tokens too."""
    executor = executor_of(new_store(), 1)
    slices = (replace(decode(1, 7), missed=True), prefill(2, 2))
    one = step(*slices, hidden_states=activations(2))
    plan = executor.plan(one)
    assert (plan.misses, plan.step) == ((), one)
    assert rows_of(plan.batch) == [([0, 1], 0, [0])]
    assert taken(plan) == [[0.0, 1.0], [2.0, 3.0]]


# --- restoring ---


@pytest.mark.parametrize(
    ("span", "num_restored", "is_missed", "misses"),
    [
        # Ten tokens are held: all of a wish, what there is of one, and no more than an earlier stage had.
        (Slice(1, Phase.TRY_RESTORE, 0, 10, False, num_restored=10), 10, False, ()),
        (Slice(1, Phase.TRY_RESTORE, 0, 12, False, num_restored=12), 10, False, ()),
        (Slice(1, Phase.TRY_RESTORE, 0, 10, False, num_restored=8), 8, False, ()),
        (Slice(1, Phase.TRY_RESTORE, 0, 10, False, num_restored=0), 0, False, ()),
        # With a token to continue from, all or it is a miss; one from an earlier stage is not told again.
        (Slice(1, Phase.TRY_RESTORE_DECODE, 0, 11, True, num_restored=10), 10, False, ()),
        (Slice(1, Phase.TRY_RESTORE_DECODE, 0, 13, True, num_restored=12), 10, True, (Miss(2, 1, 10),)),
        (Slice(1, Phase.TRY_RESTORE_DECODE, 0, 13, True, missed=True, num_restored=4), 4, True, ()),
        # A snapshot is these tokens exactly, or nothing.
        (Slice(1, Phase.RESUME, 0, 10, True, num_restored=10, source=50), 10, False, ()),
        (Slice(1, Phase.RESUME, 0, 9, True, num_restored=9, source=50), 0, True, (Miss(2, 1, 0),)),
        (Slice(1, Phase.RESUME, 0, 10, True, num_restored=10, source=51), 0, True, (Miss(2, 1, 0),)),
        (Slice(1, Phase.RESUME, 0, 10, True, num_restored=10), 0, True, (Miss(2, 1, 0),)),
    ],
)
def test_a_restore_takes_what_is_held_and_tells_the_next_stage(
    span: Slice, num_restored: int, is_missed: bool, misses: tuple[Miss, ...]
) -> None:
    """It shrinks to that; only of one that is whole and decodes is there a row."""
    store = new_store()
    store.append(999, 0, ids(10))
    assert store.keep(999, 50, 10)
    store.release(999)
    plan = executor_of(store, 0).plan(step(span))
    assert plan.step.slices == (replace(span, num_restored=num_restored, missed=is_missed),)
    assert plan.misses == misses
    has_row = span.phase is Phase.TRY_RESTORE_DECODE and not is_missed
    assert store.length(1) == num_restored + has_row
    assert (rows_of(plan.batch) if has_row else plan.batch) == ([([10], 10, [0, 1, 3])] if has_row else None)
    store.check_invariants()


def test_what_is_shared_is_copied_before_it_is_written_to() -> None:
    """Two restore the same partial block, and each continues in its own."""
    store = new_store()
    run(store, ids(6))
    slices: list[Slice] = []
    for seq_id in (1, 2):
        slices += [Slice(seq_id, Phase.TRY_RESTORE, 0, 6, False, num_restored=6), prefill(seq_id, 1, pos_start=6)]
    plan = executor_of(store, 0).plan(step(*slices))
    assert plan.copies == (Copy(1, 2), Copy(1, 3))
    assert rows_of(plan.batch) == [([6], 6, [0, 2]), ([6], 6, [0, 3])]
    store.check_invariants()


def staged(executor: StepExecutor, depth: int, token_ids: NDArray[np.int32]) -> None:
    """Blocks from `depth` on have been read for sequence 1, each one's bytes all of its own number."""
    (job,) = executor.plan(replace(step(), orders=(FileOrder(1, FileAction.FETCH),))).jobs
    assert isinstance(job, FetchBlocks) and job.epoch == EPOCH
    contents = tuple(bytes([depth + index]) * 40 for index in range(-(-len(token_ids) // 4)))
    executor.files.finish(JobDone(job, Staged(depth, token_ids.tobytes(), contents)))
    assert executor.files.num_staged == 1


@pytest.mark.parametrize(
    ("depth", "token_ids", "num_restored", "written"),
    [
        (2, ids(4, 8), 11, {2: 2}),  # right behind what is held
        (1, ids(8, 4), 11, {2: 2}),  # of what is held, none is written again
        (2, ids(2, 8), 10, {2: 2}),  # as far as it reaches
        (3, ids(4, 8), 8, {}),  # a gap between, though the tokens are alike
        (2, ids(4, 70), 8, {}),  # other tokens
    ],
)
def test_what_was_read_from_files_continues_what_is_held(
    depth: int, token_ids: NDArray[np.int32], num_restored: int, written: dict[int, int]
) -> None:
    """Eight tokens are held and eleven wished for; what was read is used once, or not at all."""
    store = new_store()
    run(store, ids(8))
    executor = executor_of(store, 0)
    staged(executor, depth, token_ids)
    plan = executor.plan(step(Slice(1, Phase.TRY_RESTORE, 0, 11, False, num_restored=11), step_id=3))
    assert plan.writes == tuple(Write(block, bytes([byte]) * 40) for block, byte in written.items())
    assert [span.num_restored for span in plan.step.slices] == [num_restored] and store.length(1) == num_restored
    assert plan.step.cache.fetched_tokens == num_restored - 8 and executor.files.num_staged == 0
    store.check_invariants()


def test_what_was_read_goes_with_the_release_of_its_sequence() -> None:
    """Nobody else would take it."""
    executor = executor_of(new_store(), 0)
    staged(executor, 0, ids(4))
    executor.begin(3, (1,))
    assert executor.files.num_staged == 0


def test_writes_come_before_copies() -> None:
    """A block that was read may be copied in the same step."""
    operators = ToyOperators(0, 1, 1, 4)
    content = bytes(range(operators.block_bytes))
    plan = Plan(step(), None, None, (), (Copy(0, 1), Copy(1, 2)), (Write(0, content),))
    assert plan.compute(operators) is None
    assert [operators.read_block(block) for block in (0, 1, 2)] == [content] * 3


@pytest.mark.parametrize(
    "span",
    [
        Slice(1, Phase.TRY_RESTORE_DECODE, 0, 1, True, num_restored=0),
        Slice(1, Phase.TRY_RESTORE_DECODE, 0, 3, True, num_restored=3),
        Slice(1, Phase.TRY_RESTORE_DECODE, 4, 3, True, num_restored=2),
        Slice(1, Phase.TRY_RESTORE, 0, 3, False, num_restored=4),
        Slice(1, Phase.TRY_RESTORE, 4, 3, False, num_restored=3),
        Slice(1, Phase.RESUME, 4, 3, True, num_restored=3, source=50),
    ],
)
def test_a_restore_without_a_prefix_or_a_token_to_continue_from_is_an_error(span: Slice) -> None:
    """Typed, and nothing is guessed."""
    executor = executor_of(KvStore(16, 16), 0)
    with pytest.raises(StepFailed) as caught:
        executor.plan(step(span))
    assert caught.value.code is ErrorCode.RESTORE_INCOMPLETE


# --- keeping ---


def test_what_is_there_is_kept_and_what_is_not_is_not_asked_of_the_next() -> None:
    """A sequence that is long enough is held under the other id too; of a miss nothing is."""
    store = new_store()
    slices = (
        replace(prefill(1, 6), keep=Keep(50, 5)),
        replace(prefill(2, 2), keep=Keep(51, 3)),
        replace(decode(3, 5), keep=Keep(52, 1)),
    )
    executor = executor_of(store, 0)
    executor.plan(step(prefill(3, 4)))
    plan = executor.plan(step(*slices, step_id=3))
    assert plan.step.slices == (
        slices[0],
        replace(slices[1], keep=None),
        replace(slices[2], keep=None, missed=True),
    )
    assert [store.length(seq_id) for seq_id in (50, 51, 52)] == [5, 0, 0]
    store.check_invariants()


# --- what the cache holds afterwards, and what the head is told of it ---


def test_a_prompt_is_found_to_its_last_token_and_what_was_generated_in_full_blocks() -> None:
    """The first decode ends the prompt."""
    executor = executor_of(new_store(), 0)
    executor.plan(step(prefill(1, 6)))
    assert executor.lookup(range(7), 7, None) == 0
    executor.plan(step(decode(1, 6), step_id=3))
    assert executor.lookup(range(7), 7, None) == 6
    executor.begin(4, (1,))
    assert executor.lookup(range(7), 7, None) == 6


def test_what_the_cache_did_is_passed_on_with_the_bit_of_this_stage() -> None:
    """Added to what the stages before have done, and told once."""
    store = new_store()
    run(store, ids(10))
    store.take_statistics()
    executor = executor_of(store, 1)
    before = CacheStatistics(lookups=2, hits=1, misses=1, restored_tokens=19, hit_stages=0b1, miss_stages=0b1)
    span = Slice(1, Phase.TRY_RESTORE, 0, 10, False, num_restored=10)
    plan = executor.plan(replace(step(span), cache=before))
    own = CacheStatistics(lookups=1, hits=1, restored_tokens=10, restored_bytes=100, hit_stages=0b10)
    assert plan.step == replace(step(span), cache=before.plus(own))
    plan = executor.plan(step(replace(span, seq_id=2, num_restored=0), step_id=3))
    assert plan.step.cache == CacheStatistics()
    short = Slice(3, Phase.TRY_RESTORE, 0, 12, False, num_restored=12)
    plan = executor.plan(step(short, step_id=4))
    missed = CacheStatistics(lookups=1, misses=1, restored_tokens=10, restored_bytes=100, miss_stages=0b10)
    assert plan.step.cache == missed


# --- what fails ---


@pytest.mark.parametrize(
    ("one", "detail"),
    [
        (step(prefill(1, 2), token_ids=[1]), "step 2: 1 token ids for 2 tokens"),
        (step(prefill(1, 2), token_ids=[1, 2, 3]), "step 2: 3 token ids for 2 tokens"),
        (step(prefill(1, 0), prefill(2, 2)), "step 2: 2 token ids for 2 tokens"),
        (step(prefill(1, 2)), "step 2: hidden states f32() for f32(2, 2)"),
        (step(prefill(1, 2), hidden_states=activations(3)), "step 2: hidden states f32(3, 2) for f32(2, 2)"),
        (step(prefill(1, 2), hidden_states=activations(2, 3)), "step 2: hidden states f32(2, 3) for f32(2, 2)"),
        (
            step(prefill(1, 2), hidden_states=activations(2, dtype=DType.F16)),
            "step 2: hidden states f16(2, 2) for f32(2, 2)",
        ),
        (
            step(prefill(1, 2), hidden_states=activations(2, dtype=DType.BF16)),
            "step 2: hidden states bf16(2, 2) for f32(2, 2)",
        ),
        (
            step(replace(prefill(1, 2), missed=True), prefill(2, 1), hidden_states=activations(3)),
            "step 2: hidden states f32(3, 2) for f32(1, 2)",
        ),
    ],
)
def test_a_step_that_contradicts_itself_fails(one: Step, detail: str) -> None:
    """Wrong counts, shapes or kinds of numbers end the epoch before anything is done; nothing is guessed."""
    store = new_store()
    with pytest.raises(StepFailed) as caught:
        executor_of(store, 1).plan(one)
    assert (caught.value.code, caught.value.detail) == (ErrorCode.DECODE_FAILED, detail)
    assert store.num_used == 0


def test_a_pool_without_room_fails_the_step() -> None:
    """The head accounts for every block, so this is no sequence's fault, and none is given up for it."""
    store = new_store(2)
    executor = executor_of(store, 0)
    executor.plan(step(prefill(1, 4)))
    with pytest.raises(StepFailed) as caught:
        executor.plan(step(prefill(2, 5), step_id=3))
    assert (caught.value.code, caught.value.detail) == (ErrorCode.DECODE_FAILED, "no KV block left for sequence 2")
    assert (store.length(1), store.length(2)) == (4, 0)
