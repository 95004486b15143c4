"""The stopwatch of a stage's loop: what one step, and reading and writing its messages, have taken."""

from __future__ import annotations

import time

import zmq

from stagewire.sockets.nonblocking import Ready, poll_until
from stagewire.stage.timing.ring_clock import Reading
from stagewire.wire.request import StageTiming


class LoopClock:
    """Between two polls; sums are kept by `StageMeasures`."""

    def __init__(self) -> None:
        self._polled_at = self._sampled_at = time.monotonic()
        self._unread_s = self._written_s = 0.0
        self.idle_s = 0.0

    def poll(self, poller: zmq.Poller, end: float) -> Ready:
        """As `poll_until`; what is there at once may have lain there since the last time."""
        asked_at = time.monotonic()
        ready = poll_until(poller, asked_at)
        has_waited = not ready and end > asked_at
        if has_waited:
            ready = poll_until(poller, end)
        now = time.monotonic()
        self._unread_s = 0.0 if has_waited else asked_at - self._polled_at
        self.idle_s += now - asked_at if has_waited else 0.0
        self._polled_at = now
        return ready

    def reading(self, read_s: float) -> Reading:
        """How a message of the ring came in that was turned from frames in `read_s`."""
        return Reading(read_s, self._unread_s)

    def timing(self, stage_index: int, begun: float, planned: float, computed: float, sampled: float) -> StageTiming:
        """Of a step, from when it was begun; what writing the last one took goes with it."""
        written_s, self._written_s, self._sampled_at = self._written_s, 0.0, sampled
        spent = (1, computed - planned, sampled - computed, written_s)
        return StageTiming(stage_index, *spent, plan_s=planned - begun, written_s=written_s)

    def wrote(self, now: float) -> float:
        """What came of the step was booked and turned into frames; returns how long that took."""
        self._written_s = now - self._sampled_at
        return self._written_s
