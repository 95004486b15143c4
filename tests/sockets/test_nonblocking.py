"""A loop waits exactly and never blocks: `poll_until` ends on time; a send socket keeps order; reading is bounded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from stagewire.sockets.nonblocking import Outbox, Ready, SendSocket, poll_until, received, received_frames, try_send

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


def wait(poller: zmq.Poller, end: float) -> Ready:
    """Call it until something is ready or the end is there."""
    ready: Ready = {}
    while not ready and time.monotonic() < end:
        ready = poll_until(poller, end)
    return ready


def test_it_returns_as_soon_as_a_message_is_there(pair: tuple[Socket, Socket, zmq.Poller]) -> None:
    sender, receiver, poller = pair
    started = time.monotonic()
    timer = threading.Timer(0.05, lambda: sender.send(b"x"))
    timer.start()
    ready = wait(poller, started + 20.0)
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


@pytest.mark.alone
def test_less_than_a_millisecond_is_mostly_slept(pair: tuple[Socket, Socket, zmq.Poller]) -> None:
    """`zmq.Poller` alone could only spin there, or be late by up to a millisecond."""
    _, _, poller = pair
    lates, used_s = [], time.thread_time()
    for _ in range(200):
        end = time.monotonic() + 0.0009
        assert wait(poller, end) == {}
        lates.append(time.monotonic() - end)
    used_s = time.thread_time() - used_s
    assert used_s < 0.6 * 200 * 0.0009
    assert min(lates) < 0.0002


def test_a_message_never_passes_one_that_waits(pair: tuple[Socket, Socket, zmq.Poller]) -> None:
    """It leaves at once only where nothing is queued before it; all arrive in order, and reading them is bounded."""
    sender, receiver, poller = pair
    sending = SendSocket(sender, Outbox(2))
    assert sending.put([b"at once"], 0.0) and not sending.outbox
    assert sending.outbox.put([b"waits"], 5.0)
    assert sending.put([b"queued"], 0.0) and len(sending.outbox) == 2
    assert not sending.put([b"too many"], 0.0), "the caller hears of it"
    sending.flush(5.0)
    texts: list[bytes] = []
    while len(texts) < 3 and poller.poll(2000):
        read = [frames[0] for frames in received(receiver, limit=2)]
        assert len(read) <= 2
        texts += read
    assert texts == [b"at once", b"waits", b"queued"]


def test_frames_of_one_message_are_read_one_by_one(pair: tuple[Socket, Socket, zmq.Poller]) -> None:
    """Where a message is one frame, one that has more is as many; a socket closed meanwhile ends the reading."""
    sender, receiver, poller = pair
    sender.send_multipart([b"1", b"2", b"3"])
    sender.send(b"4")
    taken: list[bytes] = []
    while len(taken) < 4 and poller.poll(2000):
        taken += received_frames(receiver)
    assert taken == [b"1", b"2", b"3", b"4"]
    sender.send_multipart([b"5", b"6"])
    assert poller.poll(2000)
    for _ in received_frames(receiver):
        receiver.close(linger=0)


def test_a_long_frame_arrives_as_a_short_one_does(pair: tuple[Socket, Socket, zmq.Poller]) -> None:
    """What is lent to libzmq and what is copied arrive alike."""
    sender, receiver, poller = pair
    frames = [bytes([number]) * size for number, size in enumerate((1, 65_535, 65_536, 3_000_000))]
    assert all(try_send(sender, [frame]) for frame in frames)
    taken: list[bytes] = []
    while len(taken) < 4 and poller.poll(2000):
        taken += received_frames(receiver)
    assert taken == frames


def test_reading_ends_with_its_socket(pair: tuple[Socket, Socket, zmq.Poller]) -> None:
    """Whoever takes a message may close the socket that it came from."""
    sender, receiver, poller = pair
    sender.send_multipart([b"1"])
    sender.send_multipart([b"2"])
    assert poller.poll(2000)
    time.sleep(0.05)
    for _ in received(receiver):
        receiver.close(linger=0)
