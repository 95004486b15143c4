"""One PUSH socket to one head: numbered messages of one epoch, repeated when idle; it never blocks."""

from __future__ import annotations

import zmq

from stagewire.sockets.condition import WireCondition
from stagewire.sockets.connection import HIGH_WATER_MARK
from stagewire.sockets.nonblocking import Outbox, SendSocket
from stagewire.wire.codec import BROKER, Message, encode_ring
from stagewire.wire.epoch import Epoch
from stagewire.wire.numbering import SenderNumbers
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
        self._sending = SendSocket(context.socket(zmq.PUSH), Outbox(_OUTBOX_MESSAGES, condition))
        self._sending.socket.set(zmq.SNDHWM, HIGH_WATER_MARK)
        self._sending.socket.connect(endpoint)

    @property
    def has_pending(self) -> bool:
        return len(self._sending.outbox) > 0

    def send(self, message: Message, now: float) -> bool:
        """Send it now or later; False when the head has not read for long."""
        return self._sending.put(encode_ring(self._numbers.next(now), message), now)

    def flush(self, now: float) -> None:
        """Send what is due, and the idle repetition; a waiting message makes that needless."""
        self._sending.flush(now)
        envelope = None if self.has_pending else self._numbers.repeat(now)
        if envelope:
            self._sending.put(encode_ring(envelope, Repeat()), now)

    def close(self, linger_s: float) -> None:
        self._sending.socket.close(linger=round(linger_s * 1000))
