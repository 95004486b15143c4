"""What PAIR does over TCP when things go wrong, with real sockets; and that neither end of the return link trips.

First each fact of libzmq that the return link is built around, so that a version that behaves otherwise is noticed;
then the two ends as they are: `ReturnSockets` of the client and `PairSockets` of the tail.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import zmq

from stagewire.client.core.events import LinkConnected, LinkDisconnected, LinkMessage, OfferBound, OfferFailed
from stagewire.client.links.return_sockets import ReturnSockets
from stagewire.stage.links.pair_sockets import LinkFrame, LinkGone, PairSockets
from stagewire.stage.tail.return_link import Dial, SendLink
from stagewire.wire.codec import Message, decode_frame, encode_frame
from stagewire.wire.epoch import Epoch
from stagewire.wire.returns import ReturnAck, ReturnHello, TailHello

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]
EPOCH = Epoch(1, 1)
_open: list[Socket] = []
HELLO = TailHello(EPOCH, "c", 1, b"offer", b"tail")


@pytest.fixture
def context() -> Iterator[Context]:
    made: Context = zmq.Context()
    yield made
    while _open:
        _open.pop().close(linger=0)
    made.term()


def pair(context: Context, **options: int) -> Socket:
    socket = context.socket(zmq.PAIR)
    _open.append(socket)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.RCVTIMEO, 2000)
    for name, value in options.items():
        socket.set(getattr(zmq, name), value)
    return socket


def bound(context: Context) -> tuple[Socket, str]:
    socket = pair(context)
    socket.bind("tcp://127.0.0.1:*")
    return socket, socket.get_string(zmq.LAST_ENDPOINT)


# --- facts of libzmq ---


def test_fact_a_second_peer_is_silently_ignored(context: Context) -> None:
    """Its handshake succeeds, its messages vanish, also after the first peer has gone."""
    server, endpoint = bound(context)
    first, second = pair(context), pair(context)
    first.connect(endpoint)
    first.send(b"first")
    assert server.recv() == b"first"
    monitor = second.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    second.connect(endpoint)
    assert monitor.poll(2000), "the second peer believes that it is connected"
    second.send(b"second")
    assert not server.poll(300)
    first.close()
    assert not server.poll(300)
    second.disable_monitor()
    monitor.close()


def test_fact_messages_for_a_peer_that_dies_are_lost_without_an_error(context: Context) -> None:
    """`send` accepted them; nobody ever hears of it."""
    server, endpoint = bound(context)
    client = pair(context)
    client.connect(endpoint)
    client.send(b"hello")
    assert server.recv() == b"hello"
    for _ in range(3):
        server.send(b"lost", flags=zmq.NOBLOCK)
    client.close()
    time.sleep(0.2)
    follower = pair(context)
    follower.connect(endpoint)
    follower.send(b"again")
    assert not follower.poll(300), "what was queued for the dead is not given to the next"


def test_fact_a_dial_to_a_pair_held_by_a_silent_stranger_looks_successful(context: Context) -> None:
    """Only a reply tells a good link from a bad one."""
    _server, endpoint = bound(context)
    stranger = pair(context)
    stranger.connect(endpoint)
    time.sleep(0.2)
    late = pair(context, RECONNECT_IVL=-1, IMMEDIATE=1)
    monitor = late.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    late.connect(endpoint)
    assert monitor.poll(2000)
    late.send(b"anybody?", flags=zmq.NOBLOCK)
    assert not late.poll(300)
    late.disable_monitor()
    monitor.close()


def test_fact_a_port_that_is_taken_is_an_error(context: Context) -> None:
    """Two binders cannot share an endpoint."""
    _server, endpoint = bound(context)
    with pytest.raises(zmq.ZMQError) as error:
        pair(context).bind(endpoint)
    assert error.value.errno == zmq.EADDRINUSE


# --- the tail's end ---


class Tail:
    """`PairSockets` with the poller that the stage's loop would turn."""

    def __init__(self, context: Context) -> None:
        self.poller = zmq.Poller()
        self.sockets = PairSockets(context, self.poller, None)

    def dial(self, endpoint: str, link: int = 1) -> None:
        self.sockets.dial(Dial("c", link, endpoint, HELLO), time.monotonic())

    def wait(self, seconds: float = 3.0) -> LinkFrame | LinkGone | None:
        """The next thing that happens, or None."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ready = dict(self.poller.poll(20))
            for event in self.sockets.receive(ready):
                return event
            self.sockets.flush(time.monotonic())
        return None


@pytest.fixture
def tail(context: Context) -> Iterator[Tail]:
    made = Tail(context)
    yield made
    made.sockets.close_all()


def test_the_tail_greets_as_soon_as_the_connection_stands(context: Context, tail: Tail) -> None:
    """And hears the reply on the same socket."""
    client, endpoint = bound(context)
    tail.dial(endpoint)
    assert tail.wait(0.2) is None
    assert decode_frame(client.recv()) == HELLO
    client.send(encode_frame(ReturnHello(1, b"tail", None)))
    event = tail.wait()
    assert isinstance(event, LinkFrame)
    assert decode_frame(event.frame) == ReturnHello(1, b"tail", None)


def test_a_dial_that_nobody_answers_fails_and_is_not_repeated(tail: Tail) -> None:
    """Nothing listens there: the link is gone at once, and its socket with it."""
    tail.dial("tcp://127.0.0.1:9")
    assert tail.wait() == LinkGone(("c", 1))
    assert len(tail.sockets) == 0


def test_a_client_that_dies_ends_its_link(context: Context, tail: Tail) -> None:
    """Also with messages on their way to it; they are sent again on the next link by the core."""
    client, endpoint = bound(context)
    tail.dial(endpoint)
    tail.wait(0.2)
    client.recv()
    for _ in range(5):
        tail.sockets.send(SendLink("c", 1, ReturnAck(())), time.monotonic())
    client.close(linger=0)
    assert tail.wait() == LinkGone(("c", 1))


def test_an_endpoint_that_is_none_does_no_harm(tail: Tail) -> None:
    """The dial's deadline ends it; the loop goes on."""
    tail.dial("nonsense")
    assert tail.wait(0.1) is None
    assert len(tail.sockets) == 1


