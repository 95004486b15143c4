"""Small random models on the native kernels, and the same layers in plain float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from support.native_operators import Doubles, Floats, made_up_matrix

from stagewire.stage.compute.operators import BLOCK_SIZE, Batch, SequenceRows
from stagewire.stage.compute.rotary import rotary_table
from stagewire.stage.native.decoder import KV_DTYPES, KvPool, NativeDecoder
from stagewire.stage.native.matrix import NativeMatrix
from stagewire.stage.native.weights import NativeLayer, NativeOutput
from stagewire.wire.card import ModelConfig

CONTEXT, VOCAB, NUM_LAYERS = 544, 50, 2


@dataclass(frozen=True)
class Shape:
    """A model's heads and widths, and the kinds of its matrices, which take turns."""

    heads: tuple[int, int, int]
    hidden: int
    middle: int
    kinds: tuple[str, ...]
    rope_dim: int = 0

    @property
    def config(self) -> ModelConfig:
        heads, kv_heads, head_dim = self.heads
        sizes = (NUM_LAYERS, self.hidden, heads, kv_heads, head_dim, self.middle, VOCAB, CONTEXT)
        return ModelConfig("llama", *sizes, 1e-5, 10000.0, self.rope_dim or head_dim, False)


SHAPES = {
    "groups of 1": Shape((3, 3, 16), 48, 80, ("int4", "int8")),
    "groups of 3": Shape((6, 2, 64), 64, 96, ("Q4_1", "Q4_0", "Q8_0", "Q5_1", "IQ4_NL")),
    "groups of 5": Shape((5, 1, 80), 80, 112, ("int8", "F16", "BF16"), rope_dim=40),
    "groups of 13": Shape((13, 1, 16), 48, 48, ("F32",)),
    "groups of 16": Shape((16, 1, 16), 256, 256, ("Q4_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_XS", "Q5_K")),
    "heads of 128": Shape((4, 2, 128), 32, 64, ("Q4_1",)),
}


@dataclass(frozen=True)
class MadeUpLayer:
    """A layer as the kernels read it, and the exact weights of the same matrices, in their order."""

    native: NativeLayer
    weights: tuple[Doubles, ...]


@dataclass(frozen=True)
class MadeUpModel:
    """All layers and the output of one shape."""

    config: ModelConfig
    layers: tuple[MadeUpLayer, ...]
    output: NativeOutput
    output_weights: Doubles
    rotary: Floats

    def decoder(self, kernel: ModuleType, kv_dtype: str, num_blocks: int, threads: int = 1) -> NativeDecoder:
        """Its pool is full of NaNs, as if what was there before were the worst."""
        size = (num_blocks, NUM_LAYERS, self.config.num_kv_heads, 2, BLOCK_SIZE * self.config.head_dim)
        pool = KvPool(np.full(size, np.nan, KV_DTYPES[kv_dtype]))
        layers = [layer.native for layer in self.layers]
        return NativeDecoder(kernel, self.config, layers, self.output, self.rotary, pool, threads)

    def hidden_states(self, num_rows: int, seed: int = 0) -> Floats:
        return np.random.default_rng(seed).standard_normal((num_rows, self.config.hidden_size), np.float32)

    def reference(self, hidden: Floats, kv_dtype: str) -> Doubles:
        """Logits of one sequence in float64; rows become codes and keys become halves as the kernels have it."""
        x = hidden.astype(np.float64)
        for layer in self.layers:
            x = self._reference_layer(layer, x, KV_DTYPES[kv_dtype])
        return _product(self._norm(x, self.output.norm), self.output.projection, self.output_weights)

    def _norm(self, x: Doubles, weight: Floats) -> Doubles:
        return np.asarray(x / np.sqrt((x**2).mean(axis=1, keepdims=True) + self.config.rms_norm_eps) * weight)

    def _reference_layer(self, layer: MadeUpLayer, x: Doubles, kv_dtype: type[np.generic]) -> Doubles:
        query, key, value, attention_output, gate, up, down = zip(layer.native.matrices, layer.weights, strict=True)
        normed = self._norm(x, layer.native.attention_norm)
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        q = self._rotated(_product(normed, *query), heads)
        k = self._rotated(_product(normed, *key), kv_heads).astype(kv_dtype).astype(np.float64)
        v = _product(normed, *value).astype(kv_dtype).astype(np.float64).reshape(len(x), kv_heads, -1)
        x = x + _product(self._attention(q, k, v), *attention_output)
        normed = self._norm(x, layer.native.ffn_norm)
        gated = _product(normed, *gate)
        return x + _product(gated / (1 + np.exp(-gated)) * _product(normed, *up), *down)

    def _rotated(self, rows: Doubles, num_heads: int) -> Doubles:
        """Element i and element half + i of each head make a pair: [T, heads, head_dim]."""
        table = self.rotary[: len(rows), None].astype(np.float64)
        first, second = np.split(rows.reshape(len(rows), num_heads, -1), 2, axis=2)
        cosine, sine = table[..., 0], table[..., 1]
        return np.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=2)

    def _attention(self, q: Doubles, k: Doubles, v: Doubles) -> Doubles:
        group = self.config.num_heads // self.config.num_kv_heads
        k, v = (np.repeat(part, group, axis=1) for part in (k, v))
        scores = np.einsum("qhe,khe->hqk", q, k) / self.config.head_dim**0.5
        scores += np.triu(np.full((len(q), len(q)), -np.inf), 1)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        return np.asarray(np.einsum("hqk,khe->qhe", weights, v).reshape(len(q), -1))


