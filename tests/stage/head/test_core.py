"""The head: takes each request once, refuses by name what cannot run, reports endings until they are noted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stagewire.stage.head.core import HeadCore
from stagewire.stage.head.limits import HeadLimits
from stagewire.stage.schedule.limits import SchedulerLimits
from stagewire.wire.control import Fault, GenerateAck, RequestEnded, RequestEndedAck, RunningRequest
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import FinishReason, Usage
from stagewire.wire.ring import (
    CancelRequest,
    Flow,
    Miss,
    SequenceFinish,
    SequenceResult,
    StartRequest,
    StepResult,
)
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import TokenIds

EPOCH = Epoch(1, 1)


def head(num_blocks: int = 100, context_length: int = 64) -> HeadCore:
    scheduler = SchedulerLimits(
        num_stages=2,
        num_blocks=num_blocks,
        block_size=4,
        max_sequences=8,
        chunk_tokens=64,
        chunk_target_s=1.0,
    )
    limits = HeadLimits(
        scheduler=scheduler,
        context_length=context_length,
        vocab_size=1000,
        end_token_ids=(2,),
        step_deadline_s=5.0,
    )
    return HeadCore(EPOCH, limits)


def start(request_id: str = "r", prompt: list[int] | None = None, max_tokens: int | None = 5) -> StartRequest:
    token_ids = TokenIds.of([5, 6, 7] if prompt is None else prompt)
    return StartRequest(request_id, "c", "s", SamplingParams(seed=1), max_tokens, (9,), False, None, token_ids)


def ack(request_id: str = "r", code: ErrorCode | None = None, detail: str = "") -> GenerateAck:
    return GenerateAck(request_id, EPOCH, code, detail)


def test_a_request_is_acknowledged_and_scheduled() -> None:
    """The model's end tokens join the request's own stop tokens."""
    core = head()
    assert core.handle(start(), 0.0) == [ack()]
    assert core.requests == (RunningRequest("r", "c", "s"),)
    step = core.next_step(0.0)
    assert step is not None and step.starts[0].stop_token_ids == (9, 2)


def test_a_repeated_request_is_acknowledged_again_and_runs_once() -> None:
    """Before, while and after it runs, also when its ending has been noted."""
    core = head()
    assert core.handle(start(), 0.0) == core.handle(start(), 0.1) == [ack()]
    step = core.next_step(0.0)
    assert step is not None and len(step.starts) == 1
    result = SequenceResult(1, (2,), FinishReason.STOP, None, Usage(3, 1))
    ended = RequestEnded("r", EPOCH, FinishReason.STOP, None, Usage(3, 1))
    assert core.handle(StepResult(step.step_id, (result,), ()), 1.0) == [ended]
    assert core.handle(start(), 1.1) == [ack()]
    core.handle(RequestEndedAck("r"), 1.2)
    assert core.handle(start(), 1.3) == [ack()]
    assert core.requests == ()
    core.check_invariants()


def test_endings_are_reported_until_noted() -> None:
    """Once a second, and never again after the acknowledgement."""
    core = head()
    core.handle(start(max_tokens=0), 0.0)
    step = core.next_step(0.0)
    assert step is not None
    result = SequenceResult(1, (), FinishReason.LENGTH, None, Usage(3, 0))
    (report,) = core.handle(StepResult(step.step_id, (result,), ()), 1.0)
    assert core.tick(1.5) == []
    assert core.tick(2.0) == [report]
    core.handle(RequestEndedAck("r"), 2.1)
    assert core.tick(9.0) == []


def test_a_cancel_may_overtake_its_request() -> None:
    """The head remembers it for a minute; the request then only starts to be ended by the tail."""
    core = head()
    core.handle(CancelRequest("r"), 0.0)
    core.tick(59.0)
    assert core.handle(start(), 59.0) == [ack()]
    step = core.next_step(59.0)
    assert step is not None
    assert (step.slices, step.finishes) == ((), (SequenceFinish(1, FinishReason.CANCELLED),))


def test_a_stop_string_that_the_client_has_found_finishes_the_request_as_a_stop() -> None:
    """With the number of tokens that are the answer; a second word changes nothing, and the report says stop."""
    core = head()
    core.handle(start(), 0.0)
    step = core.next_step(0.0)
    assert step is not None
    core.handle(StepResult(step.step_id, (SequenceResult(1, (7,), None),), ()), 0.1)
    core.handle(CancelRequest("r", stop_after=1), 0.2)
    core.handle(CancelRequest("r"), 0.2)
    step = core.next_step(0.3)
    assert step is not None and step.finishes == (SequenceFinish(1, FinishReason.STOP, stop_after=1),)
    result = SequenceResult(1, (), FinishReason.STOP, None, Usage(3, 1))
    (report,) = core.handle(StepResult(step.step_id, (result,), ()), 0.4)
    assert report == RequestEnded("r", EPOCH, FinishReason.STOP, None, Usage(3, 1))


def test_a_tombstone_is_forgotten_after_a_minute() -> None:
    """Then the id is new again."""
    core = head()
    core.handle(CancelRequest("r"), 0.0)
    core.tick(60.0)
    core.handle(start(), 60.0)
    step = core.next_step(60.0)
    assert step is not None and len(step.slices) == 1


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (start(prompt=[], max_tokens=5), ErrorCode.DECODE_SEED_MISSING),
        (start(prompt=[], max_tokens=None), ErrorCode.DECODE_SEED_MISSING),
        (start(prompt=[1000]), ErrorCode.TOKEN_OUT_OF_VOCABULARY),
        (start(prompt=[-1]), ErrorCode.TOKEN_OUT_OF_VOCABULARY),
        (start(prompt=[1] * 60, max_tokens=4), ErrorCode.CONTEXT_OVERFLOW),
        (start(prompt=[1] * 63, max_tokens=None), ErrorCode.CONTEXT_OVERFLOW),
        (
            replace(start(), sampling=SamplingParams(seed=1, logit_bias=((1000, 1.0),))),
            ErrorCode.TOKEN_OUT_OF_VOCABULARY,
        ),
    ],
)
def test_what_cannot_run_is_refused_by_name(request_: StartRequest, code: ErrorCode) -> None:
    """Nothing of it is kept."""
    core = head()
    (answer,) = core.handle(request_, 0.0)
    assert isinstance(answer, GenerateAck) and answer.code is code and answer.detail
    assert core.requests == () and core.next_step(0.0) is None


def test_more_stop_tokens_than_a_step_could_carry_are_refused() -> None:
    """A list beyond the codec's limit would make the step unreadable, and end everybody's epoch."""
    many = replace(start(), stop_token_ids=tuple(range(1025)))
    (answer,) = head().handle(many, 0.0)
    assert isinstance(answer, GenerateAck)
    assert answer.code is ErrorCode.INVALID_REQUEST


def test_the_context_rule_is_exact() -> None:
    """prompt + max_tokens + 1 may equal the context."""
    assert head().handle(start(prompt=[1] * 60, max_tokens=3), 0.0) == [ack()]


def test_a_request_that_no_pool_could_hold_is_refused() -> None:
    """It would be preempted for ever."""
    (answer,) = head(num_blocks=2).handle(start(prompt=[1] * 6, max_tokens=3), 0.0)
    assert isinstance(answer, GenerateAck) and answer.code is ErrorCode.CONTEXT_OVERFLOW


def test_an_omitted_budget_runs_to_the_end_of_the_context() -> None:
    """One token of the context stays free, as with an explicit budget."""
    core = head()
    core.handle(start(prompt=[1] * 60, max_tokens=None), 0.0)
    step = core.next_step(0.0)
    assert step is not None and step.starts[0].max_tokens == 3


def test_an_empty_prompt_that_wants_nothing_ends_at_once() -> None:
    """No slice, one ending, written by the tail like any other."""
    core = head()
    assert core.handle(start(prompt=[], max_tokens=0), 0.0) == [ack()]
    step = core.next_step(0.0)
    assert step is not None and step.finishes == (SequenceFinish(1, FinishReason.LENGTH),)


def test_an_overdue_step_is_a_fault() -> None:
    """The ring never stalls silently."""
    core = head()
    core.handle(start(), 0.0)
    core.next_step(0.0)
    assert core.tick(5.0) == []
    (fault,) = core.tick(5.1)
    assert isinstance(fault, Fault) and fault.code is ErrorCode.STAGE_LOST


def test_a_paused_request_waits_and_goes_on() -> None:
    """`Flow` stops and starts its scheduling; unknown ids and misses are ignored."""
    core = head()
    core.handle(start(), 0.0)
    core.handle(Flow("r", True), 0.0)
    core.handle(Flow("unknown", True), 0.0)
    core.handle(Miss(1, 99, 0), 0.0)
    assert core.next_step(0.0) is None
    core.handle(Flow("r", False), 0.0)
    assert core.next_step(0.0) is not None
