"""When the milestones of one request came, on this process's clock."""

from __future__ import annotations

import time

from stagewire.client.core.events import Milestone
from stagewire.client.result import Timings
from stagewire.client.time_parts import time_parts
from stagewire.wire.request import Ending


class Stopwatch:
    """Started when it is made; the first time of each kind counts."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._milestones: dict[Milestone, float] = {}
        self._first_token_s: float | None = None
        self._total_s: float | None = None

    def milestone(self, milestone: Milestone) -> None:
        self._milestones.setdefault(milestone, self._now_s())

    def token(self) -> None:
        if self._first_token_s is None:
            self._first_token_s = self._now_s()

    def end(self) -> None:
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
