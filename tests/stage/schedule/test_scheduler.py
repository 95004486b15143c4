"""The head's policy: what goes into a step, in which order, and what happens when blocks run out."""

from __future__ import annotations

from collections.abc import Sequence as Items

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.sequences import limits, sampled, sequence

from stagewire.stage.schedule.limits import SchedulerLimits
from stagewire.stage.schedule.scheduler import Scheduler
from stagewire.stage.schedule.sequence import Sequence, SequenceState
from stagewire.stage.schedule.step_builder import Lookup
from stagewire.wire.request import FinishReason, Restored
from stagewire.wire.ring import (
    Miss,
    Phase,
    SequenceFinish,
    SequenceResult,
    Slice,
    Step,
    StepResult,
)
from stagewire.wire.tensor import TokenIds


def scheduler_of(size: SchedulerLimits, *sequences: Sequence) -> Scheduler:
    scheduler = Scheduler(size)
    for item in sequences:
        scheduler.add(item)
    return scheduler


def next_step(scheduler: Scheduler) -> Step:
    step = scheduler.next_step(0.0)
    scheduler.check_invariants()
    assert step is not None
    return step


def test_a_prompt_is_prefilled_in_one_chunk_and_then_decoded() -> None:
    """The chunk that ends the prompt samples; the sampled token is the next step's only row."""
    scheduler = scheduler_of(limits(), sequence(1))
    first = next_step(scheduler)
    assert first.slices == (Slice(1, Phase.PREFILL, 0, 4, True),)
    assert [start.request_id for start in first.starts] == ["r1"]
    assert scheduler.next_step(0.0) is None, "its token is on its way"
    scheduler.complete(sampled(first, 7))
    second = next_step(scheduler)
    assert second.slices == (Slice(1, Phase.DECODE, 4, 1, True),)
    assert second.token_ids == TokenIds.of([7]) and second.starts == ()


def test_chunks_follow_each_other_while_the_first_is_in_flight() -> None:
    """A stage computes chunk n+1 while its neighbour computes chunk n; only the last chunk samples."""
    scheduler = scheduler_of(limits(chunk_tokens=32), sequence(1, num_prompt=70))
    steps = [next_step(scheduler), next_step(scheduler)]
    assert [s.slices for s in steps] == [
        (Slice(1, Phase.PREFILL, 0, 32, False),),
        (Slice(1, Phase.PREFILL, 32, 32, False),),
    ]
    assert scheduler.next_step(0.0) is None, "two stages, two steps"
    scheduler.complete(sampled(steps[0]))
    assert next_step(scheduler).slices == (Slice(1, Phase.PREFILL, 64, 6, True),)


def test_decodes_are_shared_out_over_the_stages() -> None:
    """Four ready sequences over two stages make two steps of two, so that both stages have work."""
    scheduler = scheduler_of(limits(), *[sequence(i) for i in range(1, 5)])
    scheduler.complete(sampled(next_step(scheduler)))
    assert [s.seq_id for s in next_step(scheduler).slices] == [1, 2]
    assert [s.seq_id for s in next_step(scheduler).slices] == [3, 4]


def test_prefill_rides_along_with_decodes() -> None:
    """A new prompt joins the step of those that decode: nobody waits for it to end."""
    scheduler = scheduler_of(limits(num_stages=1), sequence(1))
    scheduler.complete(sampled(next_step(scheduler)))
    scheduler.add(sequence(2, num_prompt=6))
    assert next_step(scheduler).slices == (
        Slice(1, Phase.DECODE, 4, 1, True),
        Slice(2, Phase.PREFILL, 0, 6, True),
    )


def test_a_short_prompt_joins_the_chunks_of_a_long_one() -> None:
    """It is admitted at once and takes its part of the step, beside a decode and the older prompt's chunk."""
    scheduler = scheduler_of(limits(num_stages=1, num_blocks=1000), sequence(1))
    scheduler.complete(sampled(next_step(scheduler)))
    scheduler.add(sequence(2, num_prompt=500))
    scheduler.complete(sampled(next_step(scheduler)))
    scheduler.add(sequence(3, num_prompt=8))
    assert next_step(scheduler).slices == (
        Slice(1, Phase.DECODE, 5, 1, True),
        Slice(2, Phase.PREFILL, 32, 24, False),
        Slice(3, Phase.PREFILL, 0, 8, True),
    )


