"""How callers wake the socket thread, which waits for its sockets and for nothing else."""

from __future__ import annotations

import socket
from contextlib import suppress


class WakeUp:
    """Two connected sockets: a byte into the one makes the other readable. Neither ever blocks."""

    def __init__(self) -> None:
        self._sender, self.receiver = socket.socketpair()
        for end in (self._sender, self.receiver):
            end.setblocking(False)

    def call(self) -> None:
        """From any thread; also when it was called already, or is closed."""
        with suppress(OSError):
            self._sender.send(b"x")

    def clear(self) -> None:
        """It has woken up."""
        with suppress(OSError):
            self.receiver.recv(64)

    def close(self) -> None:
        self._sender.close()
        self.receiver.close()
