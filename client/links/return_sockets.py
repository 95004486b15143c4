"""The client's PAIR sockets: each bound for one connection, watched by a monitor, and thrown away after it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

import zmq
from zmq.utils.monitor import recv_monitor_message

from stagewire.client.core.events import (
    Event,
    LinkConnected,
    LinkDisconnected,
    LinkFaulty,
    LinkMessage,
    OfferBound,
    OfferFailed,
)
from stagewire.sockets.outbox import Outbox
from stagewire.wire.codec import Frame, Message, decode, encode
from stagewire.wire.errors import ProtocolError
from stagewire.wire.request import ReturnOffer

Socket = zmq.Socket[bytes]
NOTICE_DEAD_PEERS = (
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, 2),
    (zmq.TCP_KEEPALIVE_INTVL, 1),
    (zmq.TCP_KEEPALIVE_CNT, 2),
    (zmq.TCP_MAXRT, 4000),
)
"""The kernel's means, and not ZMTP heartbeats: where those are on, libzmq 4.3.5 aborts the process when a peer
leaves while it is not being read, as a second peer never is (`!_io_error` in stream_engine_base.cpp)."""
_HIGH_WATER_MARK = 1000
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


@dataclass(slots=True)
class _Bound:
    socket: Socket
    monitor: Socket
    outbox: Outbox
    connections: Connections = field(default_factory=Connections)


class ReturnSockets:
    """All bound return endpoints of one client, by generation."""

    def __init__(self, context: zmq.Context[Socket], poller: zmq.Poller, host: str) -> None:
        self._context, self._poller = context, poller
        self._host = f"[{host}]" if ":" in host else host
        self._bound: dict[int, _Bound] = {}

    def bind(self, generation: int) -> Event:
        """Bind a fresh endpoint on a free port."""
        socket = self._context.socket(zmq.PAIR)
        try:
            for option, value in (
                (zmq.LINGER, 0),
                (zmq.IPV6, int(":" in self._host)),
                (zmq.HANDSHAKE_IVL, 2000),
                *NOTICE_DEAD_PEERS,
                (zmq.SNDHWM, _HIGH_WATER_MARK),
                (zmq.RCVHWM, _HIGH_WATER_MARK),
                (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES),
            ):
                socket.set(option, value)
            socket.bind(f"tcp://{self._host}:*")
        except zmq.ZMQError as error:
            socket.close(linger=0)
            return OfferFailed(generation, f"cannot bind an endpoint on {self._host}: {error.strerror}")
        monitor = socket.get_monitor_socket(_EVENTS)
        self._bound[generation] = _Bound(socket, monitor, Outbox(_OUTBOX_LIMIT))
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(monitor, zmq.POLLIN)
        endpoint = socket.get_string(zmq.LAST_ENDPOINT)
        return OfferBound(ReturnOffer(endpoint, secrets.token_bytes(16), generation))

    def close(self, generation: int) -> None:
        """Throw a socket away; unknown generations are ignored."""
        bound = self._bound.pop(generation, None)
        if bound is None:
            return
        self._poller.unregister(bound.socket)
        self._poller.unregister(bound.monitor)
        bound.socket.disable_monitor()
        bound.monitor.close(linger=0)
        bound.socket.close(linger=0)

    def close_all(self) -> None:
        for generation in [*self._bound]:
            self.close(generation)

    def send(self, generation: int, message: Message, now: float) -> Event | None:
        """Queue a message; the event of a peer that does not read, or None."""
        bound = self._bound.get(generation)
        if bound is None:
            return None
        if not bound.outbox.put(encode(message), now):
            self.close(generation)
            return LinkFaulty(generation, "the tail does not read")
        bound.outbox.flush(lambda frames: try_send(bound.socket, frames), now)
        return None

    def flush(self, now: float) -> None:
        for bound in self._bound.values():
            if bound.outbox:
                bound.outbox.flush(lambda frames, bound=bound: try_send(bound.socket, frames), now)  # type: ignore[misc]

    @property
    def has_pending(self) -> bool:
        return any(bound.outbox for bound in self._bound.values())

    def receive(self, ready: dict[Socket, int]) -> Iterator[Event]:
        """What has arrived: a connection before its messages, messages before its end."""
        for generation, bound in [*self._bound.items()]:
            if bound.monitor not in ready and bound.socket not in ready:
                continue
            connections = bound.connections
            was_connected = connections.is_connected
            # Also when only the socket is ready: its connection was reported before its first message.
            _watch(bound.monitor, connections)
            if connections.is_connected and not was_connected:
                yield LinkConnected(generation)
            if bound.socket in ready or connections.is_over:
                yield from self._read(generation, bound)
            if connections.is_over and generation in self._bound:
                self.close(generation)
                yield LinkDisconnected(generation)

    def _read(self, generation: int, bound: _Bound) -> Iterator[Event]:
        for _ in range(_MAX_RECEIVES):
            if generation not in self._bound:
                return
            try:
                frames = bound.socket.recv_multipart(flags=zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                yield LinkMessage(generation, decode([frame.buffer for frame in frames]))
            except ProtocolError as error:
                yield LinkFaulty(generation, error.detail)


def _watch(monitor: Socket, connections: Connections) -> None:
    """Take all events that wait at a monitor."""
    while monitor.poll(0):
        message = recv_monitor_message(monitor)
        connections.take(int(message["event"]), int(message["value"]))


def try_send(socket: Socket, frames: list[Frame]) -> bool:
    """Send without waiting; False when the socket takes nothing now."""
    try:
        socket.send_multipart(frames, flags=zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return False
    return True
