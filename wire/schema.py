"""Turns a dataclass's annotations into a packer and a strict unpacker: Python text, compiled once for each class.

For `SnapshotWish`, with `name: str`, `num_tokens: int | None` and `file: str | None`, the text is

    def pack(value, append):
        return (value.name, value.num_tokens, value.file)

    def unpack(values, payloads):
        if type(values) is not tuple or len(values) != 3:
            raise refused('the 3 fields of SnapshotWish', values)
        (name, num_tokens, file) = values
        if type(name) is not str or len(name) > 4096:
            raise refused('a string of at most 4096', name)
        if num_tokens is not None:
            if type(num_tokens) is not int or num_tokens < 0:
                raise refused('a non-negative integer', num_tokens)
        if file is not None:
            if type(file) is not str or len(file) > 4096:
                raise refused('a string of at most 4096', file)
        record = Open()
        record.name = name
        record.num_tokens = num_tokens
        record.file = file
        record.__class__ = SnapshotWish
        return record

`Open` has the same slots and is not frozen: a frozen dataclass's own `__init__` takes four times as long. A class that
checks its values (`__post_init__`) is called instead.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, Union

from stagewire.wire.errors import ProtocolError
from stagewire.wire.limits import MAX_BYTES, MAX_ITEMS, MAX_STRING_BYTES
from stagewire.wire.tensor import Blob, DType, Tensor, TokenIds, take


# msgpack values are untyped by nature: this module is where they become typed, so `Any` is at home here.
@dataclasses.dataclass(frozen=True, slots=True)
class Codec:
    """`pack(value, append)` gives a msgpack value, and payload frames to `append`, which returns None.

    `unpack(values, payloads)` reverses it, taking payload frames in order. `text` is what both were made from.
    """

    pack: Callable[[Any, Callable[[Any], None]], Any]
    unpack: Callable[[Any, list[Any]], Any]
    text: str


def refused(expected: str, value: object) -> ProtocolError:
    """What a wrong value is answered with; msgpack's arrays come as tuples, and are lists to whoever reads it."""
    return ProtocolError(f"expected {expected}, got {'list' if type(value) is tuple else type(value).__name__}")


def number(value: object) -> float:
    """Of what is not a float as it should be: a whole number may have come as an integer."""
    if type(value) is not int:
        raise refused("a number", value)
    return float(value)


@cache
def record_codec(record: type) -> Codec:
    """The codec of a dataclass: a msgpack array of its fields in order of declaration.

    Raises:
        TypeError: a field has a type, or a name, that none may have (our own bug).
    """
    hints = typing.get_type_hints(record)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(record)}
    names = {**_NAMES, record.__name__: record}
    text = _pack_text(fields) + "\n" + _unpack_text(record, fields, names)
    hidden = fields.keys() & {*names, "payloads", "record"}
    if hidden:
        raise TypeError(f"fields of {record.__name__} have names that its unpacker uses: {hidden}")
    exec(compile(text, f"<codec {record.__name__}>", "exec"), names)  # noqa: S102  made of our own annotations only
    return Codec(names["pack"], names["unpack"], text)


def _lines(depth: int, lines: list[str]) -> list[str]:
    return ["    " * depth + line for line in lines]


def _listed(parts: list[str]) -> str:
    """A tuple display; the last comma is needed if there is only one."""
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


# --- packing: one expression ---


def _pack_text(fields: dict[str, Any]) -> str:
    packed = _listed([_packed(hint, f"value.{name}") for name, hint in fields.items()])
    return f"def pack(value, append):\n    return {packed}\n"


def _packed(hint: Any, path: str) -> str:
    """The expression that packs what `path` names; `path` itself where msgpack takes it as it is."""
    kind, inner = _shape(hint)
    if kind is Tensor:
        return f"(append({path}.data) or ({path}.dtype, {path}.shape))"
    if kind in (TokenIds, Blob):
        return f"append({path}.data)"
    if kind is Union:
        # An absent bulk value must differ from a present one, whose own packing may be None.
        packed = f"({_packed(inner[0], path)},)" if inner[0] in _BULK else _packed(inner[0], path)
        return path if packed == path else f"None if {path} is None else {packed}"
    if kind is list:
        packed = _packed(inner[0], "item")
        return path if packed == "item" else f"{path} and [{packed} for item in {path}]"
    if kind is tuple:
        parts = [_packed(each, f"{path}[{i}]") for i, each in enumerate(inner)]
        return path if parts == [f"{path}[{i}]" for i in range(len(inner))] else _listed(parts)
    if kind is object:
        hints = typing.get_type_hints(hint)
        return _listed([_packed(hints[field.name], f"{path}.{field.name}") for field in dataclasses.fields(hint)])
    return path


# --- unpacking: statements that check a variable and put the value in its place ---

