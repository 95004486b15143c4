"""A socket to send on and what waits for it, so that a loop can send without ever blocking."""

from __future__ import annotations

from dataclasses import dataclass

import zmq

from stagewire.sockets.outbox import Outbox
from stagewire.wire.codec import Frame


@dataclass(frozen=True, slots=True)
class SendSocket:
    """Messages leave in order, at once where they can."""

    socket: zmq.Socket[bytes]
    outbox: Outbox

    def put(self, frames: list[Frame], now: float) -> bool:
        """Send a message, or queue it; False when the outbox is full and it was dropped."""
        is_queued = self.outbox.put(frames, now)
        self.flush(now)
        return is_queued

    def flush(self, now: float) -> None:
        """Send all that is due, as far as the socket takes it."""
        if self.outbox:
            self.outbox.flush(self._try_send, now)

    def _try_send(self, frames: list[Frame]) -> bool:
        try:
            self.socket.send_multipart(frames, flags=zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True
