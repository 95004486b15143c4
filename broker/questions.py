"""What clients want of the stages: asked of all that it concerns, answered when all have, or after 2 s.

An export of a snapshot may take a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from stagewire.broker.events import Peer
from stagewire.broker.measures import EXPIRED
from stagewire.broker.peers import StageRecord
from stagewire.broker.pipeline import snapshot_key
from stagewire.broker.state import BrokerState
from stagewire.wire.cache_reports import AskCache, CacheReport, Caches
from stagewire.wire.codec import Message
from stagewire.wire.errors import ErrorCode
from stagewire.wire.snapshots import AskHeadSnapshots, SnapshotAction, SnapshotOrder, SnapshotReport, Snapshots

_WAIT_S = 2.0
_EXPORT_S = 65.0
_MAX_QUESTIONS = 256
_MAX_OF_PEER = 32
_Report = CacheReport | SnapshotReport


@dataclass(slots=True)
class _Question:
    """`reports` by the stage's name; `answer` is told them, and who is silent. Without a `peer` the broker itself asks.

    `waiting` are the stages that have still to answer, with the `run` of each; `gone` will never.
    """

    peer: Peer | None
    deadline: float
    waiting: dict[str, int]
    order: SnapshotOrder | None
    answer: Callable[[Sequence[_Report], tuple[str, ...]], None]
    reports: dict[str, _Report] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)


class StageQuestions:
    """Open questions by ticket."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._open: dict[int, _Question] = {}
        self._next_ticket = 1

    def ask_caches(self, peer: Peer, clear: bool, now: float) -> None:
        """Every stage has a cache."""

        def answer(reports: Sequence[_Report], silent: tuple[str, ...]) -> None:
            caches = tuple(one.cache for one in reports if isinstance(one, CacheReport))
            self._state.answer(peer, Caches(clear, caches, silent))

        self._ask(peer, list(self._state.pool), lambda ticket: AskCache(ticket, clear), answer, now + _WAIT_S)

    def ask_snapshots(self, peer: Peer, client_id: str, order: SnapshotOrder, now: float) -> None:
        """Heads know the snapshots of their pipelines. An export that is asked for again is still that one."""
        self._state.measures.snapshot_operations[order.action.value] += 1

        def answer(reports: Sequence[_Report], silent: tuple[str, ...]) -> None:
            told = _joined(order, [one for one in reports if isinstance(one, SnapshotReport)], silent)
            expiry = self._state.snapshot_expiry
            items = [replace(one, expires_s=expiry.expires_s(one.client_id, now)) for one in told.items]
            self._state.answer(peer, replace(told, items=tuple(items)))

        is_export = order.action is SnapshotAction.EXPORT
        if is_export and any(one.peer == peer and one.order == order for one in self._open.values()):
            return
        self._ask_heads(peer, order.owner or client_id, order, answer, now + (_EXPORT_S if is_export else _WAIT_S))

    def _ask_heads(
        self,
        peer: Peer | None,
        owner: str,
        order: SnapshotOrder,
        answer: Callable[[Sequence[_Report], tuple[str, ...]], None],
        deadline: float,
    ) -> None:
        pipelines = self._state.serving()
        heads = [self._state.pool.member(pipeline.head.stage_id, pipeline.epoch) for pipeline in pipelines]
        present = [head for head in heads if head]
        self._ask(peer, present, lambda ticket: AskHeadSnapshots(ticket, owner, order), answer, deadline, order)

    def _expire_snapshots(self, now: float) -> None:
        """What belongs to nobody any more is freed."""
        for order in self._state.snapshot_expiry.due(now):
            self._ask_heads(None, order.owner, order, self._follow(order), now + _WAIT_S)

    def _follow(self, order: SnapshotOrder) -> Callable[[Sequence[_Report], tuple[str, ...]], None]:
        """What to do with the heads' answers to an order of the broker itself."""

        def follow(reports: Sequence[_Report], silent: tuple[str, ...]) -> None:
            told = [one for one in reports if isinstance(one, SnapshotReport)]
            num_freed = sum(one.num_freed for one in told)
            self._state.snapshot_expiry.found(item for one in told for item in one.items)
            if silent:
                self._state.snapshot_expiry.failed(order)
            if num_freed:
                self._state.measures.snapshot_operations[EXPIRED] += num_freed
                self._state.note("snapshots_expired", client=order.owner, number=num_freed)

        return follow

    def _ask(
        self,
        peer: Peer | None,
        stages: Sequence[StageRecord],
        question: Callable[[int], Message],
        answer: Callable[[Sequence[_Report], tuple[str, ...]], None],
        deadline: float,
        order: SnapshotOrder | None = None,
    ) -> None:
        """Beyond a limit the oldest question, of this client or of all, is answered with what there is."""
        own = [number for number, question in self._open.items() if question.peer == peer]
        if len(own) >= _MAX_OF_PEER:
            self._answer(own[0])
        while len(self._open) >= _MAX_QUESTIONS:
            self._answer(next(iter(self._open)))
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        names = {stage.info.stage_id: stage.info.run for stage in stages}
        self._open[ticket] = _Question(peer, deadline, names, order, answer)
        for stage in stages:
            self._state.to_stage(stage, question(ticket))
        self._answer_if_complete(ticket)

    def reported(self, stage: StageRecord, report: _Report) -> None:
        """A stage answers for itself, once."""
        question, stage_id = self._open.get(report.ticket), stage.info.stage_id
        is_own = not isinstance(report, CacheReport) or report.cache.stage_id == stage_id
        if question and stage_id in question.waiting and is_own:
            if isinstance(report, SnapshotReport) and stage.epoch:
                for item in report.items:
                    self._state.sessions.saw(snapshot_key(item.client_id, item.name), stage.epoch)
            del question.waiting[stage_id]
            question.reports[stage_id] = report
            self._answer_if_complete(report.ticket)

    def expire(self, now: float) -> None:
        """Whoever has waited too long, or waits for a stage that is lost, hears who was silent."""
        for number, question in [*self._open.items()]:
            for stage_id in [one for one, run in question.waiting.items() if self._is_gone(one, run)]:
                del question.waiting[stage_id]
                question.gone.add(stage_id)
            self._answer_if_complete(number)
        for ticket in [ticket for ticket, question in self._open.items() if now >= question.deadline]:
            self._answer(ticket)
        self._expire_snapshots(now)

    def _is_gone(self, stage_id: str, run: int) -> bool:
        stage = self._state.pool.get(stage_id)
        return stage is None or stage.info.run != run

    def _answer_if_complete(self, ticket: int) -> None:
        if not self._open[ticket].waiting:
            self._answer(ticket)

    def _answer(self, ticket: int) -> None:
        question = self._open.pop(ticket)
        reports = [question.reports[stage_id] for stage_id in sorted(question.reports)]
        question.answer(reports, tuple(sorted({*question.waiting, *question.gone})))

    def check_invariants(self) -> None:
        assert len(self._open) <= _MAX_QUESTIONS
        assert all(question.waiting for question in self._open.values())


def _joined(order: SnapshotOrder, reports: Sequence[SnapshotReport], silent: tuple[str, ...]) -> Snapshots:
    """The heads' reports as one: a pipeline without the snapshot does not matter where another one has it."""
    items = tuple(item for report in reports for item in report.items)
    failures = [report for report in reports if report.code]
    worst = min(failures, key=lambda report: report.code is ErrorCode.SNAPSHOT_NOT_FOUND, default=None)
    if len(failures) < len(reports) and worst and worst.code is ErrorCode.SNAPSHOT_NOT_FOUND:
        worst = None  # another pipeline had it
    must_be_done = order.action in (SnapshotAction.RENAME, SnapshotAction.EXPORT)
    if must_be_done and silent and len(failures) == len(reports):
        detail = f"{', '.join(silent)} did not answer: it may be done, or not"
        return Snapshots(order, items, silent, ErrorCode.STAGE_LOST, detail)
    if must_be_done and not reports:
        return Snapshots(order, (), (), ErrorCode.NO_PIPELINE, "no pipeline is there to ask")
    num_freed = sum(report.num_freed for report in reports)
    return Snapshots(order, items, silent, worst.code if worst else None, worst.detail if worst else "", num_freed)
