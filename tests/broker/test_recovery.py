"""Stages that fall silent, hang, fail, restart or pretend; and a broker that restarts among living ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.broker_world import FIRST, LAST, STAGE, WHO_LEFT_WHAT, CheckedCore, client_peer, failed, offer, stage_peer

from stagewire.broker.events import (
    CloseFeed,
    DropPayload,
    ForgetPeer,
    Instruction,
    OpenFeed,
    Overflowed,
    PushCancel,
    PushStart,
    Send,
    Tick,
    Unreachable,
)
from stagewire.broker.pipeline import kv_numerics
from stagewire.wire.codec import Message
from stagewire.wire.control import (
    Assemble,
    Assembled,
    AssemblyReport,
    Dissolve,
    Dissolved,
    Fault,
    GenerateAck,
    Heartbeat,
    Register,
    Registered,
    RegisterRefused,
    RequestEnded,
    RequestEndedAck,
    RunningRequest,
    StageBye,
)
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import Accepted, Cancel, ClientPing, Dispatched, Ended, WhoAreYou
from stagewire.wire.request import Ending, FinishReason, Usage

EPOCH = Epoch(7, 1)
OLD = Epoch(5, 3)


def to_stage(name: str, *messages: Message) -> list[Instruction]:
    return [Send(stage_peer(name), message) for message in messages]


def to_client(*messages: Message) -> list[Instruction]:
    return [Send(client_peer("c"), message) for message in messages]


def heartbeat(broker: CheckedCore, name: str, run: int = 1, step_age_s: float | None = None) -> list[Instruction]:
    return broker.from_stage(f"{name} beats", Heartbeat(name, run, 0, step_age_s))


@pytest.fixture
def running() -> CheckedCore:
    """Two stages serve EPOCH and hold request r1 of client c."""
    broker = CheckedCore()
    broker.settle()
    assert broker.serve(FIRST, LAST) == EPOCH
    broker.hello("c", generation=1)
    broker.ask("c", "r1")
    broker.acknowledge("r1", EPOCH)
    return broker


# --- a stage is lost ---


def test_a_killed_stage_ends_its_requests_within_5_s_and_a_new_run_makes_the_pipeline_whole(
    running: CheckedCore,
) -> None:
    assert running.pass_time(2.5, alive=(FIRST,)) == []
    lost = [ForgetPeer(stage_peer("s1")), CloseFeed(EPOCH), *to_stage("s0", Dissolve(EPOCH))]
    assert running.pass_time(0.1, alive=(FIRST,)) == lost
    detail = "stage s1 is lost: silent for 2.6 s"
    assert running.from_stage("s0", Dissolved(EPOCH)) == to_client(Ended("r1", failed("stage_lost", detail)))
    back = replace(LAST, run=2)
    assert running.register(back) == to_stage("s1", Registered(7, None))
    again = Epoch(7, 2)
    assert running.pass_time(0.1) == [
        *to_stage("s0", Assemble(again, 0, 2, FIRST.data_endpoint, LAST.data_endpoint, 32, 48, kv_numerics([FIRST]))),
        *to_stage("s1", Assemble(again, 1, 2, FIRST.data_endpoint, None, 32, 48, kv_numerics([FIRST, LAST]))),
    ]


def test_nothing_ends_before_every_living_stage_is_fenced_and_dissolve_is_repeated(running: CheckedCore) -> None:
    running.from_stage("s1", StageBye("s1", 1))
    alive = (FIRST,)
    assert running.pass_time(0.4, alive) == []
    assert running.pass_time(0.7, alive) == to_stage("s0", Dissolve(EPOCH)) * 2
    ended = running.from_stage("s0", Dissolved(EPOCH))
    assert ended == to_client(Ended("r1", failed("stage_lost", "stage s1 is lost: it left")))
    assert running.from_stage("s0", Dissolved(EPOCH)) == []


def test_a_stage_that_never_answers_dissolve_is_lost_after_5_s(running: CheckedCore) -> None:
    running.from_stage("s1", StageBye("s1", 1))
    told = running.pass_time(4.9, alive=(FIRST,))
    assert set(map(repr, told)) == {repr(one) for one in to_stage("s0", Dissolve(EPOCH))}
    ended = running.pass_time(0.2, alive=(FIRST,))
    assert to_client(Ended("r1", failed("stage_lost", "stage s1 is lost: it left")))[0] in ended
    assert heartbeat(running, "s0") == [Send(stage_peer("s0 beats"), WhoAreYou())]


def test_a_long_step_is_not_taken_for_death_nor_a_hang_for_life(running: CheckedCore) -> None:
    heartbeat(running, "s0")
    heartbeat(running, "s1", step_age_s=59.0)
    assert running.pass_time(0.1) == []
    heartbeat(running, "s1", step_age_s=61.0)
    assert CloseFeed(EPOCH) in running.pass_time(0.1)


def test_a_fault_ends_the_epoch_with_its_code(running: CheckedCore) -> None:
    dissolve = [CloseFeed(EPOCH), *to_stage("s0", Dissolve(EPOCH)), *to_stage("s1", Dissolve(EPOCH))]
    fault = Fault(EPOCH, ErrorCode.DECODE_FAILED, "NaN")
    assert running.from_stage("s1", fault) == dissolve
    assert running.from_stage("s1", fault) == []
    running.from_stage("s0", Dissolved(EPOCH))
    ended = running.from_stage("s1", Dissolved(EPOCH))
    assert ended == to_client(Ended("r1", failed("decode_failed", "stage s1: NaN")))


def test_healthy_stages_go_back_to_the_pool_as_soon_as_each_has_answered(running: CheckedCore) -> None:
    spare = replace(STAGE, stage_id="s2", layer_start=15, data_endpoint="tcp://127.0.0.1:9002")
    running.register(spare)
    running.from_stage("s1", Fault(EPOCH, ErrorCode.STAGE_LOST, "gap"))
    running.from_stage("s0", Dissolved(EPOCH))
    told = running.pass_time(0.1, alive=(FIRST, LAST))
    assert [one.peer for one in told if isinstance(one, Send) and isinstance(one.message, Assemble)] == [
        stage_peer("s0"),
        stage_peer("s2"),
    ]


def test_what_only_the_lost_tail_had_ended_is_ended_for_its_client_too(running: CheckedCore) -> None:
    """The tail's own ending may have died with it; a client that has it ignores the second."""
    running.from_stage("s0", RequestEnded("r1", EPOCH, FinishReason.LENGTH, None, Usage(3, 5)))
    running.from_stage("s0", StageBye("s0", 1))
    detail = "stage s0 is lost: it left"
    ended = Ended("r1", failed("stage_lost", detail, num_prompt_tokens=0))
    assert running.from_stage("s1", Dissolved(EPOCH)) == to_client(ended)
    assert running.ask("c", "r1") == to_client(Accepted("r1", 42), Dispatched("r1", EPOCH, 1), ended)


