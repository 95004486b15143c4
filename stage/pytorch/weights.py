"""Loads a stage's own tensors: decoded in slices, converted, fused, and their mapped pages given back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stagewire.model.layout import EMBEDDING, OUTPUT, OUTPUT_NORM
from stagewire.stage.pytorch.linear import TileLinear
from stagewire.wire.card import ModelConfig
from stagewire.wire.errors import SettingsError

PRECISIONS: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "f32": torch.float32}
"""Of weights, of what linear layers take, and of keys and values. Residual, norms and attention: float32."""

_SLICE_ELEMENTS = 1 << 20  # of float32 that exist at one time while a tensor is loaded


class TensorSource(Protocol):
    """Where weights come from: `stagewire.model.gguf.GgufFile`, or the self-test's made-up tensors."""

    def dequantize(self, name: str, row_start: int = 0, row_end: int | None = None) -> NDArray[np.float32]:
        """Returns rows of a tensor as float32, [rows, columns]; of a vector, [columns]."""

    def release(self, name: str) -> None:
        """Gives the tensor's mapped pages back to the operating system."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. `qkv` and `gate_up` are each computed in one product, their rows one after the other."""

    attention_norm: Tensor
    qkv: TileLinear
    attention_output: TileLinear
    ffn_norm: Tensor
    gate_up: TileLinear
    down: TileLinear

    @property
    def num_bytes(self) -> int:
        linears = (self.qkv, self.attention_output, self.gate_up, self.down)
        return self.attention_norm.nbytes + self.ffn_norm.nbytes + sum(linear.num_bytes for linear in linears)


@dataclass(frozen=True, slots=True)
class OutputWeights:
    """The last stage's norm and projection to the vocabulary."""

    norm: Tensor
    projection: TileLinear

    @property
    def num_bytes(self) -> int:
        return self.norm.nbytes + self.projection.num_bytes


class WeightLoader:
    """Turns tensors of one source into weights of one precision on one device."""

    def __init__(self, source: TensorSource, config: ModelConfig, precision: str, device: str) -> None:
        self._source, self._config = source, config
        self._dtype, self._device = dtype_of(precision), torch.device(device)

    def layer(self, index: int) -> LayerWeights:
        config, prefix = self._config, f"blk.{index}"
        hidden, middle = config.hidden_size, config.intermediate_size
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        return LayerWeights(
            attention_norm=self._vector(f"{prefix}.attn_norm.weight"),
            qkv=self._linear(
                hidden,
                (f"{prefix}.attn_q.weight", query),
                (f"{prefix}.attn_k.weight", key),
                (f"{prefix}.attn_v.weight", key),
            ),
            attention_output=self._linear(query, (f"{prefix}.attn_output.weight", hidden)),
            ffn_norm=self._vector(f"{prefix}.ffn_norm.weight"),
            gate_up=self._linear(hidden, (f"{prefix}.ffn_gate.weight", middle), (f"{prefix}.ffn_up.weight", middle)),
            down=self._linear(middle, (f"{prefix}.ffn_down.weight", hidden)),
        )

    def output(self) -> OutputWeights:
        name = EMBEDDING if self._config.tie_word_embeddings else OUTPUT
        projection = self._linear(self._config.hidden_size, (name, self._config.vocab_size))
        return OutputWeights(self._vector(OUTPUT_NORM), projection)

    def _vector(self, name: str) -> Tensor:
        # A copy: the source may hand out a view of the mapped file.
        vector = torch.from_numpy(np.array(self._source.dequantize(name), np.float32))
        self._source.release(name)
        return vector.to(self._device)

    def _linear(self, inputs: int, *parts: tuple[str, int]) -> TileLinear:
        weight = torch.empty(sum(rows for _, rows in parts), inputs, dtype=self._dtype)
        slice_rows, filled = max(1, _SLICE_ELEMENTS // inputs), 0
        for name, num_rows in parts:
            for row in range(0, num_rows, slice_rows):
                values = self._source.dequantize(name, row, min(row + slice_rows, num_rows))
                weight[filled : filled + len(values)] = torch.from_numpy(np.array(values, np.float32))
                filled += len(values)
            self._source.release(name)
        return TileLinear(weight.to(self._device))


def dtype_of(precision: str) -> torch.dtype:
    """Returns the dtype of weights.

    Raises:
        SettingsError: INVALID_SETTING, naming the precisions there are.
    """
    if precision not in PRECISIONS:
        raise SettingsError(f"precision={precision!r}: PyTorch stages know {', '.join(PRECISIONS)}")
    return PRECISIONS[precision]
