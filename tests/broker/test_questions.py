"""Questions to stages: all that it concerns are asked, and silence does not hold up the answer for ever."""

from __future__ import annotations

import pytest
from support.broker_world import FIRST, LAST, CheckedCore, client_peer, stage_peer

from stagewire.broker.events import Send
from stagewire.wire.cache_reports import AskCache, AskCaches, CacheReport, Caches, StageCache
from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import CacheStatistics
from stagewire.wire.snapshots import (
    AskHeadSnapshots,
    AskSnapshots,
    SnapshotAction,
    SnapshotInfo,
    SnapshotOrder,
    SnapshotReport,
    Snapshots,
)


def cache(stage_id: str) -> StageCache:
    return StageCache(stage_id, 64, 1, 2, 48, 16, 100, 0, CacheStatistics(hits=3))


@pytest.fixture
def serving() -> CheckedCore:
    broker = CheckedCore()
    broker.settle()
    broker.serve(FIRST, LAST)
    broker.hello("c", generation=1)
    return broker


@pytest.mark.parametrize("clear", [False, True])
def test_all_stages_are_asked_and_their_answers_come_together(serving: CheckedCore, clear: bool) -> None:
    """Sorted by name; an answer under another's name, a second one and a late one change nothing."""
    asked = serving.from_client("c", AskCaches(clear))
    assert asked == [Send(stage_peer(name), AskCache(1, clear)) for name in ("s0", "s1")]
    assert serving.from_stage("s1", CacheReport(1, cache("s0"))) == []
    assert serving.from_stage("s1", CacheReport(1, cache("s1"))) == []
    assert serving.from_stage("s1", CacheReport(1, cache("s1"))) == []
    answer = Caches(clear, (cache("s0"), cache("s1")), ())
    assert serving.from_stage("s0", CacheReport(1, cache("s0"))) == [Send(client_peer("c"), answer)]
    assert serving.from_stage("s0", CacheReport(1, cache("s0"))) == []


def test_a_silent_stage_is_named_after_two_seconds(serving: CheckedCore) -> None:
    serving.from_client("c", AskCaches(clear=False))
    serving.from_stage("s0", CacheReport(1, cache("s0")))
    assert serving.pass_time(1.5, alive=(FIRST, LAST)) == []
    answer = Caches(False, (cache("s0"),), ("s1",))
    assert serving.pass_time(0.5, alive=(FIRST, LAST)) == [Send(client_peer("c"), answer)]


def test_without_stages_the_answer_is_empty_and_comes_at_once() -> None:
    broker = CheckedCore()
    broker.hello("c", generation=1)
    assert broker.from_client("c", AskCaches(clear=False)) == [Send(client_peer("c"), Caches(False, (), ()))]


LIST, FREE = SnapshotOrder(), SnapshotOrder(SnapshotAction.FREE, "rules")
EXPORT = SnapshotOrder(SnapshotAction.EXPORT, "rules", "file")
ITEMS = (SnapshotInfo("a", 20, 2, True, "7.1", "c", 2),)


@pytest.mark.parametrize("order", [LIST, FREE])
def test_heads_are_asked_for_the_snapshots_of_the_client_that_asks(serving: CheckedCore, order: SnapshotOrder) -> None:
    """No other stage, and for no other client; a pipeline that is not whole has none."""
    asked = serving.from_client("c", AskSnapshots(order))
    assert asked == [Send(stage_peer("s0"), AskHeadSnapshots(1, "c", order))]
    answer = serving.from_stage("s0", SnapshotReport(1, ITEMS))
    assert answer == [Send(client_peer("c"), Snapshots(order, ITEMS, ()))]
    alone = CheckedCore()
    alone.hello("c", generation=1)
    assert alone.from_client("c", AskSnapshots(order)) == [Send(client_peer("c"), Snapshots(order, (), ()))]


def test_why_an_order_cannot_be_carried_out_reaches_the_client(serving: CheckedCore) -> None:
    """Also that there is nobody to carry it out."""
    serving.from_client("c", AskSnapshots(EXPORT))
    answer = serving.from_stage("s0", SnapshotReport(1, ITEMS, ErrorCode.SNAPSHOT_NOT_FOUND, "no"))
    assert answer == [Send(client_peer("c"), Snapshots(EXPORT, ITEMS, (), ErrorCode.SNAPSHOT_NOT_FOUND, "no"))]
    alone = CheckedCore()
    alone.hello("c", generation=1)
    (told,) = alone.from_client("c", AskSnapshots(EXPORT))
    assert isinstance(told, Send) and isinstance(told.message, Snapshots)
    assert told.message.code is ErrorCode.NO_PIPELINE


def test_an_export_may_take_a_minute_and_is_asked_for_once(serving: CheckedCore) -> None:
    """A client repeats its questions; another order of it is another question."""
    serving.from_client("c", AskSnapshots(EXPORT))
    assert serving.from_client("c", AskSnapshots(EXPORT)) == []
    assert serving.from_client("c", AskSnapshots(LIST)) == [Send(stage_peer("s0"), AskHeadSnapshots(2, "c", LIST))]
    serving.from_stage("s0", SnapshotReport(2, ITEMS))
    for _ in range(4):
        assert serving.pass_time(1.5, alive=(FIRST, LAST)) == []
    answer = serving.from_stage("s0", SnapshotReport(1, ITEMS))
    assert answer == [Send(client_peer("c"), Snapshots(EXPORT, ITEMS, ()))]


def test_an_export_whose_head_is_lost_is_no_success(serving: CheckedCore) -> None:
    """It is told at once, and not after a minute."""
    serving.from_client("c", AskSnapshots(EXPORT))
    out = serving.pass_time(4.0, alive=(LAST,))
    told = [one.message for one in out if isinstance(one, Send) and isinstance(one.message, Snapshots)]
    assert [(one.code, one.silent) for one in told] == [(ErrorCode.STAGE_LOST, ("s0",))]


def test_one_client_cannot_push_out_the_questions_of_others(serving: CheckedCore) -> None:
    """Its own oldest goes first."""
    serving.hello("d", generation=1)
    serving.from_client("d", AskSnapshots(EXPORT))
    for _ in range(300):
        serving.from_client("c", AskSnapshots(LIST))
    answer = serving.from_stage("s0", SnapshotReport(1, ITEMS))
    assert answer == [Send(client_peer("d"), Snapshots(EXPORT, ITEMS, ()))]


def test_too_many_questions_do_not_pile_up(serving: CheckedCore) -> None:
    """The oldest is answered with what there is: here, with nobody's answer."""
    for _ in range(256):
        serving.from_client("c", AskCaches(clear=False))
    out = serving.from_client("c", AskCaches(clear=False))
    assert out[0] == Send(client_peer("c"), Caches(False, (), ("s0", "s1")))