_CHECKS: dict[Any, tuple[str, ...]] = {
    int: (
        "if type({0}) is not int or {0} < 0:",
        "    raise refused('a non-negative integer', {0})",
    ),
    float: (
        "if type({0}) is not float or {0} != {0}:  # NaN",
        "    {0} = number({0})",
    ),
    bool: (
        "if type({0}) is not bool:",
        "    raise refused('a boolean', {0})",
    ),
    str: (
        f"if type({{0}}) is not str or len({{0}}) > {MAX_STRING_BYTES}:",
        f"    raise refused('a string of at most {MAX_STRING_BYTES}', {{0}})",
    ),
    bytes: (
        f"if type({{0}}) is not bytes or len({{0}}) > {MAX_BYTES}:",
        f"    raise refused('at most {MAX_BYTES} bytes', {{0}})",
    ),
    TokenIds: ("{0} = TokenIds(take(payloads))",),
    Blob: ("{0} = Blob(take(payloads))",),
    Tensor: (
        "if type({0}) is not tuple or len({0}) != 2 or type({0}[1]) is not tuple:",
        '    raise refused("a tensor\'s dtype and shape", {0})',
        "({0}_dtype, {0}_shape) = {0}",
        "if type({0}_dtype) is not str or {0}_dtype not in DType_members:",
        "    raise refused(f'one of {{sorted(DType_members)}}', {0}_dtype)",
        "for size in {0}_shape:",
        "    if type(size) is not int or size < 0:",
        "        raise refused('a non-negative integer', size)",
        "{0} = Tensor(DType_members[{0}_dtype], {0}_shape, take(payloads))",
    ),
}
_BULK = (Tensor, TokenIds, Blob)
_NAMES: dict[str, Any] = {
    **{each.__name__: each for each in (type, len, tuple, refused, number, take, *_BULK)},
    "DType_members": {member.value: member for member in DType},
}
"""What every text may use."""


def _unpack_text(record: type, fields: dict[str, Any], names: dict[str, Any]) -> str:
    listed, size = _listed(list(fields)), len(fields)
    lines = [
        f"if type(values) is not tuple or len(values) != {size}:",
        f"    raise refused('the {size} fields of {record.__name__}', values)",
        f"{listed} = values",
    ]
    for name, hint in fields.items():
        lines += _checked(hint, name, names)
    if hasattr(record, "__post_init__"):
        lines.append(f"return {record.__name__}{listed}")
    else:
        names["Open"] = type("Open", record.__bases__, {"__slots__": tuple(fields)})
        lines.append("record = Open()")
        lines += [f"record.{name} = {name}" for name in fields]
        lines += [f"record.__class__ = {record.__name__}", "return record"]
    return "\n".join(["def unpack(values, payloads):", *_lines(1, lines)]) + "\n"


def _checked(hint: Any, name: str, names: dict[str, Any]) -> list[str]:
    """The lines for the variable `name`; `names` gets what else they use."""
    kind, inner = _shape(hint)
    if kind in _CHECKS:
        return [line.format(name) for line in _CHECKS[kind]]
    if kind is Enum:
        members = f"{hint.__name__}_members"
        names[members] = {member.value: member for member in hint}
        return [
            f"if type({name}) is not str or {name} not in {members}:",
            f"    raise refused(f'one of {{sorted({members})}}', {name})",
            f"{name} = {members}[{name}]",
        ]
    if kind is Union:
        return [f"if {name} is not None:", *_lines(1, _checked_optional(inner[0], name, names))]
    if kind is list:
        return _checked_sequence(inner[0], name, names)
    if kind is tuple:
        return _checked_fixed(inner, name, names)
    names[f"unpack_{hint.__name__}"] = record_codec(hint).unpack
    return [f"{name} = unpack_{hint.__name__}({name}, payloads)"]


def _checked_optional(inner: Any, name: str, names: dict[str, Any]) -> list[str]:
    if inner not in _BULK:
        return _checked(inner, name, names)
    return [
        f"if type({name}) is not tuple or len({name}) != 1:",
        f"    raise refused('an optional payload', {name})",
        f"({name},) = {name}",
        *_checked(inner, name, names),
    ]


def _checked_sequence(inner: Any, name: str, names: dict[str, Any]) -> list[str]:
    item, items = f"{name}_item", f"{name}_items"
    loop = [f"for {item} in {name}:", *_lines(1, [*_checked(inner, item, names), f"{items}.append({item})"])]
    return [
        f"if type({name}) is not tuple or len({name}) > {MAX_ITEMS}:",
        f"    raise refused('a list of at most {MAX_ITEMS}', {name})",
        f"if {name}:",
        *_lines(1, [f"{items} = []", *loop, f"{name} = tuple({items})"]),
    ]


def _checked_fixed(inner: tuple[Any, ...], name: str, names: dict[str, Any]) -> list[str]:
    parts = [f"{name}_{i}" for i in range(len(inner))]
    lines = [
        f"if type({name}) is not tuple or len({name}) != {len(inner)}:",
        f"    raise refused('a list of exactly {len(inner)}', {name})",
        f"{_listed(parts)} = {name}",
    ]
    for each, part in zip(inner, parts, strict=True):
        lines += _checked(each, part, names)
    return [*lines, f"{name} = {_listed(parts)}"]


# --- annotations ---


def _shape(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """What kind of field an annotation makes, and the annotations inside it: a scalar or a bulk value is its own kind,
    Union an optional, list any number, tuple as many as inside, Enum an enum, object a record.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint in _CHECKS:
        return hint, ()
    if origin in (Union, types.UnionType) and len(inner) == 2 and inner[1] is type(None):
        return Union, inner[:1]
    if origin is tuple and inner[1:] == (Ellipsis,):
        return list, inner[:1]
    if origin is tuple:
        return tuple, inner
    # Members that are strings are packed as they are.
    if isinstance(hint, type) and issubclass(hint, Enum) and issubclass(hint, str):
        return Enum, ()
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return object, ()
    raise TypeError(f"no message may have a field of type {hint}")