def test_prompts_run_together_only_if_all_of_them_fits() -> None:
    """Blocks that a running prompt will need are its own already: two half-computed prompts must not fight for them."""
    scheduler = scheduler_of(limits(num_stages=1, num_blocks=40), sequence(1, 100), sequence(2, 100))
    first = next_step(scheduler)
    assert first.slices == (Slice(1, Phase.PREFILL, 0, 64, False),)
    scheduler.complete(sampled(first))
    second = next_step(scheduler)
    assert second.slices == (Slice(1, Phase.PREFILL, 64, 36, True),)
    scheduler.complete(sampled(second, finish=FinishReason.STOP))
    assert next_step(scheduler).slices == (Slice(2, Phase.PREFILL, 0, 64, False),)
    assert scheduler.num_preemptions == 0


def test_no_tokens_wanted_ends_with_the_prompt() -> None:
    """`max_tokens=0` prefills, samples nothing, and releases its blocks one step later."""
    scheduler = scheduler_of(limits(), sequence(1, max_tokens=0))
    step = next_step(scheduler)
    assert step.slices == (Slice(1, Phase.PREFILL, 0, 4, False),)
    assert step.finishes == (SequenceFinish(1, FinishReason.LENGTH),) and step.releases == ()
    assert [s.seq_id for s, _ in scheduler.complete(sampled(step))] == [1]
    assert next_step(scheduler).releases == (1,)
    assert scheduler.blocks.num_free == 100


def test_an_ended_sequence_is_released_with_the_next_step() -> None:
    """The tail ended it; every stage drops its blocks, also when there is nothing else to do."""
    scheduler = scheduler_of(limits(), sequence(1))
    step = next_step(scheduler)
    scheduler.complete(sampled(step, finish=FinishReason.STOP))
    release = next_step(scheduler)
    assert (release.releases, release.slices, release.finishes) == ((1,), (), ())
    assert scheduler.next_step(0.0) is None


def test_a_cancel_before_the_first_slice_is_announced_and_ended() -> None:
    """The tail learns of the request and of its end in one step, since it alone writes endings."""
    scheduler = scheduler_of(limits(), item := sequence(1))
    scheduler.finish(item, SequenceFinish(1, FinishReason.CANCELLED))
    step = next_step(scheduler)
    assert [s.seq_id for s in step.starts] == [1]
    assert step.finishes == (SequenceFinish(1, FinishReason.CANCELLED),)
    assert (step.slices, step.releases) == ((), ())


def test_without_room_the_youngest_makes_way_and_comes_back() -> None:
    """Preempted means rewound and put back in line: its tokens, the generated ones too, are computed again."""
    scheduler = scheduler_of(limits(num_stages=1, num_blocks=4), sequence(1, 4), sequence(2, 4))
    scheduler.complete(sampled(next_step(scheduler)))
    for _ in range(4):
        scheduler.complete(sampled(next_step(scheduler)))
    step = next_step(scheduler)
    assert step.releases == (2,), "9 tokens of sequence 1 take a third block"
    assert [s.seq_id for s in step.slices] == [1]
    scheduler.complete(sampled(step, finish=FinishReason.STOP))
    again = next_step(scheduler)
    assert again.releases == (1,)
    assert again.slices == (Slice(2, Phase.PREFILL, 0, 9, True),)
    assert again.token_ids == TokenIds.of([200, 201, 202, 203, 7, 7, 7, 7, 7])


def test_a_paused_sequence_neither_runs_nor_blocks_others() -> None:
    """A client that does not read stops its own request; when places are short it loses its place as well."""
    scheduler = scheduler_of(limits(num_stages=1, max_sequences=1), first := sequence(1))
    scheduler.complete(sampled(next_step(scheduler)))
    first.is_paused = True
    assert scheduler.next_step(0.0) is None
    scheduler.add(sequence(2))
    step = next_step(scheduler)
    assert step.releases == (1,) and [s.seq_id for s in step.slices] == [2]


def test_a_miss_starts_the_sequence_again_and_old_misses_are_stale() -> None:
    """Misses of steps from before the rewind must not rewind once more."""
    scheduler = scheduler_of(limits(chunk_tokens=32), sequence(1, num_prompt=64))
    first, second = next_step(scheduler), next_step(scheduler)
    scheduler.miss(Miss(first.step_id, 1, 0))
    scheduler.complete(StepResult(first.step_id, (), ()))
    again = next_step(scheduler)
    assert again.releases == (1,) and again.slices == (Slice(1, Phase.PREFILL, 0, 32, False),)
    scheduler.miss(Miss(second.step_id, 1, 0))
    scheduler.complete(StepResult(second.step_id, (), ()))
    assert next_step(scheduler).slices == (Slice(1, Phase.PREFILL, 32, 32, True),)


