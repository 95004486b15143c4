"""The broker's loop over real sockets: bad bytes, wrong peers, two fake stages, and a clean end."""

from __future__ import annotations

import logging
import random
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import msgpack
import pytest
import zmq
from support.broker_world import FIRST, LAST, offer
from support.running_broker import ANSWER_S, FAST, RunningBroker

from stagewire.broker.loop import BrokerEndpoints, run_broker
from stagewire.wire.codec import BROKER, VERSION, Envelope, Message, decode, decode_ring, encode
from stagewire.wire.control import (
    Assemble,
    Assembled,
    Dissolve,
    Dissolved,
    GenerateAck,
    Heartbeat,
    Register,
    Registered,
    RegisterRefused,
    RequestEnded,
    RequestEndedAck,
    StageInfo,
)
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode, SettingsError
from stagewire.wire.frontend import (
    Accepted,
    BadMessage,
    BrokerPong,
    BrokerWelcome,
    Cancel,
    ClientHello,
    ClientPing,
    Dispatched,
    Ended,
    Generate,
    GetStatus,
    HelloRefused,
    Refused,
    RelayToClient,
    RelayToTail,
    WhoAreYou,
)
from stagewire.wire.request import FinishReason, ReturnOffer, Usage
from stagewire.wire.ring import CancelRequest, Repeat, StartRequest
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.status import Status
from stagewire.wire.tensor import Blob, TokenIds

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
            envelope, message = decode_ring(self.feed.recv_multipart())
            if not isinstance(message, Repeat):
                return envelope, message

    def beat(self) -> None:
        self.control.send(Heartbeat(self.info.stage_id, self.info.run, 0, None))


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    sockets = Sockets()
    yield sockets
    sockets.close()


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    broker = RunningBroker(FAST)
    yield broker
    broker.stop()


def client_of(sockets: Sockets, broker: RunningBroker, name: str = "c", offer: ReturnOffer | None = None) -> Connection:
    """A client that has been welcomed."""
    client = Connection(sockets, broker.endpoints.frontend)
    client.send(ClientHello(name, name.encode(), offer))
    client.expect(BrokerWelcome)
    return client


def pipeline_of(sockets: Sockets, broker: RunningBroker) -> tuple[FakeStage, FakeStage, Epoch]:
    """Two stages that have been assembled."""
    head, tail = (FakeStage(sockets, broker.endpoints, info) for info in (FIRST, LAST))
    epoch = head.control.expect(Assemble).epoch
    assert tail.control.expect(Assemble).next_endpoint is None
    head.control.send(Assembled(epoch))
    tail.control.send(Assembled(epoch))
    return head, tail, epoch


def generate(request_id: str, max_tokens: int | None = 5) -> Generate:
    prompt = TokenIds.of([1, 2, 3])
    return Generate(request_id, "session", None, SamplingParams(), max_tokens, (7,), False, prompt)


def is_alive(connection: Connection) -> bool:
    connection.send(ClientPing())
    return connection.expect(BrokerPong) is not None


# --- a request over real sockets ---


def test_a_request_goes_to_the_head_and_its_ending_back(sockets: Sockets, broker: RunningBroker) -> None:
    head, _, epoch = pipeline_of(sockets, broker)
    client = client_of(sockets, broker, offer=offer(4))
    client.send(generate("r1"))
    seed = client.expect(Accepted).seed
    envelope, start = head.next_fed()
    assert (envelope.epoch, envelope.sender, envelope.sequence) == (epoch, BROKER, 1)
    assert isinstance(start, StartRequest) and 0 <= start.admission_s < 1, "it did not wait here"
    prompt = TokenIds.of([1, 2, 3])
    assert start == StartRequest(
        "r1", "c", "session", SamplingParams(seed=seed), 5, (7,), False, offer(4), prompt, None, None, start.admission_s
    )
    head.control.send(GenerateAck("r1", epoch, None, ""))
    assert client.expect(Dispatched) == Dispatched("r1", epoch, 4)
    client.send(Cancel("r1"))
    assert head.next_fed()[1] == CancelRequest("r1")
    head.control.send(RequestEnded("r1", epoch, FinishReason.CANCELLED, None, Usage(3, 1)))
    assert head.control.expect(RequestEndedAck).request_id == "r1"


