"""A request's life through the broker's core, and the instructions that each event brings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.broker_world import FIRST, LAST, STAGE, CheckedCore, client_peer, failed, offer, stage_peer

from stagewire.broker.events import (
    DropPayload,
    FeedOverflowed,
    Instruction,
    KeepPayload,
    OpenFeed,
    PushCancel,
    PushStart,
    Send,
    Stop,
    Unreadable,
)
from stagewire.broker.pipeline import kv_numerics
from stagewire.broker.settings import BrokerSettings
from stagewire.wire.codec import Message
from stagewire.wire.control import Assemble, Assembled, GenerateAck, Registered, RequestEnded, RequestEndedAck
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import (
    Accepted,
    BadMessage,
    Cancel,
    ClientHello,
    ClientPing,
    Dispatched,
    Ended,
    GetStatus,
    Refused,
    WhoAreYou,
)
from stagewire.wire.request import Ending, FinishReason, Usage
from stagewire.wire.status import Status

EPOCH = Epoch(7, 1)


def to_client(name: str, *messages: Message) -> list[Instruction]:
    return [Send(client_peer(name), message) for message in messages]


def to_stage(name: str, *messages: Message) -> list[Instruction]:
    return [Send(stage_peer(name), message) for message in messages]


def start(request_id: str, client: str = "c", with_offer: int | None = None) -> PushStart:
    wanted = None if with_offer is None else offer(with_offer)
    return PushStart(EPOCH, request_id, client, "session", 42, wanted)


def ended_by_tail(request_id: str, epoch: Epoch = EPOCH) -> RequestEnded:
    return RequestEnded(request_id, epoch, FinishReason.LENGTH, None, Usage(3, 5))


@pytest.fixture
def broker() -> CheckedCore:
    """A broker whose grace period is over, without stages or clients."""
    broker = CheckedCore()
    broker.settle()
    return broker


@pytest.fixture
def serving(broker: CheckedCore) -> CheckedCore:
    """Two stages serve EPOCH and client `c` with offer 1 has said hello."""
    assert broker.serve(FIRST, LAST) == EPOCH
    broker.hello("c", generation=1)
    return broker


# --- assembly ---


def test_two_stages_are_assembled_and_serve_once_both_have_answered(broker: CheckedCore) -> None:
    assert broker.register(LAST) == to_stage("s1", Registered(7, None))
    assert broker.register(FIRST) == to_stage("s0", Registered(7, None))
    feed, hop = FIRST.data_endpoint, LAST.data_endpoint
    assert broker.pass_time(0.1) == [
        *to_stage("s0", Assemble(EPOCH, 0, 2, feed, hop, 32, 48, kv_numerics([FIRST]))),
        *to_stage("s1", Assemble(EPOCH, 1, 2, feed, None, 32, 48, kv_numerics([FIRST, LAST]))),
    ]
    assert broker.from_stage("s1", Assembled(EPOCH)) == []
    assert broker.from_stage("s0", Assembled(EPOCH)) == [OpenFeed(EPOCH, feed, run=7)]


def test_a_starting_broker_assembles_nothing_before_the_grace_period_is_over() -> None:
    broker = CheckedCore()
    broker.register(STAGE)
    assert broker.pass_time(2.9, alive=(STAGE,)) == []
    only = Assemble(EPOCH, 0, 1, STAGE.data_endpoint, None, 64, 48, kv_numerics([STAGE]))
    assert broker.pass_time(0.1) == to_stage("s0", only)


def test_the_key_of_kv_blocks_tells_tensors_and_arithmetic_of_this_and_all_earlier_stages_apart() -> None:
    """Other weights under the same name are another key, also where they are another stage's."""
    assert kv_numerics([FIRST, LAST]) == kv_numerics([FIRST, LAST])
    others = [
        [FIRST],
        [replace(FIRST, tensors_digest="t2"), LAST],
        [FIRST, replace(LAST, tensors_digest="t2")],
        [replace(FIRST, fingerprint="f2"), LAST],
        [FIRST, replace(LAST, block_size=32)],
    ]
    assert len({kv_numerics(infos) for infos in [[FIRST, LAST], *others]}) == len(others) + 1


def test_replicas_become_two_pipelines_and_load_is_spread(broker: CheckedCore) -> None:
    other = replace(STAGE, stage_id="s9", data_endpoint="tcp://127.0.0.1:9009")
    broker.register(STAGE, other)
    broker.pass_time(0.1)
    broker.from_stage("s0", Assembled(Epoch(7, 1)))
    broker.from_stage("s9", Assembled(Epoch(7, 2)))
    broker.hello("c")
    pushed = [broker.ask("c", f"r{number}", session_id=f"q{number}")[-1] for number in range(4)]
    assert [push.epoch.counter for push in pushed if isinstance(push, PushStart)] == [1, 2, 1, 2]
    follow_up = broker.ask("c", "again", session_id="q3")[-1]
    assert isinstance(follow_up, PushStart)
    assert follow_up.epoch == Epoch(7, 2), "a session stays where its prefix is cached"


