"""What the broker refuses, with which code, and that nothing of it is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.broker_world import FIRST, LAST, STAGE, CheckedCore, client_peer, failed

from stagewire.broker.events import DropPayload, Instruction, KeepPayload, PushStart, Send
from stagewire.broker.settings import BrokerSettings
from stagewire.wire.control import Assembled, RequestEnded
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import Accepted, Cancel, ClientPing, Ended, Refused
from stagewire.wire.request import FinishReason, Usage

EPOCH = Epoch(7, 1)


def ready(**limits: int) -> CheckedCore:
    broker = CheckedCore(BrokerSettings(**limits))  # type: ignore[arg-type]
    broker.settle()
    broker.hello("c")
    return broker


def refusal(instructions: list[Instruction]) -> tuple[ErrorCode, str]:
    """Of an answer that is a refusal and nothing else."""
    (answer,) = instructions
    assert isinstance(answer, Send)
    assert isinstance(answer.message, Refused)
    return answer.message.code, answer.message.detail


def is_accepted(instructions: list[Instruction]) -> bool:
    return isinstance(instructions[0], KeepPayload)


def test_an_empty_prompt_has_no_token_to_start_from_unless_nothing_is_asked_for() -> None:
    broker = ready()
    code, detail = refusal(broker.ask("c", "r1", num_prompt_tokens=0))
    assert code is ErrorCode.DECODE_SEED_MISSING
    assert "no token to start decoding from" in detail
    code, _ = refusal(broker.ask("c", "r2", num_prompt_tokens=0, max_tokens=None))
    assert code is ErrorCode.DECODE_SEED_MISSING
    assert is_accepted(broker.ask("c", "r3", num_prompt_tokens=0, max_tokens=0))


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "fits"),
    [(90, 9, True), (90, 10, False), (99, 0, True), (100, 0, False), (98, None, True), (99, None, False)],
)
def test_prompt_and_max_tokens_and_one_must_fit_the_context(
    num_prompt: int, max_tokens: int | None, fits: bool
) -> None:
    """The context is 100; an omitted `max_tokens` needs room for one new token."""
    broker = ready()
    broker.serve(FIRST, LAST)
    answer = broker.ask("c", "r1", num_prompt_tokens=num_prompt, max_tokens=max_tokens)
    if fits:
        assert is_accepted(answer)
    else:
        code, detail = refusal(answer)
        assert code is ErrorCode.CONTEXT_OVERFLOW
        assert "at most the context of 100 tokens" in detail


def test_an_unknown_model_is_refused_with_the_names_of_those_served() -> None:
    broker = ready()
    broker.serve(FIRST, LAST)
    assert refusal(broker.ask("c", "r1", model="big")) == (
        ErrorCode.UNKNOWN_MODEL,
        "model 'big' is not served; served are: tiny",
    )
    assert is_accepted(broker.ask("c", "r2", model="tiny"))


def test_before_any_stage_a_request_is_queued_and_its_length_checked_at_dispatch() -> None:
    broker = ready()
    assert is_accepted(broker.ask("c", "long", num_prompt_tokens=95))
    assert is_accepted(broker.ask("c", "short"))
    broker.register(FIRST, LAST)
    broker.pass_time(0.1)
    detail = "prompt of 95 tokens, max_tokens 5: prompt + max_tokens + 1 must be at most the context of 100 tokens"
    broker.from_stage("s0", Assembled(EPOCH))
    served = broker.from_stage("s1", Assembled(EPOCH))
    assert served[1:] == [
        DropPayload("long"),
        Send(client_peer("c"), Ended("long", failed("context_overflow", detail, 95))),
        PushStart(EPOCH, "short", "c", "session", 42, None, admission_s=0.125),
    ]


def test_a_request_for_a_model_that_never_comes_ends_as_unknown() -> None:
    broker = ready()
    broker.ask("c", "r1", model="big")
    broker.serve(STAGE)
    broker.pass_time(9.0, alive=(STAGE,))
    broker.from_client("c", ClientPing())
    ended = broker.pass_time(1.5, alive=(STAGE,))
    detail = "model 'big' is not served; served are: tiny"
    assert ended == [
        DropPayload("r1"),
        Send(client_peer("c"), Ended("r1", failed("unknown_model", detail))),
    ]


def test_a_thousand_concurrent_requests_of_one_client_fit() -> None:
    broker = ready()
    assert all(is_accepted(broker.ask("c", f"r{number}")) for number in range(1000))


def test_queue_client_and_byte_limits_refuse_retryably() -> None:
    broker = ready(max_queued=2, max_requests_per_client=2, max_queued_bytes=1024)
    broker.hello("d")
    assert is_accepted(broker.ask("c", "r1"))
    assert refusal(broker.ask("c", "big", payload_bytes=1000))[0] is ErrorCode.QUEUE_FULL
    assert is_accepted(broker.ask("c", "r2"))
    assert refusal(broker.ask("c", "r3"))[0] is ErrorCode.CLIENT_LIMIT
    assert refusal(broker.ask("d", "r4"))[0] is ErrorCode.QUEUE_FULL
    broker.from_client("c", Cancel("r1"))
    assert is_accepted(broker.ask("d", "r5"))


def test_a_refusal_stays_a_refusal_for_its_id() -> None:
    """Else a resend that crosses the refusal would run a request whose client has given up on it."""
    broker = ready(max_queued=1)
    broker.ask("c", "r1")
    first = broker.ask("c", "r2")
    broker.from_client("c", Cancel("r1"))
    assert broker.ask("c", "r2") == first
    assert is_accepted(broker.ask("c", "r3"))


def test_while_the_memory_of_endings_is_full_nothing_more_is_accepted() -> None:
    broker = ready(max_finished=1024, max_requests_per_client=2048)
    for number in range(1024):
        assert is_accepted(broker.ask("c", f"r{number}"))
        broker.from_client("c", Cancel(f"r{number}"))
    code, detail = refusal(broker.ask("c", "more"))
    assert (code, detail) == (
        ErrorCode.QUEUE_FULL,
        "1024 requests are running or ended within the last minute",
    )
    broker.pass_time(61.0)
    broker.hello("c")
    assert is_accepted(broker.ask("c", "later"))


def test_ids_have_limits() -> None:
    broker = ready()
    assert refusal(broker.ask("c", "r" * 65))[0] is ErrorCode.INVALID_REQUEST
    assert refusal(broker.ask("c", ""))[0] is ErrorCode.INVALID_REQUEST
    assert refusal(broker.ask("c", "r1", session_id="s" * 257))[0] is ErrorCode.INVALID_REQUEST
    assert refusal(broker.ask("c", "r2", num_prompt_tokens=1 << 21))[0] is ErrorCode.CONTEXT_OVERFLOW


def test_a_model_that_left_is_still_judged_by() -> None:
    """The last known models say what may be asked; the request then waits for the pipeline."""
    broker = ready()
    broker.serve(STAGE)
    broker.pass_time(3.0)
    broker.hello("c")
    assert refusal(broker.ask("c", "r1", max_tokens=200))[0] is ErrorCode.CONTEXT_OVERFLOW
    assert broker.ask("c", "r2")[-1] == Send(client_peer("c"), Accepted("r2", 42))


def test_two_models_are_served_side_by_side() -> None:
    """A full pipeline of one model does not hold up the other's requests."""
    other = replace(STAGE, stage_id="s9", model_name="other", model_digest="d9", context_length=500)
    broker = ready()
    first, second = broker.serve(STAGE), broker.serve(other)
    for number in range(16):
        broker.ask("c", f"t{number}", model="tiny")
        broker.acknowledge(f"t{number}", first)
    broker.ask("c", "t16", model="tiny")
    assert broker.ask("c", "o1", model="other")[-1] == PushStart(second, "o1", "c", "session", 42, None)
    long = broker.ask("c", "o2", num_prompt_tokens=300)[-1]
    assert long == PushStart(second, "o2", "c", "session", 42, None), "any model will do: the one it fits"
    ended = broker.from_stage("s0", RequestEnded("t0", first, FinishReason.STOP, None, Usage(3, 1)))
    assert ended[-1] == PushStart(first, "t16", "c", "session", 42, None)
