"""Waits for sockets until a point in time, more exactly than `zmq.Poller` alone, which counts milliseconds."""

from __future__ import annotations

import time

import zmq

_POLL_UNIT_S = 0.001
_NAP_S = 0.0001
"""A system's timer may be so late; the last nap ends before `end`, and what is left of the wait is spun."""


Ready = dict[zmq.Socket[bytes] | int, int]
"""What can be read from: sockets, and file descriptors of others than zmq's."""


def poll_until(poller: zmq.Poller, end: float) -> Ready:
    """What is ready, as soon as anything is; empty at `end` (monotonic seconds), or somewhat before it.

    Called again and again, it sleeps whole milliseconds first, then in naps, and at last not at all.
    """
    wait_s = end - time.monotonic()
    ready = dict(poller.poll(max(0, int(wait_s / _POLL_UNIT_S))))
    if not ready and 2 * _NAP_S < wait_s < _POLL_UNIT_S:
        time.sleep(_NAP_S)
        return dict(poller.poll(0))
    return ready
