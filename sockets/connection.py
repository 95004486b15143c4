"""How a socket comes to its peers: its options, the port it is bound to, and a monitor that tells of connections."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator

import zmq
from zmq.utils.monitor import recv_monitor_message

from stagewire.sockets.nonblocking import Outbox, SendSocket
from stagewire.wire.errors import ErrorCode, SettingsError

HIGH_WATER_MARK = 1000
WATCHFUL = (
    (zmq.HANDSHAKE_IVL, 2000),
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, 2),
    (zmq.TCP_KEEPALIVE_INTVL, 1),
    (zmq.TCP_KEEPALIVE_CNT, 2),
    (zmq.TCP_MAXRT, 4000),
    (zmq.SNDHWM, HIGH_WATER_MARK),
    (zmq.RCVHWM, HIGH_WATER_MARK),
)
"""Options with which the kernel notices a dead peer. Not ZMTP heartbeats: where those are on, libzmq 4.3.5 aborts the
process (`!_io_error` in stream_engine_base.cpp) when a peer leaves while its messages wait unread, as those to a stage
do during a long step and those of a PAIR's second peer always."""
Options = Iterable[tuple[int, int]]
_NO_SUCH_ADDRESS = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENODEV}


def new_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str) -> zmq.Socket[bytes]:
    """A socket that can be bound or connected to `endpoint`: libzmq takes IPv6 addresses only where it is told to.

    Raises:
        zmq.ZMQError: the process has no descriptor left.
    """
    socket = context.socket(kind)
    if "[" in endpoint:
        socket.set(zmq.IPV6, 1)
    return socket


class WatchedSocket:
    """A socket, what waits to be sent on it, and the monitor of its connections; both are in the poller.

    Raises:
        zmq.ZMQError: there are no descriptors, or no sockets of this context, left; nothing stays open.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        kind: int,
        poller: zmq.Poller,
        options: Options,
        events: int,
        outbox: Outbox,
    ) -> None:
        self.socket = context.socket(kind)
        try:
            for option, value in (*WATCHFUL, *options):
                self.socket.set(option, value)
            self.sending = SendSocket(self.socket, outbox)
            self.monitor = self.socket.get_monitor_socket(events)
        except zmq.ZMQError:
            self.socket.close(linger=0)
            raise
        self._poller = poller
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self.monitor, zmq.POLLIN)

    def news(self) -> Iterator[tuple[int, int]]:
        """All that its monitor has to tell: what has happened, and on which descriptor."""
        while int(self.monitor.get(zmq.EVENTS)) & zmq.POLLIN:
            message = recv_monitor_message(self.monitor)
            yield int(message["event"]), int(message["value"])

    def close(self, linger_ms: int = 0) -> None:
        self._poller.unregister(self.socket)
        self._poller.unregister(self.monitor)
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=linger_ms)


def bind(socket: zmq.Socket[bytes], endpoint: str, setting: str) -> str:
    """Bind to the endpoint that `setting` names; returns it with the port that it got.

    Raises:
        SettingsError: as `cannot_bind`; the socket is closed.
    """
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise cannot_bind(f"{setting}={endpoint}", error) from error
    return socket.get_string(zmq.LAST_ENDPOINT)


def cannot_bind(setting: str, error: OSError | zmq.ZMQError) -> SettingsError:
    """What to raise where a port cannot be had: PORT_IN_USE when another process has it, else INVALID_SETTING."""
    if error.errno == errno.EADDRINUSE:
        advice = "another process has this port (a second one of this kind?); stop it, or choose another port"
        return SettingsError(f"{setting}: {advice}", ErrorCode.PORT_IN_USE)
    if error.errno in _NO_SUCH_ADDRESS:
        return SettingsError(f"{setting}: this machine has no such address", ErrorCode.INVALID_SETTING)
    return SettingsError(f"{setting}: cannot be bound: {error.strerror}", ErrorCode.INVALID_SETTING)
