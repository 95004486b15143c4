"""One state machine: a state, its transition table, and the last few steps; it must not know what they mean."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from stagewire.wire.errors import InvalidTransition

State = TypeVar("State", bound=Enum)
Trigger = TypeVar("Trigger", bound=Enum)
_HISTORY = 8


class Machine(Generic[State, Trigger]):
    """Moves along a table of `(state, trigger)` to state; whatever the table lacks is our own bug."""

    __slots__ = ("_history", "_key", "_table", "state")

    def __init__(self, key: str, initial: State, table: Mapping[tuple[State, Trigger], State]) -> None:
        self._key, self._table = key, table
        self._history: deque[object] = deque(maxlen=_HISTORY)
        self.state = initial

    def fire(self, trigger: Trigger) -> None:
        """Take one step.

        Raises:
            InvalidTransition: the table has none from here; the state is unchanged.
        """
        after = self._table.get((self.state, trigger))
        if after is None:
            raise InvalidTransition(self._key, self.state, trigger, list(self._history))
        self._history.append(trigger)
        self.state = after
