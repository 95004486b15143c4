"""Snapshots of clients without a name are freed when these are gone for good; an operator sees and frees all."""

from __future__ import annotations

import pytest
from support.broker_world import FIRST, LAST, WHO_LEFT_WHAT, CheckedCore, client_peer, stage_peer

from stagewire.broker.events import Instruction, OpenFeed, Send
from stagewire.broker.settings import BrokerSettings
from stagewire.wire.client_id import draw_client_id, is_anonymous
from stagewire.wire.control import AssemblyReport
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import SettingsError
from stagewire.wire.frontend import ClientBye
from stagewire.wire.snapshots import (
    AskHeadSnapshots,
    AskSnapshots,
    SnapshotAction,
    SnapshotInfo,
    SnapshotOrder,
    SnapshotReport,
    Snapshots,
)

ALIVE = (FIRST, LAST)
SETTINGS = BrokerSettings(snapshot_expiry_s=20.0)
ANONYMOUS = "anonymous-1"
LIST_ALL = SnapshotOrder(SnapshotAction.LIST_ALL)


def expiry_of(client_id: str, ticket: int = 1) -> list[Instruction]:
    order = SnapshotOrder(SnapshotAction.FREE_ALL, owner=client_id)
    return [Send(stage_peer("s0"), AskHeadSnapshots(ticket, client_id, order))]


def serving() -> CheckedCore:
    broker = CheckedCore(SETTINGS)
    broker.settle()
    broker.serve(FIRST, LAST)
    return broker


def questions(instructions: list[Instruction]) -> list[Instruction]:
    """Those to heads about snapshots."""
    return [one for one in instructions if isinstance(one, Send) and isinstance(one.message, AskHeadSnapshots)]


def save(broker: CheckedCore, client_id: str) -> None:
    broker.hello(client_id)
    broker.ask(client_id, f"r-{client_id}", makes="rules")


def test_a_drawn_name_is_known_as_one() -> None:
    """By everybody who sees it; no two are alike."""
    drawn = [draw_client_id() for _ in range(100)]
    assert all(is_anonymous(one) for one in drawn) and len(set(drawn)) == 100
    assert not any(is_anonymous(one) for one in ("stagewire-cli", "1fd5af9b5e9cf16e", "", "anonymous"))


@pytest.mark.parametrize("leaves", [True, False])
def test_snapshots_of_a_client_without_a_name_go_some_time_after_it(leaves: bool) -> None:
    """Whether it has said goodbye or was lost; not before, and once."""
    broker = serving()
    save(broker, ANONYMOUS)
    silence_s = 0.0
    if leaves:
        broker.from_client(ANONYMOUS, ClientBye())
    else:
        silence_s = SETTINGS.client_silence_s
    assert questions(broker.pass_time(silence_s + 19.75, ALIVE)) == []
    assert questions(broker.pass_time(0.75, ALIVE)) == expiry_of(ANONYMOUS)
    broker.from_stage("s0", SnapshotReport(1, (), num_freed=2))
    assert broker.core.state.measures.snapshot_operations["expire"] == 2
    assert questions(broker.pass_time(60, ALIVE)) == []


@pytest.mark.parametrize("client_id", ["me", "stagewire-cli", "1fd5af9b5e9cf16e"])
def test_those_of_a_client_with_a_name_stay(client_id: str) -> None:
    """It may come back."""
    broker = serving()
    save(broker, client_id)
    broker.from_client(client_id, ClientBye())
    assert questions(broker.pass_time(100, ALIVE)) == []


def test_a_client_that_comes_back_in_time_keeps_its_own() -> None:
    """The clock starts anew when it leaves again. One that has saved nothing is nobody's business."""
    broker = serving()
    save(broker, ANONYMOUS)
    broker.hello("anonymous-2")
    for _ in range(3):
        broker.from_client(ANONYMOUS, ClientBye())
        broker.from_client("anonymous-2", ClientBye())
        assert questions(broker.pass_time(15, ALIVE)) == []
        broker.hello(ANONYMOUS)
        broker.pass_time(1, ALIVE)
    broker.from_client(ANONYMOUS, ClientBye())
    assert questions(broker.pass_time(21, ALIVE)) == expiry_of(ANONYMOUS)