def test_a_cancelled_request_of_a_lost_pipeline_ends_as_cancelled(running: CheckedCore) -> None:
    running.from_client("c", Cancel("r1"))
    running.from_stage("s0", StageBye("s0", 1))
    ending = Ending(FinishReason.CANCELLED, None, Usage(3, 0))
    assert running.from_stage("s1", Dissolved(EPOCH)) == to_client(Ended("r1", ending))


def test_an_unacknowledged_request_of_a_lost_pipeline_tells_which_offer_it_took() -> None:
    broker = CheckedCore()
    broker.settle()
    broker.serve(STAGE)
    broker.hello("c", generation=1)
    broker.ask("c", "r1")
    ended = broker.from_stage("s0", StageBye("s0", 1))
    failure = failed("stage_lost", "stage s0 is lost: it left")
    assert ended[-3:] == [DropPayload("r1"), *to_client(Dispatched("r1", EPOCH, 1), Ended("r1", failure))]


def test_a_head_that_heartbeats_but_never_acknowledges_loses_its_epoch(running: CheckedCore) -> None:
    running.ask("c", "r2")
    for _ in range(60):
        assert CloseFeed(EPOCH) not in running.pass_time(1.0, alive=(FIRST, LAST))
        running.from_client("c", ClientPing())
    assert CloseFeed(EPOCH) in running.pass_time(1.0, alive=(FIRST, LAST))


