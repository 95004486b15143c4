"""Messages to frames and back: `encode` and `decode`; on the ring, who sends which, and whether one is missing.

Frames of a message: a 4-byte head (magic, version, kind), a msgpack body, then one frame per bulk value. A link of
which every token makes use carries all of it in one frame, since a frame costs more than its bytes (`encode_frame`,
`decode_frame`); on the ring a 36-byte envelope (epoch, sender, run, sequence) comes before it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgpack

from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode, ProtocolError, StagewireError
from stagewire.wire.limits import MAX_BODY_BYTES, MAX_FRAMES
from stagewire.wire.schema import record_codec

VERSION = 4
"""Raised whenever any message's layout changes, so that old and new processes tell each other why they cannot talk."""
Frame: TypeAlias = bytes | bytearray | memoryview
Frames: TypeAlias = Sequence[Frame]

_MAGIC = b"SW"
_HEAD = struct.Struct("<2sBB")
_ENVELOPE = struct.Struct("<QQIQQ")
_SIZES = [struct.Struct(f"<I{count}I") for count in range(MAX_FRAMES - 1)]
"""In one frame, after the head: the number of bulk values, and the bytes of each."""
_TYPES: dict[bytes, type] = {}
_HEADS: dict[type, bytes] = {}
_epoch = lru_cache(maxsize=8)(Epoch)  # a process hears of one for hours
T = TypeVar("T", bound=type)


class Message:
    """Base of all messages; it holds nothing and only names the kind of thing that `encode` takes."""

    __slots__ = ()


def message(kind: int) -> Callable[[T], T]:
    """Register a dataclass as the message of number `kind`; numbers are never given twice."""
    head = _HEAD.pack(_MAGIC, VERSION, kind)

    def register(cls: T) -> T:
        if head in _TYPES:
            raise TypeError(f"message kind {kind} is already {_TYPES[head].__name__}")
        _TYPES[head], _HEADS[cls] = cls, head
        return cls

    return register


def registered() -> dict[int, type]:
    """All messages by number, for the reference page and the tests."""
    return {head[-1]: cls for head, cls in sorted(_TYPES.items())}


def compile_all() -> None:
    """Make the packers of all messages now; else the first message of each kind waits for its own."""
    for cls in _HEADS:
        record_codec(cls)


def encode(value: Message) -> list[Frame]:
    """Frames of a message; bulk values are passed on without a copy."""
    cls: type = type(value)
    payloads: list[Frame] = []
    body = msgpack.packb(record_codec(cls).pack(value, payloads.append))
    return [_HEADS[cls], body, *payloads]


def decode(frames: Frames) -> Message:
    """The message that `frames` hold.

    Raises:
        ProtocolError: anything is wrong with them; `code` is PROTOCOL_VERSION when only the version differs.
            `request_id` is set when the message got far enough to say whom it concerns.
    """
    # One function, because after a forward pass each call of another one waits for memory.
    is_framed = 2 <= len(frames) <= MAX_FRAMES and len(frames[0]) == _HEAD.size
    cls = _TYPES.get(bytes(frames[0])) if is_framed else None
    if cls is None:
        raise _not_a_message(frames, is_framed)
    if len(frames[1]) > MAX_BODY_BYTES:
        detail = f"message body of {len(frames[1])} bytes; at most {MAX_BODY_BYTES}"
        raise ProtocolError(detail, ErrorCode.MESSAGE_TOO_LARGE)
    try:
        body = msgpack.unpackb(frames[1], use_list=False, strict_map_key=True)
    except Exception as error:  # noqa: BLE001  bad bytes make msgpack raise a dozen unrelated classes
        raise ProtocolError(f"message body is not msgpack: {type(error).__name__}") from None
    payloads = list(frames[2:])
    try:
        value: Message = record_codec(cls).unpack(body, payloads)
    except StagewireError as error:
        raise ProtocolError(f"{cls.__name__}: {error.detail}", error.code, _request_of(cls, body)) from None
    if payloads:
        raise ProtocolError(f"{cls.__name__}: {len(payloads)} frames too many")
    return value


def encode_frame(value: Message, envelope: bytes = b"") -> bytes:
    """A message in one frame: head, number and sizes of its bulk values, these values, body."""
    cls: type = type(value)
    payloads: list[Frame] = []
    body = msgpack.packb(record_codec(cls).pack(value, payloads.append))
    sizes = _SIZES[len(payloads)].pack(len(payloads), *map(len, payloads))
    return b"".join((envelope, _HEADS[cls], sizes, *payloads, body))


