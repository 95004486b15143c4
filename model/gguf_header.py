"""Reads a GGUF header: scalar metadata and tensor table; arrays (the vocabulary) are skipped, not parsed.

The format is ggml's `docs/gguf.md`, versions 2 and 3, little-endian. Every count, length and offset is
checked before it is used, so that a damaged file gives a `ModelError` and nothing else.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn, TypeAlias

from stagewire.model.foreign import HEAD_BYTES, describe_head
from stagewire.model.gguf_types import TENSOR_TYPES
from stagewire.wire.errors import ModelError

Scalar: TypeAlias = int | float | bool | str

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_DIMENSIONS = 4
MAX_DIMENSION = 1 << 40
MAX_NAME_BYTES = 1 << 16
MAX_STRING_BYTES = 1 << 24
MAX_ARRAY_ITEMS = 1 << 26
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32

_STRING = 8
_ARRAY = 9
_BOOL = 7
# struct codes of GGUF's value types; strings and arrays have none.
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_CUT_SHORT = "the file ends inside its header: it is truncated or damaged; fetch it again"
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """Where an array's items lie in the file; `item_type` is GGUF's number."""

    item_type: int
    count: int
    offset: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's place in the file.

    `shape` is in numpy order, outermost dimension first; `offset` counts from the start of the file. A type
    that this version does not know has its number as its name and `num_bytes` 0: it cannot be used.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """All that a GGUF file says before its data. `num_bytes` is the header's own length.

    `data_end` is where the last tensor ends; a tensor of an unknown type has no length there.
    """

    metadata: Mapping[str, Scalar]
    arrays: Mapping[str, ArrayInfo]
    tensors: Mapping[str, TensorInfo]
    num_bytes: int
    data_end: int


def read_header(data: mmap | bytes, path: Path) -> Header:
    """Parses and checks the header of a whole file that lies in `data`.

    Raises:
        ModelError: MODEL_FILE_INVALID, naming `path` and the defect.
    """
    try:
        return _HeaderReader(data, path).read()
    except (struct.error, OverflowError):
        raise ModelError(f"{path}: {_CUT_SHORT}") from None


def read_array(data: mmap | bytes, info: ArrayInfo, path: Path) -> list[Scalar]:
    """Parses an array that `read_header` has skipped.

    Raises:
        ModelError: MODEL_FILE_INVALID, a string is not UTF-8.
    """
    reader = _HeaderReader(data, path, info.offset)
    if info.item_type == _STRING:
        return [reader.string(MAX_STRING_BYTES) for _ in range(info.count)]
    return list(struct.unpack_from(f"<{info.count}{_CODES[info.item_type]}", data, info.offset))


class _HeaderReader:
    """A cursor over the header; `struct.error` escapes where the data ends early."""

    def __init__(self, data: mmap | bytes, path: Path, position: int = 0) -> None:
        self._data, self._path, self._position = data, path, position

    def read(self) -> Header:
        tensor_count, key_count = self._read_preamble()
        metadata, arrays = self._read_metadata(key_count)
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            self._fail(f"general.alignment={alignment!r} is not a power of two up to {MAX_ALIGNMENT}")
        tensors = [self._read_tensor() for _ in range(tensor_count)]
        self._check_end()
        data_start = -(-self._position // alignment) * alignment
        placed = self._place_tensors(tensors, data_start, alignment)
        data_end = max((info.offset + info.num_bytes for info in placed.values()), default=data_start)
        return Header(MappingProxyType(metadata), MappingProxyType(arrays), placed, self._position, data_end)

    def _read_preamble(self) -> tuple[int, int]:
        if self._data[:4] != b"GGUF":
            thing = describe_head(self._data[:HEAD_BYTES])
            self._fail(f"not a GGUF file, but {thing}" if thing else "not a GGUF file; give the path of a .gguf file")
        self._position = 4
        version = self._unsigned("I")
        if version not in (2, 3):
            order = " (a big-endian file)" if version & 0xFFFF == 0 else ""
            self._fail(f"GGUF version {version}{order}; versions 2 and 3, little-endian, are supported")
        tensor_count = self._count("tensors", MAX_TENSORS)
        return tensor_count, self._count("metadata keys", MAX_KEYS)

    def _read_metadata(self, count: int) -> tuple[dict[str, Scalar], dict[str, ArrayInfo]]:
        metadata: dict[str, Scalar] = {}
        arrays: dict[str, ArrayInfo] = {}
        for _ in range(count):
            key, value_type = self.string(MAX_NAME_BYTES), self._unsigned("I")
            if key in metadata or key in arrays:
                self._fail(f"metadata key {key!r:.80} occurs twice")
            if value_type == _ARRAY:
                arrays[key] = self._skip_array(key)
            else:
                metadata[key] = self._scalar(key, value_type)
        return metadata, arrays

    def _scalar(self, key: str, value_type: int) -> Scalar:
        if value_type == _STRING:
            return self.string(MAX_STRING_BYTES)
        if value_type not in _CODES:
            self._fail(f"metadata key {key!r:.80} has unknown value type {value_type}")
        if value_type == _BOOL and self._data[self._position : self._position + 1] > b"\x01":
            self._fail(f"metadata key {key!r:.80} is neither true nor false")
        code = "<" + _CODES[value_type]
        (value,) = struct.unpack_from(code, self._data, self._position)
        self._position += struct.calcsize(code)
        return value  # type: ignore[no-any-return]  # struct knows no types

    def _skip_array(self, key: str) -> ArrayInfo:
        item_type = self._unsigned("I")
        if item_type != _STRING and item_type not in _CODES:
            self._fail(f"array {key!r:.80} has unknown or unsupported item type {item_type}")
        count = self._count(f"items in array {key!r:.80}", MAX_ARRAY_ITEMS)
        info = ArrayInfo(item_type, count, self._position)
        if item_type == _STRING:
            self._skip_strings(count)
        else:
            self._position += count * struct.calcsize(_CODES[item_type])
        self._check_end()
        return info

    def _skip_strings(self, count: int) -> None:
        # The one hot loop: a vocabulary and its merges are some 100,000 to 1,000,000 strings. No objects but
        # the lengths; a length beyond the file makes the next read fail, or `_check_end`.
        data, position, unpack = self._data, self._position, _U64.unpack_from
        for _ in range(count):
            position += 8 + unpack(data, position)[0]
        self._position = position

    def _read_tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string(MAX_NAME_BYTES)
        num_dimensions = self._unsigned("I")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            self._fail(f"tensor {name!r:.80} has {num_dimensions} dimensions, the limit is {MAX_DIMENSIONS}")
        shape = tuple(self._unsigned("Q") for _ in range(num_dimensions))[::-1]
        return name, shape, self._unsigned("I"), self._unsigned("Q")

    def _place_tensors(
        self, tensors: list[tuple[str, tuple[int, ...], int, int]], data_start: int, alignment: int
    ) -> Mapping[str, TensorInfo]:
        placed: dict[str, TensorInfo] = {}
        for name, shape, type_id, relative in tensors:
            if name in placed:
                self._fail(f"tensor {name!r:.80} occurs twice")
            if relative % alignment:
                self._fail(f"tensor {name!r:.80} has offset {relative}, not a multiple of {alignment}")
            type_name, num_bytes = self._size_tensor(name, shape, type_id)
            placed[name] = TensorInfo(name, shape, type_name, data_start + relative, num_bytes)
        self._check_length(placed)
        self._check_overlaps(placed)
        return MappingProxyType(placed)

    def _size_tensor(self, name: str, shape: tuple[int, ...], type_id: int) -> tuple[str, int]:
        if not all(1 <= size <= MAX_DIMENSION for size in shape):
            self._fail(f"tensor {name!r:.80} has the impossible shape {shape}")
        if type_id not in TENSOR_TYPES:
            return str(type_id), 0
        kind = TENSOR_TYPES[type_id]
        if shape[-1] % kind.block_size:
            self._fail(f"tensor {name!r:.80} has rows of {shape[-1]}, not whole {kind.name} blocks")
        num_blocks = shape[-1] // kind.block_size
        for size in shape[:-1]:
            num_blocks *= size
        return kind.name, num_blocks * kind.block_bytes

    def _check_length(self, placed: Mapping[str, TensorInfo]) -> None:
        beyond = [info for info in placed.values() if info.offset + info.num_bytes > len(self._data)]
        if beyond:
            first, needed = beyond[0], max(info.offset + info.num_bytes for info in beyond)
            self._fail(
                f"tensor {first.name!r:.80} ends beyond the file, which has {len(self._data)} of {needed} bytes: "
                "it is truncated or damaged; fetch it again, to its end"
            )

    def _check_overlaps(self, placed: Mapping[str, TensorInfo]) -> None:
        in_order = sorted((info for info in placed.values() if info.num_bytes), key=lambda info: info.offset)
        for before, after in itertools.pairwise(in_order):
            if before.offset + before.num_bytes > after.offset:
                self._fail(f"tensors {before.name!r:.80} and {after.name!r:.80} overlap")

    def string(self, max_bytes: int) -> str:
        length = self._unsigned("Q")
        if length > max_bytes:
            self._fail(f"a string of {length} bytes in the header, the limit is {max_bytes}")
        start = self._position
        self._position += length
        self._check_end()
        try:
            return self._data[start : self._position].decode()
        except UnicodeDecodeError:
            self._fail(f"a string at byte {start} is not UTF-8")

    def _count(self, what: str, limit: int) -> int:
        count = self._unsigned("Q")
        # Each takes a byte at least, so a damaged count can cause neither a long loop nor a large allocation.
        if count > min(limit, len(self._data)):
            self._fail(f"{count} {what}, the limit is {limit}, the file has {len(self._data)} bytes")
        return count

    def _unsigned(self, code: str) -> int:
        (value,) = struct.unpack_from("<" + code, self._data, self._position)
        self._position += struct.calcsize(code)
        return int(value)

    def _check_end(self) -> None:
        if self._position > len(self._data):
            self._fail(_CUT_SHORT)

    def _fail(self, defect: str) -> NoReturn:
        raise ModelError(f"{self._path}: {defect}")
