"""Messages to frames and back: `encode` and `decode`, and the envelope of the ring.

Frames of a message: a 4-byte head (magic, version, kind), a msgpack body, then one frame per bulk value.
On the ring a 36-byte envelope (epoch, sender, run, sequence) comes first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgpack

from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode, ProtocolError, StagewireError
from stagewire.wire.limits import MAX_BODY_BYTES, MAX_FRAMES
from stagewire.wire.schema import record_codec

VERSION = 3
"""Raised whenever any message's layout changes, so that old and new processes tell each other why they cannot talk."""
Frame: TypeAlias = bytes | bytearray | memoryview
Frames: TypeAlias = Sequence[Frame]

_MAGIC = b"SW"
_HEAD = struct.Struct("<2sBB")
_ENVELOPE = struct.Struct("<QQIQQ")
_KINDS: dict[int, type] = {}
_NUMBERS: dict[type, int] = {}
T = TypeVar("T", bound=type)


class Message:
    """Base of all messages; it holds nothing and only names the kind of thing that `encode` takes."""

    __slots__ = ()


def message(kind: int) -> Callable[[T], T]:
    """Register a dataclass as the message of number `kind`; numbers are never given twice."""

    def register(cls: T) -> T:
        if kind in _KINDS:
            raise TypeError(f"message kind {kind} is already {_KINDS[kind].__name__}")
        _KINDS[kind], _NUMBERS[cls] = cls, kind
        return cls

    return register


def registered() -> dict[int, type]:
    """All messages by number, for the reference page and the tests."""
    return dict(sorted(_KINDS.items()))


def encode(value: Message) -> list[Frame]:
    """Frames of a message; bulk values are passed on without a copy."""
    payloads: list[Frame] = []
    kind = _NUMBERS[type(value)]
    body = msgpack.packb(record_codec(type(value)).pack(value, payloads))
    return [_HEAD.pack(_MAGIC, VERSION, kind), body, *payloads]


def decode(frames: Frames) -> Message:
    """The message that `frames` hold.

    Raises:
        ProtocolError: anything is wrong with them; `code` is PROTOCOL_VERSION when only the version differs.
            `request_id` is set when the message got far enough to say whom it concerns.
    """
    cls = _kind_of(frames)
    body = _unpack_body(frames[1])
    payloads = list(frames[2:])
    try:
        value: Message = record_codec(cls).unpack(body, payloads)
    except StagewireError as error:
        raise ProtocolError(f"{cls.__name__}: {error.detail}", error.code, _request_of(cls, body)) from None
    if payloads:
        raise ProtocolError(f"{cls.__name__}: {len(payloads)} frames too many")
    return value


def _kind_of(frames: Frames) -> type:
    if not 2 <= len(frames) <= MAX_FRAMES or len(frames[0]) != _HEAD.size:
        raise ProtocolError(f"not a message: {len(frames)} frames")
    magic, version, kind = _HEAD.unpack(frames[0])
    if magic != _MAGIC:
        raise ProtocolError("not a message of this protocol")
    if version != VERSION:
        raise ProtocolError(f"protocol version {version}; this side speaks {VERSION}", ErrorCode.PROTOCOL_VERSION)
    if kind not in _KINDS:
        raise ProtocolError(f"unknown message kind {kind}")
    return _KINDS[kind]


def _unpack_body(frame: Frame) -> Any:
    if len(frame) > MAX_BODY_BYTES:
        raise ProtocolError(
            f"message body of {len(frame)} bytes; at most {MAX_BODY_BYTES}", ErrorCode.MESSAGE_TOO_LARGE
        )
    try:
        return msgpack.unpackb(frame, use_list=True, strict_map_key=True)
    except Exception as error:  # noqa: BLE001  bad bytes make msgpack raise a dozen unrelated classes
        raise ProtocolError(f"message body is not msgpack: {type(error).__name__}") from None


def _request_of(cls: type, body: Any) -> str | None:
    names = getattr(cls, "__match_args__", ())
    if names[:1] == ("request_id",) and isinstance(body, list) and body and isinstance(body[0], str):
        return body[0][:64]
    return None


# --- the ring ---

BROKER = 0xFFFF_FFFF
"""`Envelope.sender` of the broker; stages send their `stage_index`."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Who sends within which pipeline epoch, and the how-manieth message on this link it is.

    `run` tells a restarted broker, which begins its numbers anew, from the one before; stages send 0.
    An idle repetition carries the number of the last message, not a new one.
    """

    epoch: Epoch
    sender: int
    run: int
    sequence: int


def encode_ring(envelope: Envelope, value: Message) -> list[Frame]:
    epoch = envelope.epoch
    head = _ENVELOPE.pack(epoch.incarnation, epoch.counter, envelope.sender, envelope.run, envelope.sequence)
    return [head, *encode(value)]


def decode_envelope(frames: Frames) -> Envelope:
    """Only the envelope; what follows it is not looked at.

    Raises:
        ProtocolError: the first frame is no envelope.
    """
    if not frames or len(frames[0]) != _ENVELOPE.size:
        raise ProtocolError("not a ring message")
    incarnation, counter, sender, run, sequence = _ENVELOPE.unpack(frames[0])
    return Envelope(Epoch(incarnation, counter), sender, run, sequence)


def decode_ring(frames: Frames) -> tuple[Envelope, Message]:
    """Envelope and message.

    Raises:
        ProtocolError: as `decode`.
    """
    return decode_envelope(frames), decode(frames[1:])
