"""Loads a stage's own tensors for the native kernels: taken apart and packed in slices, mapped pages given back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagewire.model.gguf import GgufFile
from stagewire.model.gguf_codes import CODE_FORMS, Codes, take_apart
from stagewire.model.layout import EMBEDDING, OUTPUT, OUTPUT_NORM
from stagewire.stage.native.large_pages import LargePages
from stagewire.stage.native.matrix import BLOCK, FLOAT_KINDS, PANEL, NativeMatrix, pack_codes, pack_floats
from stagewire.stage.native.requantize import requantize
from stagewire.wire.card import ModelConfig

_SLICE_ELEMENTS = 1 << 20  # of a tensor that exist unpacked at one time
_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_CODE_BITS = {"int4": 4, "int8": 8}


@dataclass(frozen=True, slots=True)
class NativeLayer:
    """One layer; `matrices` in the order of `_MATRICES`, queries and keys with the halves of their pairs apart."""

    attention_norm: NDArray[np.float32]
    ffn_norm: NDArray[np.float32]
    matrices: tuple[NativeMatrix, ...]

    @property
    def num_bytes(self) -> int:
        norms = self.attention_norm.nbytes + self.ffn_norm.nbytes
        return norms + sum(matrix.num_bytes for matrix in self.matrices)


@dataclass(frozen=True, slots=True)
class NativeOutput:
    """The last stage's norm and projection to the vocabulary."""

    norm: NDArray[np.float32]
    projection: NativeMatrix

    @property
    def num_bytes(self) -> int:
        return self.norm.nbytes + self.projection.num_bytes


def unsupported_reason(gguf: GgufFile, config: ModelConfig, names: tuple[str, ...], precision: str) -> str:
    """Why these tensors cannot be computed by the native kernels at this precision; empty if they can."""
    sizes = {"hidden_size": config.hidden_size, "head_dim": config.head_dim, "feed-forward": config.intermediate_size}
    for name, size in sizes.items():
        if size % PANEL:
            return f"{name} {size} is not a multiple of {PANEL}"
    types = {gguf.tensor_type(name).name: name for name in names if len(gguf.tensor(name).shape) == 2}
    for type_name, name in types.items():
        is_kept = type_name in CODE_FORMS or type_name in FLOAT_KINDS
        if not is_kept and precision not in _CODE_BITS:
            return f"the tensor {name} has type {type_name}"
    return ""


class NativeWeightLoader:
    """Turns tensors of one file into what the kernels read, as `precision` asks: stored, int8 or int4."""

    def __init__(self, gguf: GgufFile, config: ModelConfig, precision: str) -> None:
        self._gguf, self._config = gguf, config
        self._bits = _CODE_BITS.get(precision)
        self._pages = LargePages()

    def layer(self, index: int) -> NativeLayer:
        prefix = f"blk.{index}"
        return NativeLayer(
            self._vector(f"{prefix}.attn_norm.weight"),
            self._vector(f"{prefix}.ffn_norm.weight"),
            tuple(self._matrix(f"{prefix}.{name}.weight", self._is_rotated(name)) for name in _MATRICES),
        )

    def output(self) -> NativeOutput:
        name = EMBEDDING if self._config.tie_word_embeddings else OUTPUT
        return NativeOutput(self._vector(OUTPUT_NORM), self._matrix(name, False))

    @staticmethod
    def _is_rotated(name: str) -> bool:
        return name in {"attn_q", "attn_k"}

    def _vector(self, name: str) -> NDArray[np.float32]:
        # A copy: the file hands out a view of its mapped pages.
        vector = np.array(self._gguf.dequantize(name), np.float32)
        self._gguf.release(name)
        return vector

    def _matrix(self, name: str, is_rotated: bool) -> NativeMatrix:
        type_name, (outputs, inputs) = self._gguf.tensor_type(name).name, self._gguf.tensor(name).shape
        stored = CODE_FORMS.get(type_name)
        if self._bits and (stored is None or stored.bits > self._bits):
            slices = (requantize(self._gguf.dequantize(name, *rows), self._bits) for rows in self._slices(name))
            matrix = self._pack(outputs, -(-inputs // BLOCK) * BLOCK, is_rotated, slices)
        elif stored:
            parts = (take_apart(type_name, self._raw_rows(name, *rows)) for rows in self._slices(name))
            matrix = self._pack(outputs, inputs, is_rotated, parts)
        else:
            weights = self._float_rows(name, type_name)
            matrix = pack_floats(self._pages, type_name, weights[self._row_order(outputs)] if is_rotated else weights)
        self._gguf.release(name)
        return matrix

    def _slices(self, name: str) -> Iterator[tuple[int, int]]:
        """Rows of a tensor, in parts that are whole panels and whole heads."""
        num_rows, columns = self._gguf.tensor(name).shape
        step = max(1, _SLICE_ELEMENTS // (columns * self._granule)) * self._granule
        for row in range(0, num_rows, step):
            yield row, min(row + step, num_rows)

    @property
    def _granule(self) -> int:
        return self._config.head_dim  # a multiple of the panel

    def _pack(self, outputs: int, inputs: int, is_rotated: bool, parts: Iterator[Codes]) -> NativeMatrix:
        first = next(parts)
        whole = (self._reorder(part) if is_rotated else part for part in _chain(first, parts))
        return pack_codes(self._pages, first.form, outputs, inputs, whole)

    def _reorder(self, part: Codes) -> Codes:
        order = self._row_order(len(part.codes))
        fields = (part.scales, part.minima, part.sub_scales, part.sub_minima)
        return Codes(part.form, part.codes[order], *(None if f is None else f[order] for f in fields))  # type: ignore[arg-type]

    def _row_order(self, num_rows: int) -> NDArray[np.int64]:
        """GGUF has the two of a pair side by side; the kernels want first ones, then second ones, in each head."""
        rows = np.arange(num_rows).reshape(-1, self._config.head_dim // 2, 2)
        order: NDArray[np.int64] = rows.transpose(0, 2, 1).reshape(-1)
        return order

    def _raw_rows(self, name: str, start: int, end: int) -> NDArray[np.uint8]:
        return np.frombuffer(self._gguf.raw(name, start, end), np.uint8).reshape(end - start, -1)

    def _float_rows(self, name: str, type_name: str) -> NDArray[np.generic]:
        num_rows = self._gguf.tensor(name).shape[0]
        dtype = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[type_name]
        return np.frombuffer(self._gguf.raw(name), dtype).reshape(num_rows, -1)


def _chain(first: Codes, rest: Iterator[Codes]) -> Iterator[Codes]:
    yield first
    yield from rest