def holds(num_tokens: int) -> Lookup:
    """The head's own stage can restore as many tokens of any prompt."""
    return lambda _token_ids, limit: min(num_tokens, limit)


def restoring(num_held: int, *sequences: Sequence, size: SchedulerLimits | None = None) -> Scheduler:
    scheduler = Scheduler(size or limits(), holds(num_held))
    for item in sequences:
        scheduler.add(item)
    return scheduler


def test_a_prompt_that_is_held_is_restored_and_decoded_in_one_slice() -> None:
    """All tokens travel, one row is computed, and the sample is awaited as after a prefill."""
    scheduler = restoring(9, sequence(1, num_prompt=9))
    step = next_step(scheduler)
    assert step.slices == (Slice(1, Phase.TRY_RESTORE_DECODE, 0, 9, True, num_restored=8),)
    assert len(step.token_ids) == 9 and scheduler.next_step(0.0) is None
    scheduler.complete(sampled(step))
    assert next_step(scheduler).slices == (Slice(1, Phase.DECODE, 9, 1, True),)


def test_a_prompt_that_is_partly_held_is_restored_and_prefilled_in_one_step() -> None:
    """What is restored takes no room of the chunk."""
    scheduler = restoring(40, sequence(1, num_prompt=80), size=limits(chunk_tokens=32))
    step = next_step(scheduler)
    assert step.slices == (
        Slice(1, Phase.TRY_RESTORE, 0, 40, False, num_restored=40),
        Slice(1, Phase.PREFILL, 40, 32, False),
    )
    assert next_step(scheduler).slices == (Slice(1, Phase.PREFILL, 72, 8, True),)


def test_a_prompt_of_one_token_has_nothing_to_restore() -> None:
    scheduler = restoring(9, sequence(1, num_prompt=1))
    assert next_step(scheduler).slices == (Slice(1, Phase.PREFILL, 0, 1, True),)


def test_a_prompt_without_an_answer_is_restored_all_the_same() -> None:
    """It samples nothing and ends."""
    scheduler = restoring(9, sequence(1, num_prompt=9, max_tokens=0))
    step = next_step(scheduler)
    assert step.slices == (Slice(1, Phase.TRY_RESTORE_DECODE, 0, 9, False, num_restored=8),)
    assert step.finishes == (SequenceFinish(1, FinishReason.LENGTH),)


def test_after_a_miss_no_more_is_asked_for_than_all_stages_hold() -> None:
    """The stage that missed says what it holds, and the tail what those behind it hold."""
    scheduler = restoring(8, first := sequence(1, num_prompt=9))
    step = next_step(scheduler)
    scheduler.miss(Miss(step.step_id, 1, 6))
    scheduler.complete(StepResult(step.step_id, (), (), (Restored(1, 4),)))
    again = next_step(scheduler)
    assert again.releases == (1,)
    assert again.slices == (
        Slice(1, Phase.TRY_RESTORE, 0, 4, False, num_restored=4),
        Slice(1, Phase.PREFILL, 4, 5, True),
    )
    scheduler.miss(Miss(again.step_id, 1, 0))
    assert next_step(scheduler).slices == (Slice(1, Phase.PREFILL, 0, 9, True),)
    assert first.restore_limit == 0


def test_one_that_was_preempted_before_its_miss_arrives_runs_again() -> None:
    """Of a missed slice nothing is drawn, so nothing else would tell it that its step is over."""
    slow, other = sequence(1, num_prompt=9), sequence(2, num_prompt=9)
    scheduler = restoring(9, slow, size=limits(num_blocks=6))
    first = next_step(scheduler)
    slow.is_paused = True
    scheduler.add(other)
    second = next_step(scheduler)
    assert second.releases == (1,), "a paused one makes way"
    scheduler.miss(Miss(first.step_id, 1, 0))
    scheduler.complete(StepResult(first.step_id, (), (), (Restored(1, 0),)))
    scheduler.complete(sampled(second, finish=FinishReason.LENGTH))
    slow.is_paused = False
    assert [span.seq_id for span in next_step(scheduler).slices] == [1]


