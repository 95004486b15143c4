"""Turns a dataclass's annotations into a packer and a strict unpacker: Python text, compiled once for each class.

For `SnapshotRequest`, with `name: str`, `num_tokens: int | None` and `file: str | None`, the text is

    def pack(value, append):
        return (value.name, value.num_tokens, value.file)

    def unpack(values, payloads):
        if type(values) is not tuple or len(values) != 3:
            raise refused('the 3 fields of SnapshotRequest', values)
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
        record.__class__ = SnapshotRequest
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
    fields = _fields(record)
    names = {**_NAMES, record.__name__: record}
    text = _pack_text(fields) + "\n" + _unpack_text(record, fields, names)
    if any(name in names or name in ("payloads", "record") or "__" in name for name in fields):
        raise TypeError(f"a field of {record.__name__} has a name that its unpacker uses: {[*fields]}")
    exec(compile(text, f"<codec {record.__name__}>", "exec"), names)  # noqa: S102  made of our own annotations only
    return Codec(names["pack"], names["unpack"], text)


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
    if kind in _BULK:
        return f"append({path}.data)"
    if kind is Union:
        # An absent bulk value must differ from a present one, whose own packing may be None.
        packed = f"({_packed(inner[0], path)},)" if inner[0] in _BULK else _packed(inner[0], path)
        return path if packed == path else f"None if {path} is None else {packed}"
    if kind is list:
        packed = _packed(inner[0], "item")
        return path if packed == "item" else f"{path} and [{packed} for item in {path}]"
    if kind is tuple:
        return _listed([_packed(each, f"{path}[{i}]") for i, each in enumerate(inner)])
    if kind is object:
        return _listed([_packed(each, f"{path}.{name}") for name, each in _fields(hint).items()])
    return path


# --- unpacking: lines that check a variable and put the value in its place ---

_SCALARS = {
    int: ("type({0}) is not int or {0} < 0", "a non-negative integer"),
    bool: ("type({0}) is not bool", "a boolean"),
    str: (f"type({{0}}) is not str or len({{0}}) > {MAX_STRING_BYTES}", f"a string of at most {MAX_STRING_BYTES}"),
    bytes: (f"type({{0}}) is not bytes or len({{0}}) > {MAX_BYTES}", f"at most {MAX_BYTES} bytes"),
}
_BULK = (Tensor, TokenIds, Blob)
_NAMES: dict[str, Any] = {each.__name__: each for each in (type, len, tuple, refused, number, take, *_BULK)}
"""What every text may use."""


def _unpack_text(record: type, fields: dict[str, Any], names: dict[str, Any]) -> str:
    listed, size = _listed(list(fields)), len(fields)
    lines = _array("values", f"len(values) != {size}", f"the {size} fields of {record.__name__}")
    lines.append(f"{listed} = values")
    for name, hint in fields.items():
        lines += _checked(hint, name, names)
    if hasattr(record, "__post_init__"):
        lines.append(f"return {record.__name__}{listed}")
    else:
        names["Open"] = type("Open", record.__bases__, {"__slots__": tuple(fields)})
        assigned = [f"record.{name} = {name}" for name in fields]
        lines += ["record = Open()", *assigned, f"record.__class__ = {record.__name__}", "return record"]
    return "\n".join(_under("def unpack(values, payloads):", lines)) + "\n"


def _checked(hint: Any, name: str, names: dict[str, Any]) -> list[str]:
    """The lines for the variable `name`, whose own variables have `__` in their names. `names` gets what they use."""
    kind, inner = _shape(hint)
    if kind in _SCALARS:
        condition, expected = _SCALARS[kind]
        return _refusal(name, condition.format(name), expected)
    if kind is float:
        return _under(f"if type({name}) is not float or {name} != {name}:  # NaN", [f"{name} = number({name})"])
    if kind is Tensor:
        return _checked_tensor(name, names)
    if kind in _BULK:
        return [f"{name} = {kind.__name__}(take(payloads))"]
    if kind is Enum:
        members, known = f"{hint.__name__}_members", {member.value: member for member in hint}
        names[members] = known
        lines = _refusal(name, f"type({name}) is not str or {name} not in {members}", f"one of {sorted(known)}")
        return [*lines, f"{name} = {members}[{name}]"]
    if kind is Union:
        wrapped = [*_array(name, f"len({name}) != 1", "an optional payload"), f"({name},) = {name}"]
        lines = _checked(inner[0], name, names)
        return _under(f"if {name} is not None:", wrapped + lines if inner[0] in _BULK else lines)
    if kind is list:
        return _checked_sequence(inner[0], name, names)
    if kind is tuple:
        return _checked_fixed(inner, name, names)
    names[f"unpack_{hint.__name__}"] = record_codec(hint).unpack
    return [f"{name} = unpack_{hint.__name__}({name}, payloads)"]


def _checked_tensor(name: str, names: dict[str, Any]) -> list[str]:
    dtype, shape, size = f"{name}__dtype", f"{name}__shape", f"{name}__size"
    return [
        *_array(name, f"len({name}) != 2 or type({name}[1]) is not tuple", "a tensor's dtype and shape"),
        f"({dtype}, {shape}) = {name}",
        *_checked(DType, dtype, names),
        *_under(f"for {size} in {shape}:", _checked(int, size, names)),
        f"{name} = Tensor({dtype}, {shape}, take(payloads))",
    ]


def _checked_sequence(inner: Any, name: str, names: dict[str, Any]) -> list[str]:
    item, items = f"{name}__item", f"{name}__items"
    loop = _under(f"for {item} in {name}:", [*_checked(inner, item, names), f"{items}.append({item})"])
    return [
        *_array(name, f"len({name}) > {MAX_ITEMS}", f"a list of at most {MAX_ITEMS}"),
        *_under(f"if {name}:", [f"{items} = []", *loop, f"{name} = tuple({items})"]),
    ]


def _checked_fixed(inner: tuple[Any, ...], name: str, names: dict[str, Any]) -> list[str]:
    parts = [f"{name}__{i}" for i in range(len(inner))]
    lines = _array(name, f"len({name}) != {len(inner)}", f"a list of exactly {len(inner)}")
    lines.append(f"{_listed(parts)} = {name}")
    for each, part in zip(inner, parts, strict=True):
        lines += _checked(each, part, names)
    return [*lines, f"{name} = {_listed(parts)}"]


def _array(name: str, condition: str, expected: str) -> list[str]:
    return _refusal(name, f"type({name}) is not tuple or {condition}", expected)


def _refusal(name: str, condition: str, expected: str) -> list[str]:
    return _under(f"if {condition}:", [f"raise refused({expected!r}, {name})"])


def _under(head: str, lines: list[str]) -> list[str]:
    return [head, *("    " + line for line in lines)]


# --- annotations ---


def _fields(record: type) -> dict[str, Any]:
    hints = typing.get_type_hints(record)
    return {field.name: hints[field.name] for field in dataclasses.fields(record)}


def _shape(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """What kind of field an annotation makes, and the annotations inside it: a scalar or a bulk value is its own kind,
    Union an optional, list any number, tuple as many as inside, Enum an enum, object a record.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint in _SCALARS or hint in _BULK or hint is float:
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
