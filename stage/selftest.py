"""Proves at start what the PyTorch path promises, and names the arithmetic that proved it.

A made-up layer of the model's own shapes computes the same tokens in one chunk, in several, and among others. Equal
bits mean that rows are exact on this machine; the bits themselves are the main part of the fingerprint.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from stagewire.stage.attention_plan import GroupSizes
from stagewire.stage.operators import BLOCK_SIZE, Batch, SequenceRows
from stagewire.stage.rotary import rotary_digest, rotary_table
from stagewire.stage.torch_decoder import StageWeights, TorchDecoder
from stagewire.stage.torch_weights import WeightLoader, dtype_of
from stagewire.wire.card import ModelConfig

ARITHMETIC_VERSION = 1
"""Raise it with every change of the arithmetic that could change a bit."""

_FAST = GroupSizes(few=1, many=16)
_SAFE = GroupSizes(few=8, many=8)
_NUM_TOKENS = 70
_VOCAB_SIZE = 256
_MAX_HIDDEN = 1024
_MULTIPLIER = 2_654_435_761


@dataclass(frozen=True, slots=True)
class SelfTest:
    """`group_sizes` are the fastest that are exact here, or the plainest ones if none is."""

    fingerprint: str
    is_row_exact: bool
    group_sizes: GroupSizes


class _MadeUpTensors:
    """Weights from integer arithmetic, the same on every machine."""

    def __init__(self, config: ModelConfig) -> None:
        self._columns = {"attn_output": config.num_heads * config.head_dim, "ffn_down": config.intermediate_size}
        self._hidden_size = config.hidden_size

    def dequantize(self, name: str, row_start: int = 0, row_end: int | None = None) -> NDArray[np.float32]:
        kind = name.removesuffix(".weight").rpartition(".")[2]
        if kind.endswith("_norm"):
            return np.ones(self._hidden_size, np.float32)
        assert row_end is not None
        columns = self._columns.get(kind, self._hidden_size)
        indexes = np.arange(row_start * columns, row_end * columns, dtype=np.uint64)
        # The upper bits of a multiplicative hash (Knuth) look random enough to be told apart.
        hashed = (indexes * np.uint64(_MULTIPLIER) + np.uint64(len(name))) % np.uint64(1 << 32) >> np.uint64(16)
        values: NDArray[np.float32] = (hashed.astype(np.float32) - 32768) * np.float32(2.0**-19)
        return values.reshape(-1, columns)

    def release(self, name: str) -> None:
        """Nothing is held."""


def run_selftest(config: ModelConfig, precision: str, device: torch.device) -> SelfTest:
    """Prove row exactness and compute the fingerprint; takes some tenths of a second.

    Layers wider than 1,024 are tested at that width, so that a big model does not wait for it.
    """
    config = _test_config(config)
    loader = WeightLoader(_MadeUpTensors(config), config, precision, str(device))
    weights = StageWeights(None, (loader.layer(0),), loader.output(), dtype_of(precision))

    def outputs(sizes: GroupSizes) -> tuple[NDArray[np.float32], bool]:
        decoder = TorchDecoder(config, weights, 4 * _NUM_TOKENS // BLOCK_SIZE, device, sizes)
        return _compare(decoder, config.hidden_size)

    for sizes in (_FAST, _SAFE):
        logits, is_exact = outputs(sizes)
        if is_exact:
            break
    table = rotary_digest(rotary_table(config))
    names = f"{ARITHMETIC_VERSION} torch {precision} {device.type} {table}"
    digest = hashlib.sha256(names.encode() + logits.tobytes()).hexdigest()
    return SelfTest(f"torch-{precision}-{digest[:16]}", is_exact, sizes)


def _test_config(config: ModelConfig) -> ModelConfig:
    heads = config.num_heads
    while heads * config.head_dim > _MAX_HIDDEN and heads % 2 == 0 and heads // 2 >= config.num_kv_heads:
        heads //= 2
    return replace(
        config,
        num_heads=heads,
        hidden_size=min(config.hidden_size, _MAX_HIDDEN),
        intermediate_size=min(config.intermediate_size, 4 * _MAX_HIDDEN),
        vocab_size=_VOCAB_SIZE,
        context_length=min(config.context_length, 4 * _NUM_TOKENS),
        tie_word_embeddings=False,
    )


def _compare(decoder: TorchDecoder, hidden_size: int) -> tuple[NDArray[np.float32], bool]:
    """Logits of all positions at once, and whether chunks and a batch of two give the same bits."""
    rows = _hidden_states(hidden_size)
    whole = _run(decoder, rows, [_NUM_TOKENS], first_block=0)
    chunked = _run(decoder, rows, [1, 1, 20, 33, 1, _NUM_TOKENS - 56], first_block=5)
    mixed = _run(decoder, rows, [40, *[1] * (_NUM_TOKENS - 40)], first_block=10, companion=rows[::-1])
    return whole, np.array_equal(whole, chunked) and np.array_equal(whole, mixed)


def _hidden_states(hidden_size: int) -> NDArray[np.float32]:
    indexes = np.arange(_NUM_TOKENS * hidden_size, dtype=np.uint64)
    hashed = indexes * np.uint64(_MULTIPLIER) % np.uint64(1 << 32) >> np.uint64(20)
    values: NDArray[np.float32] = (hashed.astype(np.float32) - 2048) * np.float32(2.0**-9)
    return values.reshape(_NUM_TOKENS, hidden_size)


def _run(
    decoder: TorchDecoder,
    rows: NDArray[np.float32],
    chunks: list[int],
    first_block: int,
    companion: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Run the rows as chunks of one sequence, a second sequence's first row in front of each."""
    table = np.arange(first_block, first_block + 5, dtype=np.int32)
    logits, position = [], 0
    for num_rows in chunks:
        part, offset = rows[position : position + num_rows], 0
        slices = []
        if companion is not None:
            slices.append(SequenceRows(0, 1, 0, np.array([first_block + 5], dtype=np.int32)))
            part, offset = np.concatenate([companion[:1], part]), 1
        slices.append(SequenceRows(offset, num_rows, position, table))
        wanted = list(range(offset, offset + num_rows))
        logits.append(decoder.forward(Batch.of([0] * len(part), slices, wanted), part))
        position += num_rows
    return np.concatenate(logits)