def test_an_idle_feed_repeats_its_number(sockets: Sockets, broker: RunningBroker) -> None:
    head, _, epoch = pipeline_of(sockets, broker)
    for _ in range(2):
        envelope, message = decode_ring(head.feed.recv_multipart())
        assert isinstance(message, Repeat)
        assert (envelope.epoch, envelope.sequence) == (epoch, 0)


def test_a_stage_that_dies_ends_its_requests(sockets: Sockets, broker: RunningBroker) -> None:
    """`stage_silence_s` is 1 here; with the default of 2.5 s it stays within 5 s."""
    head, tail, epoch = pipeline_of(sockets, broker)
    client = client_of(sockets, broker)
    client.send(generate("r1"))
    head.next_fed()
    head.control.send(GenerateAck("r1", epoch, None, ""))
    tail.control.socket.close(linger=0)
    died_at = time.monotonic()
    head.control.socket.setsockopt(zmq.RCVTIMEO, 200)
    while True:
        head.beat()
        try:
            assert head.control.expect(Dissolve).epoch == epoch
        except zmq.Again:
            continue
        break
    head.control.send(Dissolved(epoch))
    ending = client.expect(Ended).ending
    assert (ending.code, ending.num_tokens) == (ErrorCode.STAGE_LOST, None)
    assert time.monotonic() - died_at < 3.0


def test_frames_of_a_return_link_pass_through(sockets: Sockets, broker: RunningBroker) -> None:
    _, tail, epoch = pipeline_of(sockets, broker)
    client = client_of(sockets, broker)
    frames = (Blob(b"head"), Blob(b""), Blob(bytes(100_000)))
    client.send(RelayToTail("", epoch, frames))
    assert tail.control.expect(RelayToTail) == RelayToTail("c", epoch, frames)
    tail.control.send(RelayToClient("c", epoch, frames))
    assert client.expect(RelayToClient) == RelayToClient("c", epoch, frames)


def test_stopping_ends_what_waits(sockets: Sockets) -> None:
    broker = RunningBroker(FAST)
    client = client_of(sockets, broker)
    client.send(generate("r1"))
    client.expect(Accepted)
    broker.stop()
    assert client.expect(Ended).ending.code is ErrorCode.SHUTTING_DOWN


def test_life_events_are_logged_without_tokens(
    sockets: Sockets, broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "stagewire.broker"):
        head, _, _ = pipeline_of(sockets, broker)
        client = client_of(sockets, broker)
        client.send(generate("r1"))
        head.next_fed()
    events = [record.getMessage().split()[0].removeprefix("event=") for record in caplog.records]
    wanted = ["stage_registered", "stage_registered", "assembling", "serving", "client_connected", "request_accepted"]
    assert sorted(event for event in events if event in wanted) == sorted(wanted)


# --- bad bytes ---

BAD_FRAMES: list[list[bytes]] = [
    [b""],
    [b"GET / HTTP/1.1\r\n\r\n"],
    [b"", b"", b""],
    [HEAD + b"\x01"],
    [HEAD + b"\xff", b"\x90"],
    [b"XX\x01\x01", b"\x90"],
    [HEAD + b"\x03", b"\xc1"],
    [HEAD + b"\x03", b"\x93" * 500],
    [HEAD + b"\x03", b"\x90", bytes(3)],
    [HEAD + b"\x05", b"\x90", b"one frame too many"],
    [HEAD + b"\x05", b"\x90"] + [b""] * 100,
]


