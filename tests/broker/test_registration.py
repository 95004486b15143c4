"""A stage that registers more than once, as it does while its welcome is on its way: nothing is lost or done twice."""

from __future__ import annotations

from support.broker_world import FIRST, LAST, STAGE, WHO_LEFT_WHAT, CheckedCore, client_peer, failed, stage_peer

from stagewire.broker.events import ForgetPeer, Instruction, OpenFeed, Send
from stagewire.wire.codec import Message
from stagewire.wire.control import (
    Assemble,
    Assembled,
    AssemblyReport,
    Dissolve,
    Dissolved,
    Registered,
    RunningRequest,
    StageBye,
)
from stagewire.wire.epoch import Epoch
from stagewire.wire.frontend import Ended

EPOCH = Epoch(7, 1)
OLD = Epoch(5, 3)


def to_stage(name: str, *messages: Message) -> list[Instruction]:
    return [Send(stage_peer(name), message) for message in messages]


def report(stage_index: int, *request_ids: str) -> AssemblyReport:
    return AssemblyReport(OLD, stage_index, 2, tuple(RunningRequest(one, "c", "session") for one in request_ids))


def test_a_repeated_register_does_not_undo_an_assembly_on_its_way() -> None:
    broker = CheckedCore()
    broker.settle()
    broker.register(STAGE)
    broker.pass_time(0.1)
    assert broker.register(STAGE) == to_stage("s0", Registered(7, EPOCH))
    assert broker.from_stage("s0", Assembled(EPOCH)) == [OpenFeed(EPOCH, STAGE.data_endpoint, 7)]


def test_a_stage_that_registers_twice_is_one_stage() -> None:
    broker = CheckedCore()
    broker.settle()
    assert broker.register(FIRST, FIRST) == to_stage("s0", Registered(7, None), Registered(7, None))
    broker.register(LAST, LAST)
    assert len(broker.core.state.pool) == 2
    broker.pass_time(0.1)
    assert broker.from_stage("s0", Assembled(EPOCH)) == []
    assert broker.register(LAST) == to_stage("s1", Registered(7, EPOCH)), "the other one has answered already"
    assert broker.from_stage("s1", Assembled(EPOCH)) == [OpenFeed(EPOCH, FIRST.data_endpoint, 7)]
    assert broker.register(LAST, report=AssemblyReport(EPOCH, 1, 2, ())) == to_stage("s1", Registered(7, EPOCH))


def test_a_repeated_register_frees_a_stage_of_an_assembly_that_ends_before_it_has_begun() -> None:
    """It is as old as the first: what the stage says of that assembly afterwards ends it there, and nothing else."""
    broker, newer = CheckedCore(), Epoch(7, 2)
    broker.settle()
    broker.register(FIRST, LAST)
    broker.pass_time(0.1)
    assert broker.from_stage("s1", StageBye("s1", 1)) == [
        ForgetPeer(stage_peer("s1")),
        *to_stage("s0", Dissolve(EPOCH)),
    ]
    assert broker.register(FIRST) == to_stage("s0", Registered(7, None))
    broker.register(LAST)
    assembling = broker.pass_time(0.1)
    begun = [one.message for one in assembling if isinstance(one, Send)]
    assert [one.epoch for one in begun if isinstance(one, Assemble)] == [newer, newer]
    assert broker.from_stage("s0", Assembled(EPOCH)) == to_stage("s0", Dissolve(EPOCH))
    assert broker.from_stage("s0", Dissolved(EPOCH)) == []
    assert broker.from_stage("s0", Dissolved(EPOCH)) == []
    assert broker.from_stage("s0", Assembled(newer)) == []
    assert broker.from_stage("s1", Assembled(newer)) == [OpenFeed(newer, FIRST.data_endpoint, 7)]


def test_what_a_stage_reports_twice_is_adopted_once() -> None:
    broker = CheckedCore()
    broker.hello("c")
    for _ in range(2):
        assert broker.register(FIRST, report=report(0, "r1")) == to_stage("s0", Registered(7, OLD))
        assert broker.register(LAST, report=report(1)) == to_stage("s1", Registered(7, OLD))
    assert broker.pass_time(3.0, alive=(FIRST, LAST)) == [OpenFeed(OLD, FIRST.data_endpoint, run=7), WHO_LEFT_WHAT]
    assert broker.register(FIRST, report=report(0, "r1")) == to_stage("s0", Registered(7, OLD))
    assert [request.request_id for request in broker.core.state.requests] == ["r1"]


def test_what_a_stage_reports_twice_and_too_late_is_dissolved_once() -> None:
    broker = CheckedCore()
    broker.settle()
    broker.hello("c")
    late = broker.register(FIRST, report=report(0, "r1"))
    assert late == to_stage("s0", Dissolve(OLD), Registered(7, None))
    assert broker.register(FIRST, report=report(0, "r1")) == to_stage("s0", Registered(7, None))
    ending = failed("stage_lost", "it registered too late to be adopted", num_prompt_tokens=0)
    assert broker.from_stage("s0", Dissolved(OLD)) == [Send(client_peer("c"), Ended("r1", ending))]
