"""Turns a dataclass's annotations into a packer and a strict unpacker, once per class."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, Union

from stagewire.wire.errors import ProtocolError
from stagewire.wire.limits import MAX_BYTES, MAX_ITEMS, MAX_PAYLOAD_BYTES, MAX_STRING_BYTES
from stagewire.wire.tensor import Blob, DType, Tensor, TokenIds

# msgpack values are untyped by nature: this module is where they become typed, so `Any` is at home here.
Pack = Callable[[Any, list[Any]], Any]
Unpack = Callable[[Any, list[Any]], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Codec:
    """`pack(value, payloads)` gives a msgpack value; `unpack` reverses it, taking payload frames in order."""

    pack: Pack
    unpack: Unpack


def _fail(expected: str, value: object) -> ProtocolError:
    return ProtocolError(f"expected {expected}, got {type(value).__name__}")


def _same(value: Any, _payloads: list[Any]) -> Any:
    return value


def _int(value: Any, _payloads: list[Any]) -> int:
    if type(value) is not int or value < 0:
        raise _fail("a non-negative integer", value)
    return value


def _float(value: Any, _payloads: list[Any]) -> float:
    if type(value) is int:
        return float(value)
    if type(value) is not float or math.isnan(value):
        raise _fail("a number", value)
    return value


def _bool(value: Any, _payloads: list[Any]) -> bool:
    if type(value) is not bool:
        raise _fail("a boolean", value)
    return value


def _str(value: Any, _payloads: list[Any]) -> str:
    if type(value) is not str or len(value) > MAX_STRING_BYTES:
        raise _fail(f"a string of at most {MAX_STRING_BYTES}", value)
    return value


def _bytes(value: Any, _payloads: list[Any]) -> bytes:
    if type(value) is not bytes or len(value) > MAX_BYTES:
        raise _fail(f"at most {MAX_BYTES} bytes", value)
    return value


_SCALARS: dict[Any, Codec] = {
    int: Codec(_same, _int),
    float: Codec(_same, _float),
    bool: Codec(_same, _bool),
    str: Codec(_same, _str),
    bytes: Codec(_same, _bytes),
}


def _take(payloads: list[Any]) -> Any:
    if not payloads:
        raise ProtocolError("a payload frame is missing")
    payload = payloads.pop(0)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ProtocolError(f"payload frame of {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES}")
    return payload


def _pack_data(value: Any, payloads: list[Any]) -> None:
    payloads.append(value.data)


def _pack_tensor(value: Tensor, payloads: list[Any]) -> list[Any]:
    payloads.append(value.data)
    return [value.dtype.value, list(value.shape)]


_SHAPE_CODEC_ITEMS = 2


def enum_codec(enum: type[Enum]) -> Codec:
    members = {member.value: member for member in enum}

    def unpack(value: Any, _payloads: list[Any]) -> Enum:
        if type(value) is not str or value not in members:
            raise _fail(f"one of {sorted(members)}", value)
        return members[value]

    return Codec(lambda value, _payloads: value.value, unpack)


_DTYPE = enum_codec(DType)


def _unpack_tensor(value: Any, payloads: list[Any]) -> Tensor:
    if type(value) is not list or len(value) != _SHAPE_CODEC_ITEMS or type(value[1]) is not list:
        raise _fail("a tensor's dtype and shape", value)
    dtype = _DTYPE.unpack(value[0], payloads)
    shape = tuple(_int(size, payloads) for size in value[1])
    return Tensor(dtype, shape, _take(payloads))


_BULK: dict[Any, Codec] = {
    Tensor: Codec(_pack_tensor, _unpack_tensor),
    TokenIds: Codec(_pack_data, lambda _value, payloads: TokenIds(_take(payloads))),
    Blob: Codec(_pack_data, lambda _value, payloads: Blob(_take(payloads))),
}


def _optional(inner: Codec) -> Codec:
    def pack(value: Any, payloads: list[Any]) -> Any:
        return None if value is None else inner.pack(value, payloads)

    def unpack(value: Any, payloads: list[Any]) -> Any:
        return None if value is None else inner.unpack(value, payloads)

    # An absent bulk value must differ from a present one, whose own packing may be None.
    def pack_bulk(value: Any, payloads: list[Any]) -> Any:
        return None if value is None else [inner.pack(value, payloads)]

    def unpack_bulk(value: Any, payloads: list[Any]) -> Any:
        if value is None:
            return None
        if type(value) is not list or len(value) != 1:
            raise _fail("an optional payload", value)
        return inner.unpack(value[0], payloads)

    return Codec(pack_bulk, unpack_bulk) if inner in _BULK.values() else Codec(pack, unpack)


def _sequence(inner: Codec) -> Codec:
    pack_item, unpack_item = inner.pack, inner.unpack

    def pack(values: Any, payloads: list[Any]) -> list[Any]:
        return [pack_item(value, payloads) for value in values]

    def unpack(values: Any, payloads: list[Any]) -> tuple[Any, ...]:
        if type(values) is not list or len(values) > MAX_ITEMS:
            raise _fail(f"a list of at most {MAX_ITEMS}", values)
        return tuple([unpack_item(value, payloads) for value in values])

    return Codec(pack, unpack)


def _fixed(inners: tuple[Codec, ...]) -> Codec:
    def pack(values: Any, payloads: list[Any]) -> list[Any]:
        return [inner.pack(value, payloads) for inner, value in zip(inners, values, strict=True)]

    def unpack(values: Any, payloads: list[Any]) -> tuple[Any, ...]:
        if type(values) is not list or len(values) != len(inners):
            raise _fail(f"a list of exactly {len(inners)}", values)
        return tuple([inner.unpack(value, payloads) for inner, value in zip(inners, values, strict=True)])

    return Codec(pack, unpack)


_RECORDS: dict[type, Codec] = {}


def record_codec(record: type) -> Codec:
    """The codec of a dataclass: a msgpack array of its fields in order of declaration."""
    if record not in _RECORDS:
        hints = typing.get_type_hints(record)
        names = [field.name for field in dataclasses.fields(record)]
        _RECORDS[record] = _record(record, names, [codec_of(hints[name]) for name in names])
    return _RECORDS[record]


def _record(record: type, names: list[str], codecs: list[Codec]) -> Codec:
    pairs = list(zip(names, [codec.pack for codec in codecs], strict=True))
    unpacks = [codec.unpack for codec in codecs]

    def pack(value: Any, payloads: list[Any]) -> list[Any]:
        return [pack_field(getattr(value, name), payloads) for name, pack_field in pairs]

    def unpack(values: Any, payloads: list[Any]) -> Any:
        if type(values) is not list or len(values) != len(unpacks):
            raise _fail(f"the {len(unpacks)} fields of {record.__name__}", values)
        return record(*[unpack_field(value, payloads) for unpack_field, value in zip(unpacks, values, strict=True)])

    return Codec(pack, unpack)


def codec_of(hint: Any) -> Codec:
    """The codec of an annotation.

    Raises:
        TypeError: the annotation is none that a message may have (our own bug, at import).
    """
    if hint in _SCALARS:
        return _SCALARS[hint]
    if hint in _BULK:
        return _BULK[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType) and len(arguments) == 2 and arguments[1] is type(None):
        return _optional(codec_of(arguments[0]))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _sequence(codec_of(arguments[0]))
    if origin is tuple:
        return _fixed(tuple(codec_of(argument) for argument in arguments))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return enum_codec(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return record_codec(hint)
    raise TypeError(f"no message may have a field of type {hint}")
