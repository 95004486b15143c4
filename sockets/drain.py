"""Takes what waits at a socket, a bounded number of messages at a time."""

from __future__ import annotations

import time
from collections.abc import Callable

import zmq

from stagewire.wire.codec import Frames

_MAX_RECEIVES = 256


def drain(socket: zmq.Socket[bytes], take: Callable[[Frames, float], None]) -> None:
    """Hands each message to `take`, with the time. Poll has said that there is one."""
    for _ in range(_MAX_RECEIVES):
        try:
            # Copied: a frame that is not costs more by itself than copying most messages does.
            frames = socket.recv_multipart(flags=zmq.NOBLOCK)
        except zmq.Again:
            return
        take(frames, time.monotonic())
        # An exception would say it as well, at the price of a message.
        if not int(socket.get(zmq.EVENTS)) & zmq.POLLIN:
            return
