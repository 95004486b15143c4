"""A memory-mapped GGUF file, read tensor by tensor; only what is asked for is touched."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from stagewire.model.file_kind import refuse_irregular
from stagewire.model.gguf_header import ArrayInfo, Header, Scalar, TensorInfo, read_array, read_header
from stagewire.model.gguf_types import TYPE_BY_NAME, TensorType, dequantize_bytes, unsupported_type
from stagewire.wire.errors import ModelError

__all__ = ["ArrayInfo", "GgufFile", "Scalar", "TensorInfo"]

# Elements per dequantized slice: the dequantizers' temporaries, several times its float32, stay below 16 MiB.
_SLICE_ELEMENTS = 1 << 18


class GgufFile:
    """An open GGUF file. Threads may read it at the same time.

    The file must not be shortened while it is open: the operating system ends a process that touches a mapped
    page which the file has lost.
    """

    def __init__(self, path: Path, file: BinaryIO, data: mmap.mmap, header: Header) -> None:
        self.path = path
        self.metadata: Mapping[str, Scalar] = header.metadata
        self.arrays: Mapping[str, ArrayInfo] = header.arrays
        self.tensors: Mapping[str, TensorInfo] = header.tensors
        self.header_bytes, self.data_end, self.num_bytes = header.num_bytes, header.data_end, len(data)
        self._file, self._data = file, data

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GgufFile:
        """Maps the file and reads its header; arrays such as the vocabulary are skipped.

        Raises:
            ModelError: MODEL_FILE_INVALID, naming the file and the defect; nothing stays open.
        """
        location = Path(path)
        with contextlib.ExitStack() as undo:
            try:
                # Not blocking: a FIFO would wait for somebody who writes.
                descriptor = os.open(location, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                file = undo.enter_context(open(descriptor, "rb", buffering=0))  # noqa: PTH123  # of a descriptor
                refuse_irregular(location, os.fstat(descriptor).st_mode)
                if os.fstat(descriptor).st_size == 0:
                    raise ModelError(f"{location}: the file is empty; fetch it again")
                data = undo.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except OSError as error:
                raise ModelError(f"{location}: cannot be read: {error.strerror}") from None
            header = read_header(data, location)
            undo.pop_all()
        _advise_unneeded(data, 0, header.num_bytes)
        return cls(location, file, data, header)

    def array(self, key: str) -> list[Scalar]:
        """Parses an array of the metadata, anew on every call.

        Raises:
            ModelError: MODEL_FILE_INVALID, there is no such array, or it holds a string that is not UTF-8.
        """
        if key not in self.arrays:
            raise ModelError(f"{self.path}: the metadata has no array {key!r}")
        return read_array(self._data, self.arrays[key], self.path)

    def tensor(self, name: str) -> TensorInfo:
        """Looks a tensor up.

        Raises:
            ModelError: MODEL_FILE_INVALID, there is none of that name.
        """
        if name not in self.tensors:
            raise ModelError(f"{self.path}: the tensor {name!r} is missing")
        return self.tensors[name]

    def tensor_type(self, name: str) -> TensorType:
        """Returns the storage type of a tensor that can be dequantized.

        Raises:
            ModelError: UNSUPPORTED_TENSOR_TYPE, naming tensor and type.
        """
        info = self.tensor(name)
        kind = TYPE_BY_NAME.get(info.type_name)
        if kind is None or not kind.supported:
            raise unsupported_type(f"{self.path}: tensor {name!r} has type {info.type_name}, which")
        return kind

    def dequantize(self, name: str, row_start: int = 0, row_end: int | None = None) -> NDArray[np.float32]:
        """Returns rows of a tensor as a new float32 array, [rows, columns].

        A row is one step of all dimensions but the last. A tensor of one dimension is one row, and gives
        [columns].

        Raises:
            ModelError: UNSUPPORTED_TENSOR_TYPE, or the tensor is missing.
            IndexError: the rows are outside the tensor.
        """
        kind, shape = self.tensor_type(name), self.tensor(name).shape
        source = np.frombuffer(self.raw(name, row_start, row_end), np.uint8)
        values = np.empty(len(source) // kind.block_bytes * kind.block_size, np.float32)
        slice_blocks = max(1, _SLICE_ELEMENTS // kind.block_size)
        for first in range(0, len(source) // kind.block_bytes, slice_blocks):
            blocks = source[first * kind.block_bytes : (first + slice_blocks) * kind.block_bytes]
            target = values[first * kind.block_size : (first + slice_blocks) * kind.block_size]
            target[:] = dequantize_bytes(blocks, kind.name)
        return values if len(shape) == 1 else values.reshape(-1, shape[-1])

    def raw(self, name: str, row_start: int = 0, row_end: int | None = None) -> memoryview:
        """Returns the stored bytes of rows: a read-only view of the mapped file, no copy.

        Raises:
            ModelError: the tensor is missing, or its type is not known.
            IndexError: the rows are outside the tensor.
        """
        info = self.tensor(name)
        if info.type_name not in TYPE_BY_NAME:
            raise unsupported_type(f"{self.path}: tensor {name!r} has type {info.type_name}, which")
        num_rows = int(np.prod(info.shape[:-1], dtype=np.int64))
        row_end = num_rows if row_end is None else row_end
        if not 0 <= row_start <= row_end <= num_rows:
            raise IndexError(f"rows {row_start} to {row_end} of {name!r}, which has {num_rows}")
        row_bytes = info.num_bytes // num_rows
        return memoryview(self._data)[info.offset + row_start * row_bytes : info.offset + row_end * row_bytes]

    def release(self, name: str) -> None:
        """Gives the tensor's mapped pages back to the operating system; reading it again maps them again."""
        info = self.tensor(name)
        _advise_unneeded(self._data, info.offset, info.num_bytes)

    def release_all(self) -> None:
        """Gives all mapped pages back, those of the header too; whatever is read later is mapped anew."""
        _advise_unneeded(self._data, 0, len(self._data))

    def tensor_digest(self, name: str) -> bytes:
        """SHA-256 over a tensor's name, type, shape and stored bytes; it maps all of the tensor's pages.

        Raises:
            ModelError: the tensor is missing, or its type is not known.
        """
        info = self.tensor(name)
        digest = hashlib.sha256(json.dumps([info.name, info.type_name, info.shape]).encode() + b"\n")
        digest.update(self.raw(name))
        return digest.digest()

    def read_bytes(self, offset: int, num_bytes: int) -> bytes:
        """Copies part of the file without mapping it. Not more than the file holds."""
        return os.pread(self._file.fileno(), num_bytes, offset)

    def close(self) -> None:
        """Closes the file. Views that `raw` has returned keep the mapping alive until they are gone."""
        with contextlib.suppress(BufferError):
            self._data.close()
        self._file.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _advise_unneeded(data: mmap.mmap, offset: int, num_bytes: int) -> None:
    # Not every system can; there the pages stay until memory is short. Of an unknown type there are none.
    if not num_bytes or not hasattr(mmap, "MADV_DONTNEED"):
        return
    # Rounding outward is harmless: a neighbour's page is mapped again when it is read.
    start = offset // mmap.PAGESIZE * mmap.PAGESIZE
    data.madvise(mmap.MADV_DONTNEED, start, offset + num_bytes - start)