def decode_frame(frame: Frame, begin: int = 0) -> Message:
    """The message that `frame` holds from its byte `begin` on; bulk values are views of it.

    Raises:
        ProtocolError: as `decode`.
    """
    view = memoryview(frame)
    at = begin + _HEAD.size
    count = int.from_bytes(view[at : at + 4], "little")
    if count >= len(_SIZES) or len(view) < at + _SIZES[count].size:
        raise _not_a_message([view[begin:at], b""], len(view) >= at)
    frames = [view[begin:at], view]
    end = at + _SIZES[count].size
    for size in _SIZES[count].unpack_from(view, at)[1:]:
        frames.append(view[end : end + size])
        end += size
    if end > len(view):
        raise ProtocolError(f"bulk values end at byte {end} of a frame of {len(view)}")
    frames[1] = view[end:]
    return decode(frames)


def _not_a_message(frames: Frames, is_framed: bool) -> ProtocolError:
    if not is_framed:
        return ProtocolError(f"not a message: {len(frames)} frames")
    magic, version, kind = _HEAD.unpack(frames[0])
    if magic != _MAGIC:
        return ProtocolError("not a message of this protocol")
    if version != VERSION:
        detail = f"protocol version {version}; this side speaks {VERSION}"
        return ProtocolError(detail, ErrorCode.PROTOCOL_VERSION)
    return ProtocolError(f"unknown message kind {kind}")


def _request_of(cls: type, body: Any) -> str | None:
    names = getattr(cls, "__match_args__", ())
    if names[:1] == ("request_id",) and isinstance(body, tuple) and body and isinstance(body[0], str):
        return body[0][:64]
    return None


# --- the ring ---

BROKER = 0xFFFF_FFFF
"""`Envelope.sender` of the broker; stages send their `stage_index`."""


class Envelope(NamedTuple):
    """Who sends within which pipeline epoch, and the how-manieth message on this link it is.

    `run` tells a restarted broker, which begins its numbers anew, from the one before; stages send 0.
    An idle repetition carries the number of the last message, not a new one. A tuple, because each message has one,
    and it is made in a third of the time.
    """

    epoch: Epoch
    sender: int
    run: int
    sequence: int


def encode_ring(envelope: Envelope, value: Message) -> bytes:
    epoch, sender, run, sequence = envelope
    return encode_frame(value, _ENVELOPE.pack(epoch.incarnation, epoch.counter, sender, run, sequence))


def decode_ring(frame: Frame) -> tuple[Envelope, Message]:
    """Envelope and message.

    Raises:
        ProtocolError: the frame has no envelope, or as `decode`.
    """
    if len(frame) < _ENVELOPE.size:
        raise ProtocolError("not a ring message")
    incarnation, counter, sender, run, sequence = _ENVELOPE.unpack_from(frame)
    return Envelope(_epoch(incarnation, counter), sender, run, sequence), decode_frame(frame, _ENVELOPE.size)


REPEAT_S = 0.5
"""An idle sender repeats its last number this often."""


class SenderNumbers:
    """One link of one sender within one epoch; a link that sends nothing repeats its last number."""

    def __init__(self, epoch: Epoch, sender: int, run: int = 0) -> None:
        self._epoch, self._sender, self._run = epoch, sender, run
        self._last = 0
        self._sent_at = float("-inf")

    def next(self, now: float) -> Envelope:
        """The envelope of a new message."""
        self._last += 1
        self._sent_at = now
        return Envelope(self._epoch, self._sender, self._run, self._last)

    def repeat(self, now: float) -> Envelope | None:
        """The envelope of a `Repeat` if one is due, else None."""
        if now - self._sent_at < REPEAT_S:
            return None
        self._sent_at = now
        return Envelope(self._epoch, self._sender, self._run, self._last)


class Arrival(Enum):
    """What a receiver does with a message: take it, drop it, or end the epoch because one is missing."""

    TAKE = "take"
    DROP = "drop"
    GAP = "gap"


class ReceiverNumbers:
    """All links into one receiver within one epoch."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._last: dict[int, int] = {}
        self._broker_run = 0

    def arrive(self, envelope: Envelope, is_repeat: bool) -> Arrival:
        """Judge one message; after GAP the numbers are of no more use."""
        epoch, sender, _, sequence = envelope
        if epoch is not self._epoch:
            if epoch != self._epoch:
                return Arrival.DROP
            self._epoch = epoch  # the next one is most likely the same object
        if sender == BROKER and self._is_old_broker(envelope):
            return Arrival.DROP
        last = self._last.get(sender, 0)
        if is_repeat:
            return Arrival.DROP if sequence == last else Arrival.GAP
        self._last[sender] = sequence
        return Arrival.TAKE if sequence == last + 1 else Arrival.GAP

    def _is_old_broker(self, envelope: Envelope) -> bool:
        if envelope.run == self._broker_run:
            return False
        if envelope.run < self._broker_run:
            return True
        # A restarted broker begins anew.
        self._broker_run = envelope.run
        self._last[BROKER] = 0
        return False
