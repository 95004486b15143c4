"""Questions to the broker that wait for an answer: status, cards, caches, snapshots, and whether we are welcome."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stagewire.client.core.broker_link import BrokerLink
from stagewire.client.core.diagnosis import Diagnosis
from stagewire.client.core.events import Ask, Instruction, NoReply, Reply, SendBroker
from stagewire.wire.cache_reports import AskCaches, Caches
from stagewire.wire.codec import Message
from stagewire.wire.counted import counted
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import BrokerWelcome, Card, GetCard
from stagewire.wire.snapshots import AskSnapshots, Snapshots
from stagewire.wire.status import Status

REPEAT_S = 1.0
MAX_QUESTIONS = 1024


@dataclass(slots=True)
class _Question:
    ask: Ask
    deadline: float
    asked_at: float = float("-inf")

    def is_answered_by(self, reply: Message) -> bool:
        wanted = self.ask.message
        if wanted is None:
            return isinstance(reply, BrokerWelcome)
        if isinstance(wanted, GetCard):
            return isinstance(reply, Card) and reply.digest == wanted.digest
        if isinstance(wanted, AskCaches):
            return isinstance(reply, Caches) and reply.clear == wanted.clear
        if isinstance(wanted, AskSnapshots):
            return isinstance(reply, Snapshots) and reply.order == wanted.order
        return isinstance(reply, Status)


class Questions:
    """Open questions by ticket; each gets one answer, or an error when its time is up."""

    def __init__(self, broker: BrokerLink, endpoint: str, diagnosis: Diagnosis) -> None:
        self._broker, self._endpoint, self._diagnosis = broker, endpoint, diagnosis
        self._open: dict[int, _Question] = {}

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, ask: Ask, welcome: BrokerWelcome | None, now: float) -> list[Instruction]:
        """Ask at once if there is a connection; `welcome` is the broker's, if it has greeted."""
        refusal = self._broker.refusal
        if refusal is not None:
            return [NoReply(ask.ticket, refusal.code, refusal.detail)]
        if ask.message is None and welcome is not None:
            return [Reply(ask.ticket, welcome)]
        if len(self) >= MAX_QUESTIONS:
            return [NoReply(ask.ticket, ErrorCode.CLIENT_LIMIT, f"{counted(len(self), 'question')} wait for an answer")]
        self._open[ask.ticket] = _Question(ask, now + ask.timeout_s)
        return list(self._send(self._open[ask.ticket], now))

    def reply(self, reply: Message) -> list[Instruction]:
        """One reply answers everybody who has asked for it."""
        tickets = [ticket for ticket, question in self._open.items() if question.is_answered_by(reply)]
        for ticket in tickets:
            del self._open[ticket]
        return [Reply(ticket, reply) for ticket in tickets]

    def connected(self, now: float) -> list[Instruction]:
        """A new connection knows none of our questions."""
        return [out for question in self._open.values() for out in self._send(question, now)]

    def tick(self, now: float) -> list[Instruction]:
        overdue = [ticket for ticket, question in self._open.items() if now >= question.deadline]
        timed_out = [self._time_out(ticket) for ticket in overdue]
        again = [question for question in self._open.values() if now - question.asked_at >= REPEAT_S]
        return [*timed_out, *(out for question in again for out in self._send(question, now))]

    def end_all(self, code: ErrorCode, detail: str) -> list[Instruction]:
        tickets, self._open = list(self._open), {}
        return [NoReply(ticket, code, detail) for ticket in tickets]

    def _time_out(self, ticket: int) -> Instruction:
        question = self._open.pop(ticket)
        why = f": {self._diagnosis.circumstance}" if self._diagnosis.circumstance else ""
        detail = f"no answer from the broker at {self._endpoint} within {question.ask.timeout_s:g} s{why}"
        return NoReply(ticket, ErrorCode.UNREACHABLE, detail)

    def _send(self, question: _Question, now: float) -> Iterator[Instruction]:
        if self._broker.is_connected and question.ask.message is not None:
            question.asked_at = now
            yield SendBroker(question.ask.message)

    def check_invariants(self) -> None:
        assert len(self) <= MAX_QUESTIONS