def test_an_assembly_that_is_not_answered_ends_after_5_s() -> None:
    broker = CheckedCore()
    broker.settle()
    broker.register(FIRST, LAST)
    broker.pass_time(0.1)
    broker.from_stage("s0", Assembled(EPOCH))
    assert broker.pass_time(4.9, alive=(FIRST, LAST)) == []
    told = broker.pass_time(0.1, alive=(FIRST, LAST))
    assert told == [*to_stage("s0", Dissolve(EPOCH)), *to_stage("s1", Dissolve(EPOCH))]
    broker.from_stage("s0", Dissolved(EPOCH))
    broker.from_stage("s1", Dissolved(EPOCH))
    late = broker.from_stage("s1", Assembled(EPOCH))
    assert late == to_stage("s1", Dissolve(EPOCH)), "it holds an epoch that is over"


def test_silence_is_not_counted_while_the_broker_itself_was_stopped(running: CheckedCore) -> None:
    running.now += 30.0
    assert running.handle(Tick()) == []
    assert running.pass_time(2.0) == []


# --- who a stage is ---


def test_a_restarted_stage_replaces_its_dead_predecessor_after_a_second(running: CheckedCore) -> None:
    back = Register(replace(LAST, run=2), None)
    assert running.from_stage("s1 again", back) == []
    assert running.from_stage("s1 again", back) == [], "it may say so twice"
    assert heartbeat(running, "s1", run=2) == [], "it waits for its answer"
    assert running.pass_time(1.0, alive=(FIRST,)) == []
    replaced = running.pass_time(0.1, alive=(FIRST,))
    assert CloseFeed(EPOCH) in replaced
    assert Send(stage_peer("s1 again"), Registered(7, None)) in replaced


def test_a_restarted_stage_replaces_at_once_one_that_has_been_silent(running: CheckedCore) -> None:
    running.pass_time(1.1, alive=(FIRST,))
    replaced = running.from_stage("s1 again", Register(replace(LAST, run=2), None))
    assert CloseFeed(EPOCH) in replaced
    assert replaced[-1] == Send(stage_peer("s1 again"), Registered(7, None))


def test_a_second_living_stage_of_the_same_name_is_refused(running: CheckedCore) -> None:
    impostor = Register(replace(LAST, run=2), None)
    assert running.from_stage("impostor", impostor) == []
    detail = "another stage named 's1' is alive"
    refused = RegisterRefused(ErrorCode.IDENTITY_IN_USE, detail)
    assert running.from_stage("third", Register(replace(LAST, run=3), None)) == []
    assert heartbeat(running, "s1", run=2) == [Send(stage_peer("s1 beats"), WhoAreYou())]
    assert heartbeat(running, "s1") == [Send(stage_peer("third"), refused)]
    assert running.pass_time(2.0, alive=(FIRST, LAST)) == []


def test_a_stage_keeps_its_place_over_a_new_connection(running: CheckedCore) -> None:
    running.handle(Unreachable(stage_peer("s1")))
    asked = Send(stage_peer("s1 beats"), WhoAreYou())
    assert heartbeat(running, "s1") == [asked]
    report = AssemblyReport(EPOCH, 1, 2, ())
    kept = running.from_stage("s1 anew", Register(LAST, report))
    assert kept == [Send(stage_peer("s1 anew"), Registered(7, EPOCH))]
    assert heartbeat(running, "s1") == []


