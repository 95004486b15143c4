"""Questions about the stages' KV caches: asked of all stages, answered when all have, or after two seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from stagewire.broker.events import Peer
from stagewire.broker.pool import StageRecord
from stagewire.broker.state import BrokerState
from stagewire.wire.caches import AskCache, CacheReport, Caches, StageCache

_WAIT_S = 2.0
_MAX_QUESTIONS = 256


@dataclass(slots=True)
class _Question:
    peer: Peer
    clear: bool
    deadline: float
    waiting: set[str]
    answers: dict[str, StageCache] = field(default_factory=dict)


class CacheQuestions:
    """Open questions by ticket."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._open: dict[int, _Question] = {}
        self._next_ticket = 1

    def asked(self, peer: Peer, clear: bool, now: float) -> None:
        """Ask every stage. Beyond the limit the oldest question is answered with what there is."""
        while len(self._open) >= _MAX_QUESTIONS:
            self._answer(next(iter(self._open)))
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        stages = list(self._state.pool)
        self._open[ticket] = _Question(peer, clear, now + _WAIT_S, {stage.info.stage_id for stage in stages})
        for stage in stages:
            self._state.to_stage(stage, AskCache(ticket, clear))
        self._answer_if_complete(ticket)

    def reported(self, stage: StageRecord, report: CacheReport) -> None:
        """A stage answers; a name other than its own is not believed."""
        question, stage_id = self._open.get(report.ticket), stage.info.stage_id
        if question and stage_id in question.waiting and report.cache.stage_id == stage_id:
            question.waiting.discard(stage_id)
            question.answers[stage_id] = report.cache
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
        caches = tuple(question.answers[stage_id] for stage_id in sorted(question.answers))
        self._state.answer(question.peer, Caches(question.clear, caches, tuple(sorted(question.waiting))))

    def check_invariants(self) -> None:
        assert len(self._open) <= _MAX_QUESTIONS
        assert all(question.waiting for question in self._open.values())