def test_a_head_that_does_not_answer_is_asked_again() -> None:
    """After as long as at first."""
    broker = serving()
    save(broker, ANONYMOUS)
    broker.from_client(ANONYMOUS, ClientBye())
    assert questions(broker.pass_time(21, ALIVE)) == expiry_of(ANONYMOUS)
    assert questions(broker.pass_time(23, ALIVE)) == expiry_of(ANONYMOUS, ticket=2)
    broker.from_stage("s0", SnapshotReport(2, (), num_freed=1))
    assert questions(broker.pass_time(60, ALIVE)) == []


def info(client_id: str, name: str = "rules") -> SnapshotInfo:
    return SnapshotInfo(name, 20, 2, True, "7.1", client_id, 1)


def test_a_broker_that_finds_a_pipeline_asks_its_head_who_has_left_what() -> None:
    """What was left before it started goes as well; a name is still one, and who has come back is here."""
    broker, old = CheckedCore(SETTINGS), Epoch(3, 1)
    broker.hello("anonymous-3")
    for index, stage in enumerate(ALIVE):
        broker.register(stage, report=AssemblyReport(old, index, 2, ()))
    opened = [OpenFeed(old, FIRST.data_endpoint, run=7), WHO_LEFT_WHAT]
    assert broker.pass_time(3.0, ALIVE) == opened
    broker.from_stage("s0", SnapshotReport(1, (info(ANONYMOUS), info("me"), info("anonymous-3"))))
    broker.hello("anonymous-3")
    asked: list[Instruction] = []
    for _ in range(5):
        asked += questions(broker.pass_time(5, ALIVE))
        broker.hello("anonymous-3")
    assert asked == expiry_of(ANONYMOUS, ticket=2)


def test_a_broker_that_gets_no_answer_asks_until_it_does() -> None:
    broker, old = CheckedCore(SETTINGS), Epoch(3, 1)
    for index, stage in enumerate(ALIVE):
        broker.register(stage, report=AssemblyReport(old, index, 2, ()))
    looks = questions(broker.pass_time(8.0, ALIVE))
    assert len(looks) == 3
    broker.from_stage("s0", SnapshotReport(3, (info(ANONYMOUS),)))
    assert questions(broker.pass_time(21.0, ALIVE)) == expiry_of(ANONYMOUS, ticket=4)


def test_an_operator_sees_whose_all_are_and_when_they_go() -> None:
    """From any connection; the answer says how long those of the gone still have."""
    broker = serving()
    save(broker, ANONYMOUS)
    broker.from_client(ANONYMOUS, ClientBye())
    broker.hello("operator")
    broker.pass_time(5, ALIVE)
    asked = broker.from_client("operator", AskSnapshots(LIST_ALL))
    assert asked == [Send(stage_peer("s0"), AskHeadSnapshots(1, "operator", LIST_ALL))]
    (answer,) = broker.from_stage("s0", SnapshotReport(1, (info(ANONYMOUS), info("me"))))
    assert isinstance(answer, Send) and isinstance(answer.message, Snapshots)
    anonymous, named = answer.message.items
    assert (anonymous.client_id, named.client_id, named.expires_s) == (ANONYMOUS, "me", None)
    assert anonymous.expires_s == pytest.approx(15.0, abs=0.5)


@pytest.mark.parametrize("action", [SnapshotAction.LIST, SnapshotAction.FREE, SnapshotAction.FREE_ALL])
def test_an_order_that_names_an_owner_is_carried_out_for_that_client(action: SnapshotAction) -> None:
    """And tells how many all heads have freed."""
    broker = serving()
    broker.hello("operator")
    order = SnapshotOrder(action, "rules" if action is SnapshotAction.FREE else "", owner="me")
    asked = broker.from_client("operator", AskSnapshots(order))
    assert asked == [Send(stage_peer("s0"), AskHeadSnapshots(1, "me", order))]
    answer = broker.from_stage("s0", SnapshotReport(1, (info("me"),), num_freed=3))
    assert answer == [Send(client_peer("operator"), Snapshots(order, (info("me"),), (), num_freed=3))]


@pytest.mark.parametrize("value", [0.0, -1.0, 1e9])
def test_an_expiry_outside_its_limits_is_refused(value: float) -> None:
    with pytest.raises(SettingsError, match="snapshot_expiry_s"):
        BrokerSettings(snapshot_expiry_s=value)