def test_a_stage_that_says_it_has_left_its_epoch_has_left_it(running: CheckedCore) -> None:
    told = running.register(LAST)
    assert told == [CloseFeed(EPOCH), *to_stage("s0", Dissolve(EPOCH)), *to_stage("s1", Registered(7, None))]
    ended = running.from_stage("s0", Dissolved(EPOCH))
    assert ended == to_client(Ended("r1", failed("stage_lost", "stage s1 has left it")))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"layer_start": 15, "layer_end": 15}, ErrorCode.INVALID_LAYER_RANGE),
        ({"layer_end": 31}, ErrorCode.INVALID_LAYER_RANGE),
        ({"num_layers": 0, "layer_end": 0}, ErrorCode.INVALID_LAYER_RANGE),
        ({"max_sequences": 0}, ErrorCode.INVALID_SETTING),
        ({"stage_id": ""}, ErrorCode.INVALID_SETTING),
        ({"data_endpoint": "tcp://192.168.0.1:5000"}, ErrorCode.INVALID_SETTING),
        ({"data_endpoint": "ipc:///tmp/socket"}, ErrorCode.INVALID_SETTING),
    ],
)
def test_a_stage_that_fits_nowhere_is_refused(changes: dict[str, object], code: ErrorCode) -> None:
    broker = CheckedCore()
    (answer,) = broker.from_stage("x", Register(replace(STAGE, **changes), None))  # type: ignore[arg-type]
    assert isinstance(answer, Send)
    assert isinstance(answer.message, RegisterRefused)
    assert answer.message.code is code


def test_impossible_reports_and_a_second_name_on_one_connection_are_refused() -> None:
    broker = CheckedCore()
    for report in (AssemblyReport(OLD, 2, 2, ()), AssemblyReport(Epoch(1 << 63, 1), 0, 1, ())):
        (answer,) = broker.register(STAGE, report=report)
        assert isinstance(answer, Send)
        assert isinstance(answer.message, RegisterRefused)
    broker.register(FIRST)
    (answer,) = broker.from_stage("s0", Register(LAST, None))
    assert isinstance(answer, Send)
    assert isinstance(answer.message, RegisterRefused)


def test_a_stage_that_does_not_read_is_lost(running: CheckedCore) -> None:
    assert CloseFeed(EPOCH) in running.handle(Overflowed(stage_peer("s0")))


# --- the broker restarts ---


def report(stage_index: int, *request_ids: str) -> AssemblyReport:
    return AssemblyReport(OLD, stage_index, 2, tuple(RunningRequest(one, "c", "session") for one in request_ids))


def test_a_living_assembly_is_adopted_with_its_requests_after_the_grace_period() -> None:
    broker = CheckedCore()
    assert broker.register(FIRST, report=report(0, "r1")) == to_stage("s0", Registered(7, OLD))
    assert broker.register(LAST, report=report(1)) == to_stage("s1", Registered(7, OLD))
    broker.hello("c")
    assert broker.pass_time(2.9, alive=(FIRST, LAST)) == []
    opened = [OpenFeed(OLD, FIRST.data_endpoint, run=7), WHO_LEFT_WHAT]
    assert broker.pass_time(0.1, alive=(FIRST, LAST)) == opened
    assert broker.ask("c", "r2")[-1] == PushStart(OLD, "r2", "c", "session", 42, None)
    assert broker.from_client("c", Cancel("r1")) == [PushCancel(OLD, "r1")]
    ended = RequestEnded("r1", OLD, FinishReason.CANCELLED, None, Usage(3, 2))
    assert broker.from_stage("s0", ended) == to_stage("s0", RequestEndedAck("r1"))


def test_a_request_sent_again_before_its_head_reports_it_is_not_run_twice() -> None:
    broker = CheckedCore()
    broker.hello("c")
    broker.ask("c", "r1")
    broker.ask("c", "r2")
    reported = broker.register(FIRST, report=report(0, "r1"))
    assert reported[:2] == [DropPayload("r1"), *to_client(Dispatched("r1", OLD, None))]
    broker.register(LAST, report=report(1))
    late = broker.from_stage("s0", GenerateAck("r2", OLD, None, ""))
    assert late == [DropPayload("r2"), *to_client(Dispatched("r2", OLD, None))]
    assert broker.ask("c", "r1", seed=1) == to_client(Accepted("r1", 42), Dispatched("r1", OLD, None))
    assert broker.pass_time(3.1, alive=(FIRST, LAST)) == [OpenFeed(OLD, FIRST.data_endpoint, run=7), WHO_LEFT_WHAT]