def test_a_client_that_leaves_with_its_messages_unread_does_not_take_the_tail_along() -> None:
    """In a process of its own: what this is about would abort it, without an exception to catch."""
    done = subprocess.run(
        [sys.executable, "-c", _LEAVE_UNREAD], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr


_LEAVE_UNREAD = """
import time, zmq
from stagewire.stage.links.pair_sockets import PairSockets
from stagewire.stage.tail.return_link import Dial
from stagewire.wire.codec import encode_frame
from stagewire.wire.epoch import Epoch
from stagewire.wire.returns import ReturnAction, ReturnControl, TailHello
context, poller = zmq.Context(), zmq.Poller()
tail = PairSockets(zmq.Context(), poller, None)
client = context.socket(zmq.PAIR)
client.set(zmq.SNDHWM, 0)
client.bind("tcp://127.0.0.1:*")
endpoint = client.get_string(zmq.LAST_ENDPOINT)
tail.dial(Dial("c", 1, endpoint, TailHello(Epoch(1, 1), "c", 1, b"o", b"t")), time.monotonic())
time.sleep(0.3)
tail.flush(time.monotonic())
client.recv()
for number in range(4000):
    client.send(encode_frame(ReturnControl(f"r{number}", ReturnAction.CANCEL)))
time.sleep(0.5)  # the tail is in a long step and does not read
client.close(linger=0)
time.sleep(2.5)
print("survived", flush=True)
tail.close_all()
"""


# --- the client's end ---


class ClientEnd:
    """`ReturnSockets` with the poller that the client's loop would turn."""

    def __init__(self, context: Context) -> None:
        self.poller = zmq.Poller()
        self.sockets = ReturnSockets(context, self.poller, "127.0.0.1")

    def bind(self, generation: int = 1) -> str:
        event = self.sockets.bind(generation)
        assert isinstance(event, OfferBound)
        return event.offer.endpoint

    def wait(self, count: int, seconds: float = 3.0) -> list[object]:
        """The next `count` events."""
        events: list[object] = []
        deadline = time.monotonic() + seconds
        while len(events) < count and time.monotonic() < deadline:
            events += self.sockets.receive(dict(self.poller.poll(20)))
            self.sockets.flush(time.monotonic())
        return events


@pytest.fixture
def end(context: Context) -> Iterator[ClientEnd]:
    made = ClientEnd(context)
    yield made
    made.sockets.close_all()


def test_the_client_sees_a_connection_before_its_first_message(context: Context, end: ClientEnd) -> None:
    """So that a stranger's two seconds count from its arrival."""
    dialler = pair(context)
    dialler.connect(end.bind())
    dialler.send(encode_frame(HELLO))
    assert end.wait(2) == [LinkConnected(1), LinkMessage(1, HELLO)]


def test_a_stranger_that_stays_silent_is_seen(context: Context, end: ClientEnd) -> None:
    """It is connected and says nothing; the core will throw the socket away."""
    stranger = pair(context)
    stranger.connect(end.bind())
    assert end.wait(1) == [LinkConnected(1)]
    assert end.wait(1, 0.2) == []


def test_a_peer_that_leaves_takes_the_socket_with_it(context: Context, end: ClientEnd) -> None:
    """What it had sent arrives first; its endpoint is never used again, a fresh one is."""
    endpoint = end.bind()
    dialler = pair(context)
    dialler.set(zmq.LINGER, 500)
    dialler.connect(endpoint)
    dialler.send(encode_frame(HELLO))
    assert end.wait(2) == [LinkConnected(1), LinkMessage(1, HELLO)]
    dialler.send(encode_frame(ReturnAck(())))
    dialler.close()
    assert end.wait(2) == [LinkMessage(1, ReturnAck(())), LinkDisconnected(1)]
    late = pair(context, RECONNECT_IVL=-1)
    late.connect(endpoint)
    assert end.wait(1, 0.3) == []
    fresh = pair(context)
    fresh.connect(end.bind(2))
    assert end.wait(1) == [LinkConnected(2)]


def test_an_address_that_is_not_ours_cannot_be_bound(context: Context) -> None:
    """The core is told, and tries again or takes the broker's path."""
    sockets = ReturnSockets(context, zmq.Poller(), "192.0.2.1")
    assert isinstance(sockets.bind(1), OfferFailed)


def test_the_two_ends_talk(context: Context, tail: Tail, end: ClientEnd) -> None:
    """Hello, reply, acknowledgement, over one connection."""
    tail.dial(end.bind())
    tail.wait(0.3)
    assert end.wait(2) == [LinkConnected(1), LinkMessage(1, HELLO)]
    reply: Message = ReturnHello(1, b"tail", None)
    assert end.sockets.send(1, reply, time.monotonic()) is None
    event = tail.wait()
    assert isinstance(event, LinkFrame)
