"""Sends, receives and waits that never hold a loop up: what all loops do between two looks at their poller."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import zmq

from stagewire.sockets.condition import ConditionedLink, WireCondition
from stagewire.wire.codec import Frame

_MAX_RECEIVES = 256
_COPIED_BYTES = 65_536
"""A shorter message is copied sooner than it is lent to libzmq's thread."""
_POLL_UNIT_S = 0.001
_NAP_S = 0.0001
_READABLE = int(zmq.POLLIN)  # an enum's own `&` takes longer than asking the socket
"""A system's timer may be so late; the last nap ends before `end`, and what is left of the wait is spun."""
Ready = dict[zmq.Socket[bytes] | int, int]
"""What can be read from: sockets, and file descriptors of others than zmq's."""


class Outbox:
    """Messages that wait for their socket, or for the simulated network.

    `put` refuses beyond `limit`; what then happens is the loop's decision, never a silent drop here.
    """

    def __init__(self, limit: int, condition: WireCondition | None = None) -> None:
        self._limit = limit
        self._link = ConditionedLink(condition) if condition else None
        self._messages: deque[tuple[float, list[Frame]]] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def may_be_passed(self) -> bool:
        """A message may leave at once: none is before it, and no network is simulated."""
        return not self._messages and self._link is None

    def put(self, frames: list[Frame], now: float) -> bool:
        """Queue a message; False when the outbox is full and nothing was queued."""
        if len(self._messages) >= self._limit:
            return False
        due = self._link.arrival(now, sum(len(frame) for frame in frames)) if self._link else now
        self._messages.append((due, frames))
        return True

    def flush(self, send: Callable[[list[Frame]], bool], now: float) -> None:
        """Send all that is due, in order, until `send` says that the socket is full (False)."""
        while self._messages and self._messages[0][0] <= now and send(self._messages[0][1]):
            self._messages.popleft()

    def next_due(self) -> float | None:
        """When the first message may go (monotonic seconds), or None when there is none."""
        return self._messages[0][0] if self._messages else None

    def clear(self) -> None:
        self._messages.clear()


@dataclass(frozen=True, slots=True)
class SendSocket:
    """A socket and what waits for it: messages leave in order, at once where they can."""

    socket: zmq.Socket[bytes]
    outbox: Outbox

    def put(self, frames: list[Frame], now: float) -> bool:
        """Send a message, or queue it; False when the outbox is full and it was dropped."""
        if self.outbox.may_be_passed and try_send(self.socket, frames):
            return True
        is_queued = self.outbox.put(frames, now)
        self.flush(now)
        return is_queued

    def flush(self, now: float) -> None:
        """Send all that is due, as far as the socket takes it."""
        if self.outbox:
            self.outbox.flush(lambda frames: try_send(self.socket, frames), now)


def try_send(socket: zmq.Socket[bytes], frames: list[Frame]) -> bool:
    """Send without waiting; False when the socket takes nothing now."""
    try:
        if len(frames) == 1:
            socket.send(frames[0], zmq.NOBLOCK, copy=len(frames[0]) < _COPIED_BYTES)
        else:
            socket.send_multipart(frames, flags=zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return False
    return True


def received(socket: zmq.Socket[bytes], limit: int = _MAX_RECEIVES) -> Iterator[list[bytes]]:
    """The messages that wait at a socket, `limit` at most; closing the socket meanwhile ends them."""
    for _ in range(limit):
        try:
            # Copied: a frame that is not costs more by itself than copying most messages does.
            frames = socket.recv_multipart(flags=zmq.NOBLOCK)
        except zmq.Again:
            return
        yield frames
        # An exception would say it as well, at the price of a message.
        if socket.closed or not int(socket.get(zmq.EVENTS)) & _READABLE:
            return


def received_frames(socket: zmq.Socket[bytes], limit: int = _MAX_RECEIVES) -> Iterator[bytes]:
    """As `received`, where a message is one frame: what has more comes as so many messages."""
    for _ in range(limit):
        try:
            frame = socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return
        yield frame
        if socket.closed or not int(socket.get(zmq.EVENTS)) & _READABLE:
            return


def poll_until(poller: zmq.Poller, end: float) -> Ready:
    """What is ready, as soon as anything is; empty at `end` (monotonic seconds), or somewhat before it.

    More exact than `zmq.Poller` alone, which counts milliseconds. Called again and again, it sleeps whole
    milliseconds first, then in naps, and at last not at all.
    """
    wait_s = end - time.monotonic()
    ready = dict(poller.poll(max(0, int(wait_s / _POLL_UNIT_S))))
    if not ready and 2 * _NAP_S < wait_s < _POLL_UNIT_S:
        time.sleep(_NAP_S)
        return dict(poller.poll(0))
    return ready
