"""Bulk values that travel as frames of their own: tensors and token ids, never copied on receipt."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from stagewire.wire.errors import ProtocolError
from stagewire.wire.limits import MAX_PAYLOAD_BYTES, MAX_TENSOR_DIMENSIONS


def take(payloads: list[bytes | bytearray | memoryview]) -> bytes | bytearray | memoryview:
    """The next payload frame of a message.

    Raises:
        ProtocolError: there is none, or it is too large.
    """
    if not payloads:
        raise ProtocolError("a payload frame is missing")
    payload = payloads.pop(0)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ProtocolError(f"payload frame of {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES}")
    return payload


class DType(str, Enum):
    """Element types of a tensor frame, little-endian. numpy has no bfloat16: its arrays are `uint16`."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"


_NUMPY: dict[DType, np.dtype[np.generic]] = {
    DType.F32: np.dtype("<f4"),
    DType.F16: np.dtype("<f2"),
    DType.BF16: np.dtype("<u2"),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense row-major array: `data` is the untouched payload frame.

    Raises:
        ProtocolError: `data` is not exactly as long as `dtype` and `shape` say.
    """

    dtype: DType
    shape: tuple[int, ...]
    data: bytes | bytearray | memoryview

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_TENSOR_DIMENSIONS:
            raise ProtocolError(f"tensor has {len(self.shape)} dimensions; at most {MAX_TENSOR_DIMENSIONS}")
        expected = math.prod(self.shape) * _NUMPY[self.dtype].itemsize
        if expected > MAX_PAYLOAD_BYTES or expected != len(self.data):
            raise ProtocolError(
                f"tensor {self.dtype.value}{list(self.shape)} needs {expected} bytes, got {len(self.data)}"
            )

    @classmethod
    def from_numpy(cls, values: npt.NDArray[np.generic], dtype: DType = DType.F32) -> Tensor:
        """Wrap `values` (f4, f2, or u2 for bf16) without a copy when it is contiguous."""
        contiguous = np.ascontiguousarray(values, dtype=_NUMPY[dtype])
        return cls(dtype, contiguous.shape, contiguous.reshape(-1).view(np.uint8).data)

    def to_numpy(self) -> npt.NDArray[np.generic]:
        """A read-only view of the payload; bf16 comes as `uint16`."""
        return np.frombuffer(self.data, dtype=_NUMPY[self.dtype]).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids as little-endian int32, so that whoever only routes them need not look at them.

    Raises:
        ProtocolError: `data` is not a whole number of int32.
    """

    data: bytes | bytearray | memoryview = b""

    def __post_init__(self) -> None:
        if len(self.data) % 4:
            raise ProtocolError(f"token ids take 4 bytes each, got {len(self.data)} bytes")

    @classmethod
    def of(cls, token_ids: Sequence[int]) -> TokenIds:
        """Pack ids; a value outside int32 is the caller's error and raises `OverflowError`."""
        values = array("i", token_ids)
        if sys.byteorder == "big":
            values.byteswap()
        return cls(values.tobytes())

    def __len__(self) -> int:
        return len(self.data) // 4

    def to_numpy(self) -> npt.NDArray[np.int32]:
        """A read-only int32 [T] view."""
        return np.frombuffer(self.data, dtype="<i4")

    def to_list(self) -> list[int]:
        ids: list[int] = self.to_numpy().tolist()
        return ids


@dataclass(frozen=True, slots=True)
class Blob:
    """Opaque bytes in a frame of their own: a model card, or a relayed frame."""

    data: bytes | bytearray | memoryview = b""