@pytest.mark.parametrize("frames", BAD_FRAMES, ids=range(len(BAD_FRAMES)))
def test_bad_bytes_are_answered_on_both_links_and_everybody_else_goes_on(
    sockets: Sockets, broker: RunningBroker, frames: list[bytes]
) -> None:
    client = client_of(sockets, broker)
    for endpoint in (broker.endpoints.frontend, broker.endpoints.control):
        stranger = Connection(sockets, endpoint)
        stranger.socket.send_multipart(frames)
        assert stranger.expect(BadMessage).code is ErrorCode.PROTOCOL_ERROR
    client.socket.send_multipart(frames)
    assert client.expect(BadMessage).code is ErrorCode.PROTOCOL_ERROR
    assert is_alive(client)
    client.send(GetStatus())
    assert client.expect(Status).num_bad_messages == 3


def test_another_protocol_version_is_answered_in_ours(sockets: Sockets, broker: RunningBroker) -> None:
    stranger = Connection(sockets, broker.endpoints.frontend)
    head, body = encode(ClientHello("c", b"n", None))
    stranger.socket.send_multipart([struct.pack("<2sBB", b"SW", VERSION + 1, bytes(head)[3]), body])
    assert stranger.expect(BadMessage).code is ErrorCode.PROTOCOL_VERSION


def test_a_request_with_bad_parameters_is_refused_by_name(sockets: Sockets, broker: RunningBroker) -> None:
    client = client_of(sockets, broker)
    head, body, prompt = encode(generate("r1"))
    fields = msgpack.unpackb(body)
    for temperature in (float("nan"), -1.0, "hot"):
        fields[3][0] = temperature
        client.socket.send_multipart([head, msgpack.packb(fields), prompt])
        refused = client.expect(Refused)
        assert (refused.request_id, refused.code.value[:7]) == ("r1", "invalid" if temperature == -1.0 else "protoco")
    assert is_alive(client)


def test_an_oversized_body_is_refused(sockets: Sockets, broker: RunningBroker) -> None:
    stranger = Connection(sockets, broker.endpoints.control)
    stranger.socket.send_multipart([HEAD + b"\x3c", bytes(9 * 1024 * 1024)])
    assert stranger.expect(BadMessage).code is ErrorCode.MESSAGE_TOO_LARGE


def test_an_oversized_message_is_refused(sockets: Sockets, broker: RunningBroker) -> None:
    client = client_of(sockets, broker)
    blobs = (Blob(bytes(13 * 1024 * 1024)),) * 2
    client.send(RelayToTail("c", Epoch(1, 1), blobs))
    assert client.expect(BadMessage).code is ErrorCode.MESSAGE_TOO_LARGE
    huge = replace(generate("r1"), prompt_token_ids=TokenIds(bytes(5 * 1024 * 1024)))
    client.send(huge)
    assert client.expect(Refused) == Refused(
        "r1", ErrorCode.CONTEXT_OVERFLOW, "prompt of 1310720 tokens; a message holds 1048576"
    )


def test_a_frame_beyond_every_limit_costs_its_sender_the_connection_only(
    sockets: Sockets, broker: RunningBroker
) -> None:
    client = client_of(sockets, broker)
    sender = Connection(sockets, broker.endpoints.frontend)
    sender.socket.send_multipart([HEAD + b"\x09", bytes(65 * 1024 * 1024)])
    assert is_alive(client)
    sender.socket.setsockopt(zmq.RCVTIMEO, 200)
    with pytest.raises(zmq.Again):
        sender.receive()


