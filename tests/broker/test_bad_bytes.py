"""Bad bytes on the broker's sockets: answered or dropped, and everybody else goes on."""

from __future__ import annotations

import random
import struct
import time
from dataclasses import replace

import msgpack
import pytest
import zmq
from support.broker_sockets import HEAD, Connection, Sockets, client_of, generate, is_alive
from support.broker_world import FIRST
from support.running_broker import ANSWER_S, RunningBroker

from stagewire.wire.codec import VERSION, Message, encode
from stagewire.wire.control import Assembled, Heartbeat, Register, RequestEnded
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import BadMessage, ClientHello, ClientPing, GetStatus, Refused, RelayToTail
from stagewire.wire.request import FinishReason, Usage
from stagewire.wire.status import Status
from stagewire.wire.tensor import Blob, TokenIds

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
    client.send(RelayToTail("c", Epoch(1, 1), Blob(bytes(26 * 1024 * 1024))))
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
    valid: list[Message] = [ClientHello("m", b"m", None), generate("r1"), RelayToTail("c", Epoch(1, 1), Blob())]
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
