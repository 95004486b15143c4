"""What clients want to know of the stages: asked of all that it concerns, answered when all have, or after 2 s."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stagewire.broker.events import Peer
from stagewire.broker.pool import StageRecord
from stagewire.broker.state import BrokerState
from stagewire.wire.caches import AskCache, CacheReport, Caches
from stagewire.wire.codec import Message
from stagewire.wire.snapshots import AskHeadSnapshots, SnapshotReport, Snapshots

_WAIT_S = 2.0
_MAX_QUESTIONS = 256
_Report = CacheReport | SnapshotReport


@dataclass(slots=True)
class _Question:
    """`reports` by the stage's name; `answer` makes of them, and of who is silent, what the client gets."""

    peer: Peer
    deadline: float
    waiting: set[str]
    answer: Callable[[Sequence[_Report], tuple[str, ...]], Message]
    reports: dict[str, _Report] = field(default_factory=dict)


class StageQuestions:
    """Open questions by ticket."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._open: dict[int, _Question] = {}
        self._next_ticket = 1

    def ask_caches(self, peer: Peer, clear: bool, now: float) -> None:
        """Every stage has a cache."""

        def answer(reports: Sequence[_Report], silent: tuple[str, ...]) -> Caches:
            return Caches(clear, tuple(one.cache for one in reports if isinstance(one, CacheReport)), silent)

        self._ask(peer, list(self._state.pool), lambda ticket: AskCache(ticket, clear), answer, now)

    def ask_snapshots(self, peer: Peer, client_id: str, free: str | None, now: float) -> None:
        """Heads know the snapshots of their pipelines."""

        def answer(reports: Sequence[_Report], silent: tuple[str, ...]) -> Snapshots:
            items = [item for one in reports if isinstance(one, SnapshotReport) for item in one.items]
            return Snapshots(free, tuple(items), silent)

        pipelines = self._state.serving()
        heads = [self._state.pool.member(pipeline.head.stage_id, pipeline.epoch) for pipeline in pipelines]
        self._ask(
            peer,
            [head for head in heads if head],
            lambda ticket: AskHeadSnapshots(ticket, client_id, free),
            answer,
            now,
        )

    def _ask(
        self,
        peer: Peer,
        stages: Sequence[StageRecord],
        question: Callable[[int], Message],
        answer: Callable[[Sequence[_Report], tuple[str, ...]], Message],
        now: float,
    ) -> None:
        """Beyond the limit the oldest question is answered with what there is."""
        while len(self._open) >= _MAX_QUESTIONS:
            self._answer(next(iter(self._open)))
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        self._open[ticket] = _Question(peer, now + _WAIT_S, {stage.info.stage_id for stage in stages}, answer)
        for stage in stages:
            self._state.to_stage(stage, question(ticket))
        self._answer_if_complete(ticket)

    def reported(self, stage: StageRecord, report: _Report) -> None:
        """A stage answers for itself, once."""
        question, stage_id = self._open.get(report.ticket), stage.info.stage_id
        is_own = not isinstance(report, CacheReport) or report.cache.stage_id == stage_id
        if question and stage_id in question.waiting and is_own:
            question.waiting.discard(stage_id)
            question.reports[stage_id] = report
            self._answer_if_complete(report.ticket)

    def expire(self, now: float) -> None:
        """Whoever has waited too long hears who was silent."""
        for ticket in [ticket for ticket, question in self._open.items() if now >= question.deadline]:
            self._answer(ticket)

    def _answer_if_complete(self, ticket: int) -> None:
        if not self._open[ticket].waiting:
            self._answer(ticket)

    def _answer(self, ticket: int) -> None:
        question = self._open.pop(ticket)
        reports = [question.reports[stage_id] for stage_id in sorted(question.reports)]
        self._state.answer(question.peer, question.answer(reports, tuple(sorted(question.waiting))))

    def check_invariants(self) -> None:
        assert len(self._open) <= _MAX_QUESTIONS
        assert all(question.waiting for question in self._open.values())
