"""Waiting for sockets: messages at once, the end nearly exactly, and hardly any of it by spinning."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from stagewire.stage.poll_until import poll_until

Socket = zmq.Socket[bytes]


@pytest.fixture
def pair() -> Iterator[tuple[Socket, Socket, zmq.Poller]]:
    """A socket to send on, one to receive on, and a poller of the latter."""
    with zmq.Context() as context:
        receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        port = receiver.bind_to_random_port("tcp://127.0.0.1")
        sender.set(zmq.LINGER, 0)
        sender.connect(f"tcp://127.0.0.1:{port}")
        poller = zmq.Poller()
        poller.register(receiver, zmq.POLLIN)
        yield sender, receiver, poller
        sender.close()
        receiver.close(linger=0)


def wait(poller: zmq.Poller, end: float) -> tuple[dict[Socket, int], int]:
    """Call it until something is ready or the end is there; what, and how many calls that took."""
    num_calls = 0
    while time.monotonic() < end:
        num_calls += 1
        if ready := poll_until(poller, end):
            return ready, num_calls
    return {}, num_calls


def test_it_returns_as_soon_as_a_message_is_there(pair: tuple[Socket, Socket, zmq.Poller]) -> None:
    sender, receiver, poller = pair
    started = time.monotonic()
    timer = threading.Timer(0.05, lambda: sender.send(b"x"))
    timer.start()
    ready, _ = wait(poller, started + 20.0)
    timer.join()
    assert ready == {receiver: zmq.POLLIN}
    assert time.monotonic() - started < 10.0


def test_a_message_of_before_is_seen_after_the_end(pair: tuple[Socket, Socket, zmq.Poller]) -> None:
    """An end in the past asks what is ready now."""
    sender, receiver, poller = pair
    assert poll_until(poller, time.monotonic() - 1.0) == {}
    sender.send(b"x")
    assert receiver.poll(5000)
    assert poll_until(poller, time.monotonic() - 1.0) == {receiver: zmq.POLLIN}


def test_it_never_sleeps_past_the_end_but_does_sleep(pair: tuple[Socket, Socket, zmq.Poller]) -> None:
    """Milliseconds in one call, the last one in naps, and only the rest by asking again and again."""
    _, _, poller = pair
    lates, used = [], time.thread_time()
    for _ in range(20):
        end = time.monotonic() + 0.0206
        assert wait(poller, end)[0] == {}
        lates.append(time.monotonic() - end)
    used = time.thread_time() - used
    assert sorted(lates)[5] < 0.0004, "a quarter is exact even on a busy machine; milliseconds alone would not be"
    assert used < 0.2, "of 0.41 s"