def test_mutated_messages_never_stop_the_broker(sockets: Sockets, broker: RunningBroker) -> None:
    """Valid messages of both links with bytes changed, removed, and frames swapped."""
    rng = random.Random(7)
    valid: list[Message] = [ClientHello("m", b"m", None), generate("r1"), RelayToTail("c", Epoch(1, 1), ())]
    valid += [Register(FIRST, None), Heartbeat("s0", 1, 0, 0.5), Assembled(Epoch(1, 1))]
    valid += [RequestEnded("r1", Epoch(1, 1), FinishReason.STOP, None, Usage(1, 1)), ClientPing()]
    peers = [Connection(sockets, one) for one in (broker.endpoints.frontend, broker.endpoints.control)]
    for _ in range(3000):
        frames = [bytearray(frame) for frame in encode(rng.choice(valid))]
        for _ in range(rng.randint(1, 4)):
            frame = rng.choice(frames)
            if frame:
                frame[rng.randrange(len(frame))] = rng.randrange(256)
        if rng.random() < 0.2:
            rng.shuffle(frames)
        rng.choice(peers).socket.send_multipart([bytes(frame) for frame in frames])
    assert is_alive(client_of(sockets, broker))
    status = Connection(sockets, broker.endpoints.frontend)
    deadline, num_bad_messages = time.monotonic() + ANSWER_S, 0
    while num_bad_messages < 1000 and time.monotonic() < deadline:
        status.send(GetStatus())
        num_bad_messages = status.expect(Status).num_bad_messages
    assert num_bad_messages >= 1000


# --- wrong peers ---


def test_strangers_are_asked_who_they_are(sockets: Sockets, broker: RunningBroker) -> None:
    """A ping or a heartbeat of somebody unknown, after a restart of the broker, say."""
    client = Connection(sockets, broker.endpoints.frontend)
    client.send(ClientPing())
    client.expect(WhoAreYou)
    stage = Connection(sockets, broker.endpoints.control)
    stage.send(Heartbeat("s", 1, 0, None))
    stage.expect(WhoAreYou)


def test_a_second_client_of_the_same_identity_is_refused(sockets: Sockets, broker: RunningBroker) -> None:
    first = client_of(sockets, broker)
    second = Connection(sockets, broker.endpoints.frontend)
    second.send(ClientHello("c", b"another nonce", None))
    assert second.expect(HelloRefused).code is ErrorCode.IDENTITY_IN_USE
    assert is_alive(first)


def test_a_client_that_reads_nothing_is_dropped_and_others_go_on(sockets: Sockets) -> None:
    """Long before anybody would call it silent."""
    broker = RunningBroker(replace(FAST, client_silence_s=60.0))
    deaf = Connection(sockets, broker.endpoints.frontend, receive_limit=1)
    deaf.send(ClientHello("deaf", b"n", None))
    client = client_of(sockets, broker)
    pipeline_of(sockets, broker)
    # How much the system buffers between the two is its own affair, so: until it is full.
    deadline, num_clients = time.monotonic() + 30.0, 2
    while num_clients == 2 and time.monotonic() < deadline:
        for _ in range(1000):
            deaf.send(GetStatus())
        client.send(GetStatus())
        num_clients = client.expect(Status).num_clients
    broker.stop()
    assert num_clients == 1


def test_a_port_in_use_is_named_and_nothing_is_left_open(broker: RunningBroker) -> None:
    taken = replace(FAST, control_endpoint=broker.endpoints.control)
    with pytest.raises(SettingsError) as caught:
        run_broker(taken, lambda _: None, threading.Event())
    assert caught.value.code is ErrorCode.PORT_IN_USE
    assert f"control_endpoint={broker.endpoints.control}" in caught.value.detail
    assert "choose another" in caught.value.detail


def test_an_endpoint_that_cannot_be_bound_is_named() -> None:
    with pytest.raises(SettingsError, match=r"frontend_endpoint=tcp://127\.0\.0\.300:0"):
        run_broker(replace(FAST, frontend_endpoint="tcp://127.0.0.300:0"), lambda _: None, threading.Event())


def test_a_stage_with_impossible_numbers_is_refused_and_the_broker_lives(
    sockets: Sockets, broker: RunningBroker
) -> None:
    """Each number fits into a message, but what is computed from it would not."""
    huge = 2**64 - 1
    stage = Connection(sockets, broker.endpoints.control)
    stage.send(Register(replace(FIRST, num_blocks=huge, max_sequences=huge, context_length=huge), None))
    refused = stage.expect(RegisterRefused)
    assert refused.code is ErrorCode.INVALID_SETTING
    assert is_alive(client_of(sockets, broker))
