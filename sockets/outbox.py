"""A bounded queue between a loop and a socket, so that the loop never blocks on send."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from stagewire.sockets.condition import ConditionedLink, WireCondition
from stagewire.wire.codec import Frame


class Outbox:
    """Messages that wait for their socket, or for the simulated network.

    `put` refuses beyond `limit`; what then happens is the loop's decision, never a silent drop here.
    """

    def __init__(self, limit: int, condition: WireCondition | None = None) -> None:
        self._limit = limit
        self._link = ConditionedLink(condition) if condition else None
        self._messages: deque[tuple[float, list[Frame]]] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, frames: list[Frame], now: float) -> bool:
        """Queue a message; False when the outbox is full and nothing was queued."""
        if len(self._messages) >= self._limit:
            return False
        due = self._link.arrival(now, sum(len(frame) for frame in frames)) if self._link else now
        self._messages.append((due, frames))
        return True

    def flush(self, send: Callable[[list[Frame]], bool], now: float) -> None:
        """Send all that is due, in order, until `send` says that the socket is full (False)."""
        while self._messages and self._messages[0][0] <= now and send(self._messages[0][1]):
            self._messages.popleft()

    def next_due(self) -> float | None:
        """When the first message may go (monotonic seconds), or None when there is none."""
        return self._messages[0][0] if self._messages else None

    def clear(self) -> None:
        self._messages.clear()
