"""The codec: every message survives the way there and back; no bytes raise anything but the protocol error."""

from __future__ import annotations

import dataclasses
import struct
import typing
from contextlib import suppress
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagewire.wire import frontend, returns, ring, status
from stagewire.wire.codec import (
    VERSION,
    Envelope,
    Message,
    decode,
    decode_frame,
    decode_ring,
    encode,
    encode_frame,
    encode_ring,
    registered,
)
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode, ProtocolError
from stagewire.wire.reference import layout_digest
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import Blob, DType, Tensor, TokenIds

TENSORS = st.builds(
    lambda rows, columns: Tensor.from_numpy(np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)),
    st.integers(0, 5),
    st.integers(0, 5),
)
SAMPLING = st.builds(
    SamplingParams,
    temperature=st.floats(0, 2),
    top_k=st.integers(0, 100),
    seed=st.none() | st.integers(0, 2**64 - 1),
    logit_bias=st.just(()) | st.just(((3, -1.5),)),
)


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation that a message may have."""
    special: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(0, 2**64 - 1),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=20),
        bytes: st.binary(max_size=20),
        bool: st.booleans(),
        Tensor: TENSORS,
        TokenIds: st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5).map(TokenIds.of),
        Blob: st.binary(max_size=20).map(Blob),
        SamplingParams: SAMPLING,
    }
    if hint in special:
        return special[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return st.lists(strategy(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*[strategy(argument) for argument in arguments])
    if type(None) in arguments:
        return st.none() | strategy(arguments[0])
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        names = [field.name for field in dataclasses.fields(hint)]
        return st.tuples(*[strategy(hints[name]) for name in names]).map(lambda values: hint(*values))
    return st.sampled_from(list(hint))


MESSAGES = st.one_of(*[strategy(cls) for cls in registered().values()])
EPOCH = Epoch(7, 3)
assert {returns, status}, "importing them registers their messages"


@given(MESSAGES)
@settings(max_examples=400, deadline=None)
def test_every_message_survives_the_way_there_and_back(message: Message) -> None:
    """Decoding what was encoded gives an equal message, whatever its kind, in frames and in one."""
    assert decode([bytes(frame) for frame in encode(message)]) == message
    assert decode_frame(encode_frame(message)) == message
    assert decode_frame(b"before" + encode_frame(message), len(b"before")) == message


@given(MESSAGES, st.data())
@settings(max_examples=400, deadline=None)
def test_damaged_frames_raise_only_the_protocol_error(message: Message, data: st.DataObject) -> None:
    """Flip, cut, drop or repeat anything: a message comes out, or ProtocolError."""
    frames = [bytearray(frame) for frame in encode(message)]
    which = data.draw(st.integers(0, len(frames) - 1))
    change = data.draw(st.sampled_from(["flip", "cut", "drop", "repeat", "swap"]))
    if change == "flip" and frames[which]:
        at = data.draw(st.integers(0, len(frames[which]) - 1))
        frames[which][at] ^= data.draw(st.integers(1, 255))
    elif change == "cut":
        del frames[which][data.draw(st.integers(0, len(frames[which]))) :]
    elif change == "drop":
        del frames[which]
    elif change == "repeat":
        frames.append(frames[which])
    else:
        frames[which] = bytearray(data.draw(st.binary(max_size=64)))
    with suppress(ProtocolError):
        decode(frames)


@given(MESSAGES, st.data())
@settings(max_examples=400, deadline=None)
def test_a_damaged_single_frame_raises_only_the_protocol_error(message: Message, data: st.DataObject) -> None:
    """Flip or cut anything of a ring message: an envelope and a message come out, or ProtocolError."""
    frame = bytearray(encode_ring(Envelope(EPOCH, 1, 0, 42), message))
    at = data.draw(st.integers(0, len(frame) - 1) | st.integers(36, min(60, len(frame) - 1)))
    change = data.draw(st.sampled_from(["flip", "cut", "insert"]))
    if change == "flip":
        frame[at] ^= data.draw(st.integers(1, 255))
    elif change == "cut":
        del frame[at:]
    else:
        frame[at:at] = data.draw(st.binary(min_size=1, max_size=8))
    with suppress(ProtocolError):
        decode_ring(bytes(frame))


@given(st.lists(st.binary(max_size=64), max_size=5), st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_frames_raise_only_the_protocol_error(frames: list[bytes], frame: bytes) -> None:
    """What was never a message is refused, in frames and in one, with and without an envelope."""
    with pytest.raises(ProtocolError):
        decode(frames)
    for read in (decode_frame, decode_ring):
        with pytest.raises(ProtocolError):
            read(frame)


def test_bulk_values_of_a_single_frame_end_within_it() -> None:
    """Sizes that lie about the frame, and numbers of values that no message has, are refused by name."""
    head = b"SW" + bytes([VERSION, 101])
    for sizes in ((1000,), (2**32 - 1, 2**32 - 1)):
        frame = head + struct.pack(f"<I{len(sizes)}I", len(sizes), *sizes) + bytes(20)
        with pytest.raises(ProtocolError, match=r"end at byte \d+ of a frame of"):
            decode_frame(frame)
    for count in (63, 2**32 - 1):
        with pytest.raises(ProtocolError):
            decode_frame(head + struct.pack("<I", count) + bytes(400))


def test_a_single_frame_of_another_version_says_so() -> None:
    """Whoever speaks another version hears which, whatever follows the head."""
    with pytest.raises(ProtocolError, match="version 9") as error:
        decode_frame(b"SW" + bytes([9, 100]) + bytes(12))
    assert error.value.code is ErrorCode.PROTOCOL_VERSION


_MSGPACK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**63) | st.floats() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)


@given(st.sampled_from(sorted(registered())), _MSGPACK, st.lists(st.binary(max_size=8), max_size=2))
@settings(max_examples=600, deadline=None)
def test_well_formed_bodies_of_the_wrong_shape_raise_only_the_protocol_error(
    kind: int, body: object, payloads: list[bytes]
) -> None:
    """Valid msgpack under a valid head reaches the field checks, and no further."""
    with suppress(ProtocolError):
        decode([b"SW" + bytes([VERSION, kind]), msgpack.packb(body), *payloads])


def test_another_version_is_named() -> None:
    """The code says that only the version differs, and the text says which."""
    head, *rest = encode(frontend.ClientBye())
    with pytest.raises(ProtocolError, match=f"version 9; this side speaks {VERSION}") as error:
        decode([b"SW\x09" + bytes(head)[3:], *rest])
    assert error.value.code is ErrorCode.PROTOCOL_VERSION


def test_a_layout_never_changes_under_the_same_version() -> None:
    """Or an old process and a new one would misread each other, and nobody would say why."""
    assert (VERSION, layout_digest()) == (4, "af0ea2b0f0304049"), "raise VERSION, then write the new digest here"


def test_an_oversized_body_is_named() -> None:
    """A body beyond the limit is refused before it is parsed."""
    with pytest.raises(ProtocolError) as error:
        decode([b"SW" + bytes([VERSION, 6]), bytes(9 * 1024 * 1024)])
    assert error.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_bad_parameter_names_its_request() -> None:
    """A Generate whose sampling breaks a rule says which request it was, so that it can be refused by name."""
    request = frontend.Generate("r1", "s", None, SamplingParams(), 5, (), False, TokenIds.of([1]))
    head, body, payload = encode(request)
    values = msgpack.unpackb(body)
    values[3][0] = -1.0
    with pytest.raises(ProtocolError, match="temperature") as error:
        decode([head, msgpack.packb(values), payload])
    assert (error.value.request_id, error.value.code) == ("r1", ErrorCode.INVALID_REQUEST)


def test_a_tensor_is_not_copied() -> None:
    """The array that comes out looks at the very payload frame that came in."""
    step = ring.Step(1, (), (), (), (), (), TokenIds.of([5]), Tensor.from_numpy(np.ones((1, 8), np.float32)))
    frames = [bytearray(frame) for frame in encode(step)]
    received = decode([memoryview(frame) for frame in frames])
    assert isinstance(received, ring.Step) and received.hidden_states is not None
    array = received.hidden_states.to_numpy()
    frames[-1][:4] = np.float32(2).tobytes()
    assert array[0, 0] == 2


@pytest.mark.parametrize(("dtype", "numpy_dtype"), [(DType.F32, "<f4"), (DType.F16, "<f2"), (DType.BF16, "<u2")])
def test_tensors_keep_their_bits(dtype: DType, numpy_dtype: str) -> None:
    """Any bit pattern of any element type arrives as it was."""
    bits = np.random.default_rng(0).integers(0, 256, 24 * np.dtype(numpy_dtype).itemsize, dtype=np.uint8)
    array = bits.view(numpy_dtype).reshape(2, 3, 4)
    tensor = Tensor.from_numpy(array, dtype)
    assert tensor.to_numpy().tobytes() == array.tobytes()
    assert tensor.shape == (2, 3, 4)


def test_a_tensor_of_the_wrong_length_is_refused() -> None:
    """Shape and payload must agree to the byte."""
    with pytest.raises(ProtocolError, match="needs 16 bytes, got 12"):
        Tensor(DType.F32, (4,), bytes(12))


def test_token_ids_are_little_endian_int32() -> None:
    """Ids come back as they were; what is no int32 is the caller's error."""
    token_ids = [0, 5, 2**31 - 1, -(2**31)]
    assert TokenIds.of(token_ids).data == np.array(token_ids, "<i4").tobytes()
    assert TokenIds.of(token_ids).to_list() == token_ids
    with pytest.raises(OverflowError):
        TokenIds.of([2**31])


def test_the_envelope_leads_on_the_ring() -> None:
    """Envelope and message come back, in one frame; bulk values lie at whole words of it."""
    envelope = Envelope(EPOCH, 1, 0, 42)
    assert decode_ring(encode_ring(envelope, ring.CancelRequest("r"))) == (envelope, ring.CancelRequest("r"))
    states = Tensor.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    frame = encode_ring(envelope, ring.Step(1, (), (), (), (), (), TokenIds.of([1, 2, 3]), states))
    _, step = decode_ring(frame)
    assert isinstance(step, ring.Step) and step.hidden_states is not None
    assert step.hidden_states.to_numpy().flags.aligned and step.token_ids.to_numpy().flags.aligned


def test_every_message_is_frozen_and_documented() -> None:
    """One frozen dataclass each, whose docstring is the reference page."""
    for cls in registered().values():
        assert dataclasses.is_dataclass(cls) and cls.__doc__
        assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
