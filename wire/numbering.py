"""The numbers on the ring's links: who sends which, and whether one is missing."""

from __future__ import annotations

from enum import Enum

from stagewire.wire.codec import BROKER, Envelope
from stagewire.wire.epoch import Epoch

REPEAT_S = 0.5
"""An idle sender repeats its last number this often."""


class SenderNumbers:
    """One link of one sender within one epoch; a link that sends nothing repeats its last number."""

    def __init__(self, epoch: Epoch, sender: int, run: int = 0) -> None:
        self._epoch, self._sender, self._run = epoch, sender, run
        self._last = 0
        self._sent_at = float("-inf")

    def next(self, now: float) -> Envelope:
        """The envelope of a new message."""
        self._last += 1
        self._sent_at = now
        return Envelope(self._epoch, self._sender, self._run, self._last)

    def repeat(self, now: float) -> Envelope | None:
        """The envelope of a `Repeat` if one is due, else None."""
        if now - self._sent_at < REPEAT_S:
            return None
        self._sent_at = now
        return Envelope(self._epoch, self._sender, self._run, self._last)


class Arrival(Enum):
    """What a receiver does with a message: take it, drop it, or end the epoch because one is missing."""

    TAKE = "take"
    DROP = "drop"
    GAP = "gap"


class ReceiverNumbers:
    """All links into one receiver within one epoch."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._last: dict[int, int] = {}
        self._broker_run = 0

    def arrive(self, envelope: Envelope, is_repeat: bool) -> Arrival:
        """Judge one message; after GAP the numbers are of no more use."""
        if envelope.epoch != self._epoch or self._is_old_broker(envelope):
            return Arrival.DROP
        last = self._last.get(envelope.sender, 0)
        if is_repeat:
            return Arrival.DROP if envelope.sequence == last else Arrival.GAP
        self._last[envelope.sender] = envelope.sequence
        return Arrival.TAKE if envelope.sequence == last + 1 else Arrival.GAP

    def _is_old_broker(self, envelope: Envelope) -> bool:
        if envelope.sender != BROKER or envelope.run == self._broker_run:
            return False
        if envelope.run < self._broker_run:
            return True
        # A restarted broker begins anew.
        self._broker_run = envelope.run
        self._last[BROKER] = 0
        return False