def _product(x: Doubles, matrix: NativeMatrix, weights: Doubles) -> Doubles:
    if matrix.form:
        blocks = np.pad(x, ((0, 0), (0, -x.shape[1] % 32))).reshape(len(x), -1, 32)
        scales = np.abs(blocks).max(axis=2, keepdims=True) / 127
        x = (np.rint(blocks / scales) * scales).reshape(len(x), -1)[:, : weights.shape[1]]
    return np.asarray(x @ weights.T)


@cache
def made_up_model(shape_name: str) -> MadeUpModel:
    shape = SHAPES[shape_name]
    config, rng = shape.config, np.random.default_rng(11)
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, middle = shape.hidden, shape.middle
    sizes = [(query, hidden), (key, hidden), (key, hidden), (hidden, query), (middle, hidden), (middle, hidden)]
    sizes.append((hidden, middle))
    turn = 0

    def matrix(outputs: int, inputs: int) -> tuple[NativeMatrix, Doubles]:
        nonlocal turn
        turn += 1
        kind = shape.kinds[turn % len(shape.kinds)]
        native, weights = made_up_matrix(kind, outputs, inputs, turn)
        return native, weights[:, :inputs]

    def norm() -> Floats:
        return rng.uniform(0.5, 1.5, hidden).astype(np.float32)

    layers = []
    for _ in range(NUM_LAYERS):
        natives, weights = zip(*(matrix(*size) for size in sizes), strict=True)
        layers.append(MadeUpLayer(NativeLayer(norm(), norm(), natives), weights))
    projection, output_weights = matrix(VOCAB, hidden)
    return MadeUpModel(config, tuple(layers), NativeOutput(norm(), projection), output_weights, rotary_table(config))


def num_blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


def logits_of(decoder: NativeDecoder, hidden: Floats, chunks: Sequence[int], table: NDArray[np.int32]) -> Floats:
    """Logits of every row of one sequence that is alone, in chunks of these sizes."""
    parts, position = [], 0
    for size in chunks:
        batch = Batch.of([0] * size, [SequenceRows(0, size, position, table)], range(size))
        parts.append(decoder.forward(batch, hidden[position : position + size].copy()))
        position += size
    assert position == len(hidden)
    return np.concatenate(parts)


def even_chunks(num_rows: int, size: int) -> list[int]:
    """As many chunks of `size` as there are, and the rest."""
    return [size] * (num_rows // size) + ([num_rows % size] if num_rows % size else [])