# --- a request's life ---


def test_a_request_is_accepted_pushed_acknowledged_and_ended_by_the_tail(serving: CheckedCore) -> None:
    assert serving.ask("c", "r1") == [
        KeepPayload("r1", "tokens of r1"),
        *to_client("c", Accepted("r1", 42)),
        start("r1", with_offer=1),
    ]
    assert serving.acknowledge("r1", EPOCH) == [
        DropPayload("r1"),
        *to_client("c", Dispatched("r1", EPOCH, 1)),
    ]
    assert serving.from_stage("s0", ended_by_tail("r1")) == to_stage("s0", RequestEndedAck("r1"))


def test_only_a_clients_first_request_in_an_epoch_consumes_its_offer(serving: CheckedCore) -> None:
    serving.ask("c", "r1")
    assert serving.ask("c", "r2")[-1] == start("r2")
    assert serving.acknowledge("r2", EPOCH)[-1:] == to_client("c", Dispatched("r2", EPOCH, None))


def test_a_resend_gets_the_same_answers_and_is_never_run_twice(serving: CheckedCore) -> None:
    serving.ask("c", "r1")
    assert serving.ask("c", "r1", seed=99) == to_client("c", Accepted("r1", 42))
    serving.acknowledge("r1", EPOCH)
    both = to_client("c", Accepted("r1", 42), Dispatched("r1", EPOCH, 1))
    assert serving.ask("c", "r1") == both
    serving.from_stage("s0", ended_by_tail("r1"))
    serving.pass_time(50, alive=(FIRST, LAST))
    serving.hello("c")
    assert serving.ask("c", "r1") == both, "an ended request is remembered for 60 s"


def test_an_unacknowledged_start_is_pushed_again_every_second(serving: CheckedCore) -> None:
    serving.ask("c", "r1")
    alive = (FIRST, LAST)
    assert serving.pass_time(0.9, alive) == []
    assert serving.pass_time(2.0, alive) == [start("r1", with_offer=1)] * 2
    serving.acknowledge("r1", EPOCH)
    assert serving.acknowledge("r1", EPOCH) == [], "a second acknowledgement changes nothing"
    assert serving.pass_time(2.0, alive) == []


def test_an_ending_is_acknowledged_each_time_it_is_reported(serving: CheckedCore) -> None:
    serving.ask("c", "r1")
    lost_acknowledgement = [
        DropPayload("r1"),
        *to_client("c", Dispatched("r1", EPOCH, 1)),
        *to_stage("s0", RequestEndedAck("r1")),
    ]
    once = serving.from_stage("s0", ended_by_tail("r1"))
    assert sorted(map(repr, once)) == sorted(map(repr, lost_acknowledgement))
    assert serving.from_stage("s0", ended_by_tail("r1")) == to_stage("s0", RequestEndedAck("r1"))
    assert serving.from_stage("s0", ended_by_tail("nobody")) == to_stage("s0", RequestEndedAck("nobody"))


def test_a_request_that_the_head_refuses_fails_and_its_offer_is_good_again(serving: CheckedCore) -> None:
    serving.ask("c", "r1")
    refusal = GenerateAck("r1", EPOCH, ErrorCode.TOKEN_OUT_OF_VOCABULARY, "token 5000")
    assert serving.from_stage("s0", refusal) == [
        DropPayload("r1"),
        *to_client("c", Ended("r1", failed("token_out_of_vocabulary", "token 5000"))),
    ]
    assert serving.ask("c", "r2")[-1] == start("r2", with_offer=1)


def test_an_answer_of_another_epoch_changes_nothing(serving: CheckedCore) -> None:
    serving.ask("c", "r1")
    assert serving.acknowledge("r1", Epoch(7, 99)) == []
    other = ended_by_tail("r1", Epoch(7, 99))
    assert serving.from_stage("s0", other) == to_stage("s0", RequestEndedAck("r1"))
    assert serving.acknowledge("r1", EPOCH) != []


# --- cancelling ---


def cancelled() -> Ending:
    return Ending(FinishReason.CANCELLED, None, Usage(3, 0))


def test_a_queued_request_is_cancelled_by_the_broker(broker: CheckedCore) -> None:
    broker.hello("c")
    broker.ask("c", "r1")
    ended = [DropPayload("r1"), *to_client("c", Ended("r1", cancelled()))]
    assert broker.from_client("c", Cancel("r1")) == ended
    assert broker.from_client("c", Cancel("r1")) == []
    assert broker.ask("c", "r1") == to_client("c", Accepted("r1", 42), Ended("r1", cancelled()))


