"""By the head's clock: what each sequence waits for its next step, and what each step's round trip takes.

No clock of its own: `now` is monotonic seconds of the head.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from stagewire.wire.request import StageTiming
from stagewire.wire.ring import Step
from stagewire.wire.timing import Wait


@dataclass(frozen=True, slots=True)
class Reading:
    """How a message of the ring came in: read in `read_s`; before, `unread_s` at most, it lay at a busy stage."""

    read_s: float = 0.0
    unread_s: float = 0.0


NO_TIME = Reading()
"""Nothing to speak of."""


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A step's way around the ring: what it took, and what of that the stages do not explain."""

    total_s: float
    hops_s: float


@dataclass(slots=True)
class _Waiting:
    """A sequence since its last step; `since` counts while no step holds it."""

    since: float
    num_in_flight: int = 0
    is_paused: bool = False
    is_fetching: bool = False
    queue_s: float = 0.0
    paused_s: float = 0.0
    fetch_s: float = 0.0
    reading: Reading = NO_TIME

    def settle(self, now: float) -> None:
        """Book the time up to now."""
        if not self.num_in_flight:
            if self.is_fetching:
                self.fetch_s += now - self.since
            elif self.is_paused:
                self.paused_s += now - self.since
            else:
                self.queue_s += now - self.since
            self.since = now

    def take(self, seq_id: int) -> Wait:
        """What it has waited; it begins anew."""
        waits = (self.queue_s, self.paused_s, self.reading.read_s, self.reading.unread_s, self.fetch_s)
        wait = Wait(seq_id, *waits)
        self.queue_s, self.paused_s, self.fetch_s, self.reading = 0.0, 0.0, 0.0, NO_TIME
        return wait


class RingClock:
    """Sequences by id from their arrival to their end, and steps from their launch to their result."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}
        self._steps: dict[int, tuple[float, tuple[int, ...]]] = {}

    def arrived(self, seq_id: int, now: float) -> None:
        """A sequence is there."""
        self._waiting[seq_id] = _Waiting(now)

    def paused(self, seq_id: int, is_paused: bool, now: float) -> None:
        """Its client does not read, or reads again."""
        if waiting := self._waiting.get(seq_id):
            waiting.settle(now)
            waiting.is_paused = is_paused

    def fetching(self, seq_id: int, is_fetching: bool, now: float) -> None:
        """Stages begin to read files for it, or have read them."""
        if waiting := self._waiting.get(seq_id):
            waiting.settle(now)
            waiting.is_fetching = is_fetching

    def gone(self, seq_id: int) -> None:
        """The sequence has ended."""
        self._waiting.pop(seq_id, None)

    def launched(self, step: Step, now: float) -> Step:
        """A step begins: it is given what its sequences have waited."""
        seq_ids = tuple(dict.fromkeys([piece.seq_id for piece in step.slices]))
        self._steps[step.step_id] = now, seq_ids
        waits = tuple([self._leave(seq_id, now) for seq_id in seq_ids if seq_id in self._waiting])
        return replace(step, waits=waits) if waits else step

    def _leave(self, seq_id: int, now: float) -> Wait:
        waiting = self._waiting[seq_id]
        waiting.settle(now)
        waiting.num_in_flight += 1
        return waiting.take(seq_id)

    def returned(
        self, step_id: int, timings: Iterable[StageTiming], now: float, reading: Reading = NO_TIME
    ) -> RoundTrip | None:
        """A step's result was read; None if its launch is not known."""
        launched = self._steps.pop(step_id, None)
        if launched is None:
            return None
        launched_at, seq_ids = launched
        for seq_id in seq_ids:
            if waiting := self._waiting.get(seq_id):
                waiting.num_in_flight -= 1
                waiting.since, waiting.reading = now, reading
        return self._round_trip(now - launched_at, timings, reading)

    @staticmethod
    def _round_trip(total_s: float, timings: Iterable[StageTiming], reading: Reading) -> RoundTrip:
        # What may have lain unread is not the network's, as far as the round trip has time for it.
        known_s = reading.read_s + reading.unread_s + sum([timing.total_s + timing.unread_s for timing in timings])
        return RoundTrip(total_s, max(0.0, total_s - known_s))
