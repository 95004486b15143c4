"""Clients and stages of a running broker that are nothing but sockets."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TypeVar

import zmq
from support.broker_world import FIRST, LAST
from support.running_broker import ANSWER_S, RunningBroker

from stagewire.broker.loop import BrokerEndpoints
from stagewire.wire.codec import VERSION, Envelope, Message, decode, decode_ring, encode
from stagewire.wire.control import Assemble, Assembled, Heartbeat, Register, Registered, StageInfo
from stagewire.wire.epoch import Epoch
from stagewire.wire.frontend import BrokerPong, BrokerWelcome, ClientHello, ClientPing, Generate, GetStatus
from stagewire.wire.request import ReturnOffer
from stagewire.wire.ring import Repeat
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.status import Status
from stagewire.wire.tensor import TokenIds

HEAD = b"SW" + bytes([VERSION])
Socket = zmq.Socket[bytes]
M = TypeVar("M", bound=Message)


class Sockets:
    """Opens sockets that wait a bounded time for a message, and closes them all."""

    def __init__(self) -> None:
        self._context: zmq.Context[Socket] = zmq.Context()
        self._open: list[Socket] = []

    def open(self, kind: int) -> Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.RCVTIMEO, round(ANSWER_S * 1000))
        self._open.append(socket)
        return socket

    def close(self) -> None:
        for socket in self._open:
            socket.close(linger=0)
        self._context.term()


class Connection:
    """A DEALER that speaks messages, or whatever bytes a test wants."""

    def __init__(self, sockets: Sockets, endpoint: str, receive_limit: int = 1000) -> None:
        self.socket = sockets.open(zmq.DEALER)
        self.socket.setsockopt(zmq.RCVHWM, receive_limit)
        self.socket.setsockopt(zmq.RCVBUF, receive_limit * 4096)
        self.socket.connect(endpoint)

    def send(self, message: Message) -> None:
        self.socket.send_multipart(encode(message))

    def receive(self) -> Message:
        return decode(self.socket.recv_multipart())

    def expect(self, kind: type[M]) -> M:
        """The next message of this kind; others are skipped."""
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            message = self.receive()
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} came")


class FakeStage:
    """Registers, and binds the PULL socket that a head's feed is."""

    def __init__(self, sockets: Sockets, endpoints: BrokerEndpoints, info: StageInfo) -> None:
        self.feed = sockets.open(zmq.PULL)
        self.feed.bind("tcp://127.0.0.1:*")
        self.info = replace(info, data_endpoint=self.feed.getsockopt_string(zmq.LAST_ENDPOINT))
        self.control = Connection(sockets, endpoints.control)
        self.control.send(Register(self.info, None))
        self.control.expect(Registered)

    def next_fed(self) -> tuple[Envelope, Message]:
        """The next message on the feed that is no idle repetition."""
        while True:
            envelope, message = decode_ring(self.feed.recv())
            if not isinstance(message, Repeat):
                return envelope, message

    def beat(self) -> None:
        self.control.send(Heartbeat(self.info.stage_id, self.info.run, 0, None))


def client_of(sockets: Sockets, broker: RunningBroker, name: str = "c", offer: ReturnOffer | None = None) -> Connection:
    """A client that has been welcomed."""
    client = Connection(sockets, broker.endpoints.frontend)
    client.send(ClientHello(name, name.encode(), offer))
    client.expect(BrokerWelcome)
    return client


def pipeline_of(sockets: Sockets, broker: RunningBroker) -> tuple[FakeStage, FakeStage, Epoch]:
    """Two stages that serve, as the broker knows."""
    head, tail = (FakeStage(sockets, broker.endpoints, info) for info in (FIRST, LAST))
    epoch = head.control.expect(Assemble).epoch
    assert tail.control.expect(Assemble).next_endpoint is None
    head.control.send(Assembled(epoch))
    tail.control.send(Assembled(epoch))
    asking, deadline = Connection(sockets, broker.endpoints.frontend), time.monotonic() + ANSWER_S
    states = [""]
    while states != ["serving"]:
        assert time.monotonic() < deadline, states
        asking.send(GetStatus())
        states = [pipeline.state for pipeline in asking.expect(Status).pipelines]
    return head, tail, epoch


def generate(request_id: str, max_tokens: int | None = 5) -> Generate:
    prompt = TokenIds.of([1, 2, 3])
    return Generate(request_id, "session", None, SamplingParams(), max_tokens, (7,), False, prompt)


def is_alive(connection: Connection) -> bool:
    connection.send(ClientPing())
    return connection.expect(BrokerPong) is not None
