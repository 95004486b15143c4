"""The broker's loop over real sockets: two fake stages, wrong peers, and a clean end."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

import pytest
import zmq
from support.broker_sockets import Connection, Sockets, client_of, generate, is_alive, pipeline_of
from support.broker_world import FIRST, offer
from support.running_broker import FAST, RunningBroker

from stagewire.broker.loop import run_broker
from stagewire.wire.codec import BROKER, decode_ring
from stagewire.wire.control import (
    Dissolve,
    Dissolved,
    GenerateAck,
    Heartbeat,
    Register,
    RegisterRefused,
    RequestEnded,
    RequestEndedAck,
)
from stagewire.wire.errors import ErrorCode, SettingsError
from stagewire.wire.frontend import (
    Accepted,
    Cancel,
    ClientHello,
    ClientPing,
    Dispatched,
    Ended,
    GetStatus,
    HelloRefused,
    RelayToClient,
    RelayToTail,
    WhoAreYou,
)
from stagewire.wire.request import FinishReason, Usage
from stagewire.wire.ring import CancelRequest, Repeat, StartRequest
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.status import Status
from stagewire.wire.tensor import Blob, TokenIds

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
        envelope, message = decode_ring(head.feed.recv())
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
    frame = Blob(bytes(100_000))
    client.send(RelayToTail("", epoch, frame))
    assert tail.control.expect(RelayToTail) == RelayToTail("c", epoch, frame)
    tail.control.send(RelayToClient("c", epoch, frame))
    assert client.expect(RelayToClient) == RelayToClient("c", epoch, frame)


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