def test_a_pushed_request_is_cancelled_through_the_ring(serving: CheckedCore) -> None:
    serving.ask("c", "r1")
    assert serving.from_client("c", Cancel("r1")) == [DropPayload("r1"), PushCancel(EPOCH, "r1")]
    assert serving.from_client("c", Cancel("r1")) == []
    assert serving.acknowledge("r1", EPOCH) == to_client("c", Dispatched("r1", EPOCH, 1))
    assert serving.from_stage("s0", ended_by_tail("r1")) == to_stage("s0", RequestEndedAck("r1"))


def test_a_running_request_is_cancelled_through_the_ring(serving: CheckedCore) -> None:
    serving.ask("c", "r1")
    serving.acknowledge("r1", EPOCH)
    assert serving.from_client("c", Cancel("r1")) == [PushCancel(EPOCH, "r1")]


@pytest.mark.parametrize("stop_after", [1, 7])
def test_a_stop_string_goes_through_the_ring_as_such(serving: CheckedCore, stop_after: int) -> None:
    """The first word counts: a stop that was asked for twice, or a cancel behind it, is sent once."""
    serving.ask("c", "r1")
    serving.acknowledge("r1", EPOCH)
    assert serving.from_client("c", Cancel("r1", stop_after)) == [PushCancel(EPOCH, "r1", stop_after)]
    assert serving.from_client("c", Cancel("r1")) == []
    serving.from_stage("s0", RequestEnded("r1", EPOCH, FinishReason.STOP, None, Usage(3, stop_after)))
    assert serving.core.state.measures.succeeded == {FinishReason.STOP: 1}


def test_a_stop_string_that_the_head_never_heard_of_is_still_a_stop(serving: CheckedCore) -> None:
    """Its pipeline has gone first, or refuses; the client has its answer."""
    serving.ask("c", "r1")
    serving.from_client("c", Cancel("r1", stop_after=4))
    refusal = GenerateAck("r1", EPOCH, ErrorCode.TOKEN_OUT_OF_VOCABULARY, "token 5000")
    stopped = Ending(FinishReason.STOP, None, Usage(3, 4))
    assert serving.from_stage("s0", refusal) == to_client("c", Ended("r1", stopped))


def test_a_cancelled_request_that_the_head_refuses_ends_as_cancelled(serving: CheckedCore) -> None:
    serving.ask("c", "r1")
    serving.from_client("c", Cancel("r1"))
    refusal = GenerateAck("r1", EPOCH, ErrorCode.TOKEN_OUT_OF_VOCABULARY, "token 5000")
    assert serving.from_stage("s0", refusal) == to_client("c", Ended("r1", cancelled()))


def test_nobody_cancels_or_reuses_anothers_request(serving: CheckedCore) -> None:
    serving.ask("c", "r1")
    serving.hello("mallory")
    assert serving.from_client("mallory", Cancel("r1")) == []
    detail = "request_id belongs to another client"
    assert serving.ask("mallory", "r1") == to_client("mallory", Refused("r1", ErrorCode.INVALID_REQUEST, detail))


# --- room and credit ---


def test_a_full_pipeline_leaves_the_rest_in_the_queue_and_clients_take_turns(serving: CheckedCore) -> None:
    serving.hello("d")
    for number in range(16):
        assert isinstance(serving.ask("c", f"c{number}")[-1], PushStart)
        serving.acknowledge(f"c{number}", EPOCH)
    for name in ("c16", "c17"):
        assert serving.ask("c", name)[-1:] == to_client("c", Accepted(name, 42))
    serving.ask("d", "d0")
    ended = [serving.from_stage("s0", ended_by_tail(f"c{number}"))[-1] for number in range(3)]
    assert [push.request_id for push in ended if isinstance(push, PushStart)] == ["c16", "d0", "c17"]


def test_starts_take_half_the_credit_so_that_cancels_get_through() -> None:
    broker = CheckedCore(BrokerSettings(feed_credit=4))
    broker.settle()
    broker.serve(FIRST, LAST)
    broker.hello("c")
    answers = [broker.ask("c", f"r{number}")[-1] for number in range(3)]
    assert [isinstance(answer, PushStart) for answer in answers] == [True, True, False]
    assert broker.from_client("c", Cancel("r0"))[-1] == PushCancel(EPOCH, "r0")
    assert broker.from_client("c", Cancel("r1"))[-1] == PushCancel(EPOCH, "r1")
    assert broker.pass_time(1.5, alive=(FIRST, LAST)) == [], "all credit is in use"
    broker.acknowledge("r0", EPOCH)
    assert broker.from_stage("s0", ended_by_tail("r0"))[-1:] == to_stage("s0", RequestEndedAck("r0"))
    pushed = PushStart(EPOCH, "r2", "c", "session", 42, None, admission_s=1.5)
    assert broker.acknowledge("r1", EPOCH)[-1] == pushed, "and its head hears how long it has waited here"


