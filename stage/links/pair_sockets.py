"""The tail's PAIR sockets, one per dialled return link; each is good for one connection and never reconnects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import zmq

from stagewire.sockets.condition import WireCondition
from stagewire.sockets.connection import WatchedSocket
from stagewire.sockets.nonblocking import Outbox, Ready, received_frames
from stagewire.stage.tail.return_link import CloseLink, Dial, SendLink
from stagewire.wire.codec import encode_frame

_OPTIONS = ((zmq.LINGER, 0), (zmq.RECONNECT_IVL, -1), (zmq.IMMEDIATE, 1), (zmq.MAXMSGSIZE, 4 * 1024 * 1024))
_OUTBOX_LIMIT = 2048
_MAX_RECEIVES = 64
_GONE = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
LinkKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LinkFrame:
    """A message that arrived on a link."""

    key: LinkKey
    frame: bytes


@dataclass(frozen=True, slots=True)
class LinkGone:
    """A link's connection ended, or its dial failed; its socket is closed already."""

    key: LinkKey


class PairSockets:
    """All direct return links of one stage."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], poller: zmq.Poller, condition: WireCondition | None
    ) -> None:
        self._context, self._poller, self._condition = context, poller, condition
        self._pairs: dict[LinkKey, WatchedSocket] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    def dial(self, dial: Dial, now: float) -> None:
        """Connect, and say hello as soon as the connection stands."""
        outbox = Outbox(_OUTBOX_LIMIT, self._condition)
        pair = WatchedSocket(self._context, zmq.PAIR, self._poller, _OPTIONS, _GONE, outbox)
        self._pairs[dial.client_id, dial.link] = pair
        outbox.put([encode_frame(dial.hello)], now)
        try:
            pair.socket.connect(dial.endpoint)
        except zmq.ZMQError:
            # Not an endpoint at all; the dial's deadline ends the attempt.
            return

    def send(self, send: SendLink, now: float) -> bool:
        """Queue a message; False when the link's outbox is full, and then the link must go."""
        pair = self._pairs.get((send.client_id, send.link))
        return pair is None or pair.sending.put([encode_frame(send.message)], now)

    def close(self, close: CloseLink) -> None:
        """Throw a link's socket away; unknown links are ignored."""
        pair = self._pairs.pop((close.client_id, close.link), None)
        if pair is not None:
            pair.close()

    def close_all(self) -> None:
        for client_id, link in [*self._pairs]:
            self.close(CloseLink(client_id, link))

    def flush(self, now: float) -> None:
        """Send what is due on every link."""
        for pair in self._pairs.values():
            pair.sending.flush(now)

    def next_due(self) -> float | None:
        """When the first waiting message is due (monotonic seconds)."""
        dues = [due for pair in self._pairs.values() if (due := pair.sending.outbox.next_due()) is not None]
        return min(dues, default=None)

    def receive(self, ready: Ready) -> Iterator[LinkFrame | LinkGone]:
        """What arrived: messages before the end of their link."""
        for key, pair in [*self._pairs.items()]:
            if pair.socket in ready:
                for frame in received_frames(pair.socket, _MAX_RECEIVES):
                    yield LinkFrame(key, frame)
            if pair.monitor in ready and key in self._pairs:
                self.close(CloseLink(*key))
                yield LinkGone(key)