def test_what_this_steps_releases_leave_behind_can_be_restored_in_it() -> None:
    """They are told before the step is made, so that they are done when the prompt is looked up."""
    released: list[int] = []

    def lookup(_token_ids: Items[int], limit: int) -> int:
        return limit if released == [1] else 0

    scheduler = Scheduler(limits(num_stages=1), lookup)
    scheduler.add(sequence(1))
    first = next_step(scheduler)
    scheduler.complete(sampled(first, finish=FinishReason.LENGTH))
    scheduler.add(sequence(2, num_prompt=6))
    released += scheduler.releases
    step_id, step = scheduler.next_step_id, next_step(scheduler)
    assert (step.step_id, step.releases) == (step_id, (1,))
    assert step.slices == (Slice(2, Phase.TRY_RESTORE_DECODE, 0, 6, True, num_restored=5),)


def test_an_overdue_step_is_found() -> None:
    """The oldest in flight counts from its launch."""
    scheduler = scheduler_of(limits(), sequence(1))
    step = scheduler.next_step(10.0)
    assert step is not None
    assert scheduler.overdue_step(15.0, deadline_s=5.0) is None
    assert scheduler.overdue_step(15.1, deadline_s=5.0) == step.step_id


class AnyOrder(RuleBasedStateMachine):
    """Whatever comes in whatever order: every stage could execute the steps, and every sequence ends."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(limits(num_stages=2, num_blocks=12, max_sequences=3, chunk_tokens=32))
        self.next_id = 1
        self.live: dict[int, Sequence] = {}
        self.generated: dict[int, int] = {}
        self.in_flight: list[Step] = []
        self.held: dict[int, int] = {}
        self.ended: set[int] = set()
        self.known: set[int] = set()

    @rule(num_prompt=st.integers(1, 30), max_tokens=st.integers(0, 8))
    def arrive(self, num_prompt: int, max_tokens: int) -> None:
        item = sequence(self.next_id, num_prompt, max_tokens)
        self.next_id += 1
        self.live[item.seq_id] = item
        self.scheduler.add(item)

    @rule()
    def launch(self) -> None:
        step = self.scheduler.next_step(0.0)
        if step is not None:
            self.in_flight.append(step)
            self.apply_to_stage(step)

    def apply_to_stage(self, step: Step) -> None:
        """A stage that is never ahead and never behind, and never out of blocks."""
        for seq_id in step.releases:
            self.held.pop(seq_id, None)
        self.known |= {start.seq_id for start in step.starts}
        for span in step.slices:
            assert self.held.get(span.seq_id, 0) == span.pos_start, span
            assert span.seq_id in self.known
            self.held[span.seq_id] = span.pos_start + span.num_tokens
        assert sum(-(-length // 4) for length in self.held.values()) <= 12
        assert {finish.seq_id for finish in step.finishes} <= self.known

    @precondition(lambda self: self.in_flight)
    @rule(stop=st.booleans())
    def complete(self, stop: bool) -> None:
        step = self.in_flight.pop(0)
        results = []
        for span in step.slices:
            if span.sample and span.seq_id not in self.ended:
                count = self.generated[span.seq_id] = self.generated.get(span.seq_id, 0) + 1
                is_over = stop or count >= self.live[span.seq_id].max_tokens
                reason = FinishReason.STOP if is_over else None
                results.append(SequenceResult(span.seq_id, (7,), reason))
        finished_now = {r.seq_id for r in results if r.finish_reason}
        over = self.ended | finished_now
        results += [SequenceResult(f.seq_id, (), f.finish_reason) for f in step.finishes if f.seq_id not in over]
        reported = {s.seq_id for s, _ in self.scheduler.complete(StepResult(step.step_id, tuple(results), ()))}
        assert reported == {r.seq_id for r in results if r.finish_reason}
        self.ended |= reported

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.live)))
        if seq_id not in self.ended:
            self.scheduler.finish(self.live[seq_id], SequenceFinish(seq_id, FinishReason.CANCELLED))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), paused=st.booleans())
    def pause(self, data: st.DataObject, paused: bool) -> None:
        self.live[data.draw(st.sampled_from(sorted(self.live)))].is_paused = paused

    @invariant()
    def books_add_up(self) -> None:
        self.scheduler.check_invariants()

    def teardown(self) -> None:
        """With nobody paused, everything ends in bounded time and no block stays taken."""
        for item in self.live.values():
            item.is_paused = False
        for _ in range(2000):
            self.launch()
            if not self.in_flight:
                break
            self.complete(stop=False)
        assert self.ended == set(self.live)
        assert self.held == {} and self.scheduler.blocks.num_free == 12
        assert all(item.state is SequenceState.ENDED for item in self.live.values())


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