def test_a_head_that_does_not_read_its_feed_loses_its_epoch(serving: CheckedCore) -> None:
    serving.ask("c", "r1")
    assert serving.handle(FeedOverflowed(EPOCH)) != []
    assert serving.handle(FeedOverflowed(EPOCH)) == [], "the epoch is ending already"


# --- limits of waiting ---


def test_a_request_waits_10_s_for_a_pipeline_and_hears_which_layers_nobody_holds(broker: CheckedCore) -> None:
    broker.register(FIRST)
    broker.hello("c")
    broker.ask("c", "r1")
    assert broker.pass_time(9.9, alive=(FIRST,)) == []
    broker.from_client("c", ClientPing())
    lack = "tiny (f32, fingerprint fp): nobody holds layers 15:30 of 30"
    detail = f"no pipeline stood for 10 s: {lack}"
    ended = [DropPayload("r1"), *to_client("c", Ended("r1", failed("no_pipeline", detail)))]
    assert broker.pass_time(0.3, alive=(FIRST,)) == ended


def test_a_request_waits_60_s_for_room_in_a_pipeline_that_stands(serving: CheckedCore) -> None:
    for number in range(16):
        serving.ask("c", f"r{number}")
        serving.acknowledge(f"r{number}", EPOCH)
    serving.ask("c", "r16")
    for _ in range(59):
        serving.from_client("c", ClientPing())
        assert serving.pass_time(1.0, alive=(FIRST, LAST)) == []
    serving.from_client("c", ClientPing())
    ended = serving.pass_time(1.2, alive=(FIRST, LAST))
    detail = "all pipelines were full for 60 s"
    assert ended == [DropPayload("r16"), *to_client("c", Ended("r16", failed("queue_timeout", detail)))]


def test_stopping_ends_what_waits_and_refuses_what_comes(broker: CheckedCore) -> None:
    broker.hello("c")
    broker.ask("c", "r1")
    detail = "the broker is shutting down"
    ended = [DropPayload("r1"), *to_client("c", Ended("r1", failed("shutting_down", detail)))]
    assert broker.handle(Stop()) == ended
    assert broker.ask("c", "r2") == to_client("c", Refused("r2", ErrorCode.SHUTTING_DOWN, detail))


# --- bad bytes and strangers ---


def test_strangers_are_asked_who_they_are(broker: CheckedCore) -> None:
    assert broker.from_client("x", ClientPing()) == to_client("x", WhoAreYou())
    assert broker.ask("x", "r1") == to_client("x", WhoAreYou())
    assert broker.from_stage("y", Assembled(EPOCH)) == to_stage("y", WhoAreYou())


def test_bad_bytes_are_answered_and_counted(broker: CheckedCore) -> None:
    bad = Unreadable(client_peer("x"), ErrorCode.PROTOCOL_VERSION, "version 2")
    assert broker.handle(bad) == to_client("x", BadMessage(ErrorCode.PROTOCOL_VERSION, "version 2"))
    misplaced = "this is the broker's control port, for stages; clients use tcp://127.0.0.1:7070"
    assert broker.from_stage("y", ClientHello("c", b"n", None)) == to_stage(
        "y", BadMessage(ErrorCode.INVALID_SETTING, misplaced)
    )
    (status,) = broker.from_client("x", GetStatus())
    assert isinstance(status, Send)
    assert isinstance(status.message, Status)
    assert status.message.num_bad_messages == 2


def test_bad_bytes_that_name_a_request_refuse_it_unless_it_is_accepted(serving: CheckedCore) -> None:
    """A `Refused` for an accepted request would be a second ending."""
    bad = Unreadable(client_peer("c"), ErrorCode.INVALID_REQUEST, "temperature", "r1")
    assert serving.handle(bad) == to_client("c", Refused("r1", ErrorCode.INVALID_REQUEST, "temperature"))
    serving.ask("c", "r1")
    answer = to_client("c", BadMessage(ErrorCode.INVALID_REQUEST, "temperature"))
    assert serving.handle(bad) == answer
    serving.from_stage("s0", ended_by_tail("r1"))
    assert serving.handle(bad) == answer


def test_the_status_says_what_keeps_a_pipeline_from_being_whole(broker: CheckedCore) -> None:
    broker.register(FIRST)
    (status,) = broker.from_client("x", GetStatus())
    assert isinstance(status, Send)
    assert isinstance(status.message, Status)
    assert [stage.info for stage in status.message.stages] == [FIRST]
    assert status.message.waiting_for == "tiny (f32, fingerprint fp): nobody holds layers 15:30 of 30"
