"""The tail's PAIR sockets, one per dialled return link; each is good for one connection and never reconnects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import recv_monitor_message

from stagewire.sockets.condition import WireCondition
from stagewire.sockets.outbox import Outbox
from stagewire.sockets.poll_until import Ready
from stagewire.sockets.send_socket import SendSocket
from stagewire.stage.tail.return_link import CloseLink, Dial, SendLink
from stagewire.wire.codec import encode

HANDSHAKE_MS = 2000
# The kernel notices a dead peer. ZMTP heartbeats would abort this process (`!_io_error`, libzmq 4.3.5) when a client
# leaves while its messages wait unread, as they do during a long step.
_NOTICE_DEAD_PEERS = (
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, 2),
    (zmq.TCP_KEEPALIVE_INTVL, 1),
    (zmq.TCP_KEEPALIVE_CNT, 2),
    (zmq.TCP_MAXRT, 4000),
)
_HIGH_WATER_MARK = 1000
_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
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
Socket = zmq.Socket[bytes]
LinkKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Pair:
    sending: SendSocket
    monitor: Socket

    @property
    def socket(self) -> Socket:
        return self.sending.socket


@dataclass(frozen=True, slots=True)
class LinkFrames:
    """A message that arrived on a link."""

    key: LinkKey
    frames: list[zmq.Frame]


@dataclass(frozen=True, slots=True)
class LinkGone:
    """A link's connection ended, or its dial failed; its socket is closed already."""

    key: LinkKey


class PairSockets:
    """All direct return links of one stage."""

    def __init__(self, context: zmq.Context[Socket], poller: zmq.Poller, condition: WireCondition | None) -> None:
        self._context, self._poller, self._condition = context, poller, condition
        self._pairs: dict[LinkKey, _Pair] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    def dial(self, dial: Dial, now: float) -> None:
        """Connect, and say hello as soon as the connection stands."""
        socket = self._context.socket(zmq.PAIR)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.RECONNECT_IVL, -1),
            (zmq.IMMEDIATE, 1),
            (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
            *_NOTICE_DEAD_PEERS,
            (zmq.SNDHWM, _HIGH_WATER_MARK),
            (zmq.RCVHWM, _HIGH_WATER_MARK),
            (zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES),
        ):
            socket.set(option, value)
        sending = SendSocket(socket, Outbox(_OUTBOX_LIMIT, self._condition))
        pair = _Pair(sending, socket.get_monitor_socket(_GONE))
        self._pairs[dial.client_id, dial.link] = pair
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(pair.monitor, zmq.POLLIN)
        sending.outbox.put(encode(dial.hello), now)
        try:
            socket.connect(dial.endpoint)
        except zmq.ZMQError:
            # Not an endpoint at all; the dial's deadline ends the attempt.
            return

    def send(self, send: SendLink, now: float) -> bool:
        """Queue a message; False when the link's outbox is full, and then the link must go."""
        pair = self._pairs.get((send.client_id, send.link))
        return pair is None or pair.sending.put(encode(send.message), now)

    def close(self, close: CloseLink) -> None:
        """Throw a link's socket away; unknown links are ignored."""
        pair = self._pairs.pop((close.client_id, close.link), None)
        if pair is None:
            return
        self._poller.unregister(pair.socket)
        self._poller.unregister(pair.monitor)
        pair.socket.disable_monitor()
        pair.monitor.close(linger=0)
        pair.socket.close(linger=0)

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

    def receive(self, ready: Ready) -> Iterator[LinkFrames | LinkGone]:
        """What arrived: messages before the end of their link."""
        for key, pair in [*self._pairs.items()]:
            if pair.socket in ready:
                for _ in range(_MAX_RECEIVES):
                    frames = _try_receive(pair.socket)
                    if frames is None:
                        break
                    yield LinkFrames(key, frames)
            if pair.monitor in ready and key in self._pairs:
                recv_monitor_message(pair.monitor)
                self.close(CloseLink(*key))
                yield LinkGone(key)


def _try_receive(socket: Socket) -> list[zmq.Frame] | None:
    if socket.closed:
        return None
    try:
        return socket.recv_multipart(flags=zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None
