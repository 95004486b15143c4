"""A conversation: a system message, and turns of question and answer. It never changes; a change makes another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Message:
    """As a model's template reads it; `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and what was answered."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """What has been said; a failed turn is never part of it."""

    system: str | None = None
    turns: tuple[Turn, ...] = ()

    def messages(self, question: str | None = None) -> tuple[Message, ...]:
        """All of it, and the next question."""
        found = [Message("system", self.system)] if self.system is not None else []
        for turn in self.turns:
            found += [Message("user", turn.question), Message("assistant", turn.answer)]
        return (*found, *([Message("user", question)] if question is not None else []))

    def with_turn(self, question: str, answer: str) -> Conversation:
        return replace(self, turns=(*self.turns, Turn(question, answer)))

    def without_last(self) -> Conversation:
        return replace(self, turns=self.turns[:-1])

    def without_oldest(self, num_turns: int) -> Conversation:
        """The system message stays."""
        return replace(self, turns=self.turns[num_turns:])

    def fewest_dropped(self, question: str, at_least: int, fits: Callable[[tuple[Message, ...]], bool]) -> int | None:
        """How many of the oldest turns must go until `fits`; None if that is not enough, or there are fewer."""
        if at_least > len(self.turns) or not fits(self.without_oldest(len(self.turns)).messages(question)):
            return None
        low, high = at_least, len(self.turns)
        while low < high:
            middle = (low + high) // 2
            if fits(self.without_oldest(middle).messages(question)):
                high = middle
            else:
                low = middle + 1
        return low
