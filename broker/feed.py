"""One PUSH socket to one head: numbered messages of one epoch, repeated when idle; it never blocks."""

from __future__ import annotations

import zmq

from stagewire.broker.router import HIGH_WATER_MARK
from stagewire.sockets.condition import WireCondition
from stagewire.sockets.outbox import Outbox
from stagewire.wire.codec import BROKER, Frame, Message, SenderNumbers, encode_ring
from stagewire.wire.epoch import Epoch
from stagewire.wire.ring import Repeat

_OUTBOX_MESSAGES = 1024


class Feed:
    """The broker's end of a head's feed, from the time that its pipeline serves until it breaks."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        epoch: Epoch,
        endpoint: str,
        run: int,
        condition: WireCondition | None,
    ) -> None:
        self._numbers = SenderNumbers(epoch, BROKER, run)
        self._outbox = Outbox(_OUTBOX_MESSAGES, condition)
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self._socket.connect(endpoint)

    @property
    def has_pending(self) -> bool:
        return len(self._outbox) > 0

    def send(self, message: Message, now: float) -> bool:
        """Send it now or later; False when the head has not read for long."""
        is_queued = self._outbox.put(encode_ring(self._numbers.next(now), message), now)
        self.flush(now)
        return is_queued

    def flush(self, now: float) -> None:
        """Send what is due, and the idle repetition; a waiting message makes that needless."""
        self._outbox.flush(self._send_now, now)
        if not self._outbox:
            envelope = self._numbers.repeat(now)
            if envelope:
                self._outbox.put(encode_ring(envelope, Repeat()), now)
                self._outbox.flush(self._send_now, now)

    def _send_now(self, frames: list[Frame]) -> bool:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self, linger_s: float) -> None:
        self._socket.close(linger=round(linger_s * 1000))
