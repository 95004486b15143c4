"""The broker over real sockets: bad bytes are answered and counted, and everybody else goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgpack
import pytest
import zmq
from broker_world import FIRST, LAST, offer

from stagewire.broker.loop import BrokerEndpoints, run_broker
from stagewire.broker.settings import BrokerSettings
from stagewire.wire.codec import Message, decode, decode_ring, encode
from stagewire.wire.control import (
    Assemble,
    Assembled,
    GenerateAck,
    Heartbeat,
    Register,
    Registered,
    RegisterRefused,
    StageInfo,
)
from stagewire.wire.errors import ErrorCode, SettingsError
from stagewire.wire.frontend import (
    Accepted,
    BadMessage,
    BrokerWelcome,
    ClientHello,
    ClientPing,
    Dispatched,
    Generate,
    GetStatus,
    HelloRefused,
    Refused,
    WhoAreYou,
)
from stagewire.wire.ring import StartRequest
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.status import Status
from stagewire.wire.tensor import TokenIds

pytestmark = pytest.mark.timeout(60)
Socket = zmq.Socket[bytes]
_open: list[Socket] = []
ANY = "tcp://127.0.0.1:*"


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    made: zmq.Context[Socket] = zmq.Context()
    yield made
    while _open:
        _open.pop().close(linger=0)
    made.term()


@pytest.fixture
def broker() -> Iterator[BrokerEndpoints]:
    with running_broker() as endpoints:
        yield endpoints


@contextmanager
def running_broker() -> Iterator[BrokerEndpoints]:
    """A real broker in a thread; ended, and its thread seen to end, in bounded time."""
    ready, stop = threading.Event(), threading.Event()
    found: list[BrokerEndpoints] = []

    def on_ready(endpoints: BrokerEndpoints) -> None:
        found.append(endpoints)
        ready.set()

    settings = BrokerSettings(frontend_endpoint=ANY, control_endpoint=ANY, grace_s=0.2)
    thread = threading.Thread(target=run_broker, args=(settings, on_ready, stop))
    thread.start()
    try:
        assert ready.wait(10)
        yield found[0]
    finally:
        stop.set()
        thread.join(10)
        assert not thread.is_alive()


class Dealer:
    """A raw peer of the broker."""

    def __init__(self, context: zmq.Context[Socket], endpoint: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        _open.append(self.socket)
        self.socket.connect(endpoint)

    def send(self, message: Message) -> None:
        self.socket.send_multipart(encode(message))

    def receive(self, kind: type, timeout_s: float = 5.0) -> Message:
        """The next message of this kind; others are passed over."""
        while self.socket.poll(int(timeout_s * 1000)):
            message = decode(self.socket.recv_multipart())
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} came")


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([b""], ErrorCode.PROTOCOL_ERROR),
        ([b"GET / HTTP/1.1\r\n\r\n"], ErrorCode.PROTOCOL_ERROR),
        ([b"SW\x01\x03", b"\xc1"], ErrorCode.PROTOCOL_ERROR),
        ([b"SW\x01\x03", b"\x93" * 500], ErrorCode.PROTOCOL_ERROR),
        ([b"SW\x01\xfe", b"\x90"], ErrorCode.PROTOCOL_ERROR),
        ([b"SW\x07\x05", b"\x90"], ErrorCode.PROTOCOL_VERSION),
        ([b"SW\x01\x05", bytes(9 * 1024 * 1024)], ErrorCode.MESSAGE_TOO_LARGE),
        ([b"SW\x01\x05", b"\x90"] + [b"x"] * 100, ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_bad_bytes_are_answered_and_counted_and_harm_nobody(
    broker: BrokerEndpoints, context: zmq.Context[Socket], frames: list[bytes], code: ErrorCode
) -> None:
    """On the frontend and on control alike."""
    good = Dealer(context, broker.frontend)
    good.send(ClientHello("good", b"n", offer(1)))
    good.receive(BrokerWelcome)
    for endpoint in (broker.frontend, broker.control):
        bad = Dealer(context, endpoint)
        bad.socket.send_multipart(frames)
        answer = bad.receive(BadMessage)
        assert isinstance(answer, BadMessage)
        assert answer.code is code
    good.send(GetStatus())
    status = good.receive(Status)
    assert isinstance(status, Status)
    assert (status.num_bad_messages, status.num_clients) == (2, 1)


def test_a_bad_parameter_refuses_its_request_by_name(broker: BrokerEndpoints, context: zmq.Context[Socket]) -> None:
    """NaN where a number belongs, sent by somebody who does not use our client."""
    peer = Dealer(context, broker.frontend)
    peer.send(ClientHello("c", b"n", None))
    peer.receive(BrokerWelcome)
    head, body, payload = encode(generate("r1"))
    values = msgpack.unpackb(body)
    values[3][0] = -2.0
    peer.socket.send_multipart([head, msgpack.packb(values), payload])
    refused = peer.receive(Refused)
    assert isinstance(refused, Refused)
    assert (refused.request_id, refused.code) == ("r1", ErrorCode.INVALID_REQUEST)
    assert "temperature" in refused.detail


def generate(request_id: str) -> Generate:
    return Generate(request_id, "s", None, SamplingParams(), 5, (), False, TokenIds.of([1, 2, 3]))


def test_a_second_client_of_one_name_is_refused(broker: BrokerEndpoints, context: zmq.Context[Socket]) -> None:
    """Not with silence: the first goes on, the second hears why it cannot."""
    first, second = Dealer(context, broker.frontend), Dealer(context, broker.frontend)
    first.send(ClientHello("same", b"one", None))
    first.receive(BrokerWelcome)
    second.send(ClientHello("same", b"two", None))
    refused = second.receive(HelloRefused)
    assert isinstance(refused, HelloRefused)
    assert refused.code is ErrorCode.IDENTITY_IN_USE
    first.send(ClientPing())
    first.send(GetStatus())
    first.receive(Status)


def test_a_port_in_use_is_named(broker: BrokerEndpoints) -> None:
    """The second broker does not start, says which endpoint, and leaves nothing open."""
    settings = BrokerSettings(frontend_endpoint=broker.frontend, control_endpoint=ANY)
    with pytest.raises(SettingsError) as error:
        run_broker(settings, lambda _endpoints: None, threading.Event())
    assert error.value.code is ErrorCode.PORT_IN_USE
    assert broker.frontend in error.value.detail


class FakeStage(Dealer):
    """A stage that registers and answers, without layers; its heartbeats come when asked for."""

    def __init__(self, context: zmq.Context[Socket], control: str, info: StageInfo) -> None:
        super().__init__(context, control)
        self.data = context.socket(zmq.PULL)
        _open.append(self.data)
        self.data.bind(ANY)
        endpoint = self.data.get_string(zmq.LAST_ENDPOINT)
        self.info = StageInfo(**{f: getattr(info, f) for f in info.__dataclass_fields__} | {"data_endpoint": endpoint})
        self.send(Register(self.info, None))
        self.receive(Registered)

    def beat(self) -> None:
        self.send(Heartbeat(self.info.stage_id, self.info.run, 0, None))

    def assemble(self) -> Assemble:
        message = self.receive(Assemble)
        assert isinstance(message, Assemble)
        self.send(Assembled(message.epoch))
        return message


def test_two_stages_are_assembled_and_a_request_reaches_the_head(
    broker: BrokerEndpoints, context: zmq.Context[Socket]
) -> None:
    """Over real sockets: registered, assembled, accepted, dispatched, pushed, acknowledged."""
    head = FakeStage(context, broker.control, FIRST)
    tail = FakeStage(context, broker.control, LAST)
    for stage in (head, tail):
        stage.beat()
    epochs = {stage.assemble().epoch for stage in (head, tail)}
    client = Dealer(context, broker.frontend)
    client.send(ClientHello("c", b"n", offer(4)))
    client.receive(BrokerWelcome)
    client.send(generate("r1"))
    client.receive(Accepted)
    dispatched = client.receive(Dispatched)
    assert isinstance(dispatched, Dispatched)
    assert ({dispatched.epoch}, dispatched.offer_generation) == (epochs, 4)
    while True:
        assert head.data.poll(5000)
        _envelope, pushed = decode_ring(head.data.recv_multipart())
        if isinstance(pushed, StartRequest):
            break
    assert pushed.prompt_token_ids == TokenIds.of([1, 2, 3])
    assert pushed.sampling.seed is not None
    head.send(GenerateAck("r1", dispatched.epoch, None, ""))


def test_a_stage_with_impossible_numbers_is_refused_and_the_broker_lives(
    broker: BrokerEndpoints, context: zmq.Context[Socket]
) -> None:
    """Each number fits into a message, but what is computed from it would not."""
    huge = 2**64 - 1
    stage = Dealer(context, broker.control)
    stage.send(Register(replace(FIRST, num_blocks=huge, max_sequences=huge, context_length=huge), None))
    refused = stage.receive(RegisterRefused)
    assert isinstance(refused, RegisterRefused)
    assert refused.code is ErrorCode.INVALID_SETTING
    client = Dealer(context, broker.frontend)
    client.send(GetStatus())
    client.receive(Status)


def test_strangers_are_asked_who_they_are(broker: BrokerEndpoints, context: zmq.Context[Socket]) -> None:
    """A ping or a heartbeat of somebody unknown, after a restart of the broker, say."""
    client = Dealer(context, broker.frontend)
    client.send(ClientPing())
    client.receive(WhoAreYou)
    stage = Dealer(context, broker.control)
    stage.send(Heartbeat("s", 1, 0, None))
    stage.receive(WhoAreYou)
