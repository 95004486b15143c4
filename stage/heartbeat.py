"""The thread that tells the broker that this process lives, and whether its current step moves.

It has a socket of its own, so that a long forward pass in the loop's thread does not silence it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType

import zmq

from stagewire.sockets.connection import new_socket
from stagewire.wire.codec import decode, encode
from stagewire.wire.control import Heartbeat
from stagewire.wire.counters import StageCounters
from stagewire.wire.errors import ProtocolError
from stagewire.wire.frontend import WhoAreYou

HEARTBEAT_S = 0.5


class Progress:
    """Finished steps, since when the current one is computed, and counters; written by the loop, read by the thread."""

    def __init__(self) -> None:
        self.counters: StageCounters | None = None
        self.num_steps = 0
        self.step_begun_at: float | None = None

    def heartbeat(self, stage_id: str, run: int, now: float) -> Heartbeat:
        begun_at = self.step_begun_at
        step_age_s = None if begun_at is None else max(0.0, now - begun_at)
        return Heartbeat(stage_id, run, self.num_steps, step_age_s, self.counters)


class HeartbeatThread:
    """Sends a `Heartbeat` every 0.5 s while its context is entered; a full socket just skips one."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, stage_id: str, run: int) -> None:
        self._context, self._endpoint = context, endpoint
        self._stage_id, self._run = stage_id, run
        self._stopped, self._is_unknown = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.progress = Progress()

    def __enter__(self) -> HeartbeatThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join(timeout=2 * HEARTBEAT_S)

    def is_unknown(self) -> bool:
        """Whether the broker has answered `WhoAreYou` since this was last asked: the loop must register again."""
        was_unknown = self._is_unknown.is_set()
        self._is_unknown.clear()
        return was_unknown

    def _beat(self) -> None:
        with new_socket(self._context, zmq.DEALER, self._endpoint) as socket:
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.SNDHWM, 4)
            socket.connect(self._endpoint)
            while not self._stopped.wait(HEARTBEAT_S):
                beat = self.progress.heartbeat(self._stage_id, self._run, time.monotonic())
                with contextlib.suppress(zmq.Again):
                    socket.send_multipart(encode(beat), flags=zmq.NOBLOCK, copy=True)
                self._read(socket)

    def _read(self, socket: zmq.Socket[bytes]) -> None:
        """A broker that has restarted knows the stage first by its heartbeat, and can only ask here."""
        try:
            while True:
                if isinstance(decode(socket.recv_multipart(flags=zmq.NOBLOCK)), WhoAreYou):
                    self._is_unknown.set()
        except (zmq.Again, ProtocolError):
            return
