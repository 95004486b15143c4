"""From the socket thread to whoever iterates: what comes of one request, in order, without loss, timed on arrival.

Bounded by the protocol: a request pauses at 256 tokens that its caller has not taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from stagewire.client.core.events import DeliverEnding, DeliverTokens, Milestone
from stagewire.client.result import Timings, time_parts
from stagewire.wire.request import Ending

Delivery: TypeAlias = DeliverTokens | DeliverEnding


class Deliveries:
    """Of one request, called in the socket thread: `put` must be quick. The first time of each kind counts."""

    def __init__(self, put: Callable[[Delivery], None]) -> None:
        self._put = put
        self._started = time.monotonic()
        self._milestones: dict[Milestone, float] = {}
        self._first_token_s: float | None = None
        self._total_s: float | None = None

    def tokens(self, delivery: DeliverTokens) -> None:
        if self._first_token_s is None:
            self._first_token_s = self._now_s()
        self._put(delivery)

    def milestone(self, milestone: Milestone) -> None:
        self._milestones.setdefault(milestone, self._now_s())

    def ending(self, delivery: DeliverEnding) -> None:
        """The one ending; nothing comes after it."""
        self.end()
        self._put(delivery)

    def end(self) -> None:
        """The total time is up, on whichever side it ended."""
        if self._total_s is None:
            self._total_s = self._now_s()

    def timings(self, ending: Ending | None) -> Timings:
        """With what the pipeline says in its ending; None where this side ended it."""
        total_s = self._now_s() if self._total_s is None else self._total_s
        accepted, dispatched = (self._milestones.get(m) for m in (Milestone.ACCEPTED, Milestone.DISPATCHED))
        timing = ending.timing if ending else None
        parts = time_parts(timing, accepted, dispatched, total_s) if timing else None
        return Timings(accepted, dispatched, self._first_token_s, total_s, ending.timings if ending else (), parts)

    def _now_s(self) -> float:
        return time.monotonic() - self._started