def test_a_request_sent_again_whose_head_says_that_it_has_ended_is_not_run() -> None:
    broker = CheckedCore()
    broker.hello("c")
    broker.register(FIRST, report=report(0))
    broker.ask("c", "r1")
    ended = RequestEnded("r1", OLD, FinishReason.LENGTH, None, Usage(3, 5))
    assert broker.from_stage("s0", ended) == [
        DropPayload("r1"),
        *to_client(Dispatched("r1", OLD, None)),
        *to_stage("s0", RequestEndedAck("r1")),
    ]


def test_an_incomplete_assembly_is_dissolved_after_the_grace_period_and_its_requests_end() -> None:
    broker = CheckedCore()
    broker.register(FIRST, report=report(0, "r1"))
    broker.hello("c")
    assert broker.pass_time(3.0, alive=(FIRST,)) == to_stage("s0", Dissolve(OLD))
    detail = "the broker restarted and found it incomplete"
    ended = Ended("r1", failed("stage_lost", detail, num_prompt_tokens=0))
    assert broker.from_stage("s0", Dissolved(OLD)) == to_client(ended)


def test_a_stage_that_reports_too_late_is_dissolved_and_its_unknown_requests_end() -> None:
    broker = CheckedCore()
    broker.settle()
    broker.hello("c")
    late = broker.register(FIRST, report=report(0, "r1"))
    assert late == [*to_stage("s0", Dissolve(OLD)), *to_stage("s0", Registered(7, None))]
    detail = "it registered too late to be adopted"
    ended = Ended("r1", failed("stage_lost", detail, num_prompt_tokens=0))
    assert broker.from_stage("s0", Dissolved(OLD)) == to_client(ended)


def test_adopted_requests_of_a_client_that_never_comes_back_are_cancelled() -> None:
    broker = CheckedCore()
    broker.register(FIRST, report=report(0, "r1"))
    broker.register(LAST, report=report(1))
    assert PushCancel(OLD, "r1") in broker.pass_time(10.2, alive=(FIRST, LAST))


def test_a_request_ended_while_its_head_was_away_is_cancelled_when_it_is_reported() -> None:
    broker = CheckedCore()
    broker.hello("c")
    broker.ask("c", "r1")
    broker.from_client("c", Cancel("r1"))
    broker.register(FIRST, report=report(0, "r1"))
    broker.register(LAST, report=report(1))
    assert PushCancel(OLD, "r1") in broker.pass_time(3.1, alive=(FIRST, LAST))


def test_the_incarnation_rises_above_every_reported_one() -> None:
    broker = CheckedCore(incarnation=4)
    assert broker.register(FIRST, report=report(0)) == to_stage("s0", Registered(6, OLD))
    assert broker.register(LAST, report=report(1)) == to_stage("s1", Registered(6, OLD))
    broker.pass_time(3.0, alive=(FIRST, LAST))
    assert broker.serve(replace(STAGE, stage_id="s7")) == Epoch(6, 1)


def test_an_offer_is_not_given_again_to_an_adopted_pipeline_that_has_the_client() -> None:
    broker = CheckedCore()
    broker.register(FIRST, report=report(0, "r1"))
    broker.register(LAST, report=report(1))
    broker.hello("c", generation=4)
    broker.pass_time(3.0, alive=(FIRST, LAST))
    assert broker.ask("c", "r2")[-1] == PushStart(OLD, "r2", "c", "session", 42, None)
    broker.hello("d", generation=1)
    assert broker.ask("d", "r3")[-1] == PushStart(OLD, "r3", "d", "session", 42, offer(1))
