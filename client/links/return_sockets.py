"""The client's PAIR sockets: each bound for one connection, watched by a monitor, and thrown away after it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

import zmq

from stagewire.client.core.events import (
    Event,
    LinkConnected,
    LinkDisconnected,
    LinkFaulty,
    LinkMessage,
    OfferBound,
    OfferFailed,
)
from stagewire.sockets.connection import WatchedSocket
from stagewire.sockets.nonblocking import Outbox, Ready, received_frames
from stagewire.wire.codec import Message, decode_frame, encode_frame
from stagewire.wire.errors import ProtocolError
from stagewire.wire.request import ReturnOffer

_OUTBOX_LIMIT = 4096
_MAX_RECEIVES = 64
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


@dataclass(slots=True)
class Connections:
    """Which of a PAIR's connections is its one peer, by what its monitor tells.

    The first that shakes hands is; a later one is ignored by libzmq, and so is its end here. `peer` is its file
    descriptor; None where several were shaking hands at once, and then any of them may have been it.
    """

    waiting: list[int] = field(default_factory=list)
    is_connected: bool = False
    peer: int | None = None
    is_over: bool = False

    def take(self, event: int, descriptor: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self.waiting.append(descriptor)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED and not self.is_connected:
            self.is_connected = True
            self.peer = self.waiting[0] if len(self.waiting) == 1 else None
        elif event == zmq.EVENT_DISCONNECTED:
            if descriptor in self.waiting:
                self.waiting.remove(descriptor)
            # A socket on which a handshake failed may be spoiled as well: the next peer might be dead on arrival.
            self.is_over |= not self.is_connected or self.peer in (None, descriptor)


class _Bound(WatchedSocket):
    """One return endpoint, and what its monitor has told."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], poller: zmq.Poller, host: str) -> None:
        options = ((zmq.LINGER, 0), (zmq.IPV6, int(":" in host)), (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES))
        super().__init__(context, zmq.PAIR, poller, options, _EVENTS, Outbox(_OUTBOX_LIMIT))
        self.connections = Connections()


class ReturnSockets:
    """All bound return endpoints of one client, by generation."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], poller: zmq.Poller, host: str) -> None:
        self._context, self._poller = context, poller
        self._host = f"[{host}]" if ":" in host else host
        self._bound: dict[int, _Bound] = {}

    def bind(self, generation: int) -> Event:
        """Bind a fresh endpoint on a free port."""
        bound = _Bound(self._context, self._poller, self._host)
        try:
            bound.socket.bind(f"tcp://{self._host}:*")
        except zmq.ZMQError as error:
            bound.close()
            return OfferFailed(generation, f"cannot bind an endpoint on {self._host}: {error.strerror}")
        self._bound[generation] = bound
        endpoint = bound.socket.get_string(zmq.LAST_ENDPOINT)
        return OfferBound(ReturnOffer(endpoint, secrets.token_bytes(16), generation))

    def close(self, generation: int) -> None:
        """Throw a socket away; unknown generations are ignored."""
        bound = self._bound.pop(generation, None)
        if bound is not None:
            bound.close()

    def close_all(self) -> None:
        for generation in [*self._bound]:
            self.close(generation)

    def send(self, generation: int, message: Message, now: float) -> Event | None:
        """Queue a message; the event of a peer that does not read, or None."""
        bound = self._bound.get(generation)
        if bound is None or bound.sending.put([encode_frame(message)], now):
            return None
        self.close(generation)
        return LinkFaulty(generation, "the tail does not read")

    def flush(self, now: float) -> None:
        for bound in self._bound.values():
            bound.sending.flush(now)

    @property
    def has_pending(self) -> bool:
        return any(bound.sending.outbox for bound in self._bound.values())

    def receive(self, ready: Ready) -> Iterator[Event]:
        """What has arrived: a connection before its messages, messages before its end."""
        for generation, bound in [*self._bound.items()]:
            if bound.monitor not in ready and bound.socket not in ready:
                continue
            connections = bound.connections
            if bound.monitor in ready or not connections.is_connected:
                was_connected = connections.is_connected
                # Also when only the socket is ready: its connection was reported before its first message.
                for event, descriptor in bound.news():
                    connections.take(event, descriptor)
                if connections.is_connected and not was_connected:
                    yield LinkConnected(generation)
            if bound.socket in ready or connections.is_over:
                yield from self._read(generation, bound)
            if connections.is_over and generation in self._bound:
                self.close(generation)
                yield LinkDisconnected(generation)

    def _read(self, generation: int, bound: _Bound) -> Iterator[Event]:
        if generation not in self._bound:
            return
        for frame in received_frames(bound.socket, _MAX_RECEIVES):
            yield _event_of(generation, frame)


def _event_of(generation: int, frame: bytes) -> Event:
    try:
        return LinkMessage(generation, decode_frame(frame))
    except ProtocolError as error:
        return LinkFaulty(generation, error.detail)
