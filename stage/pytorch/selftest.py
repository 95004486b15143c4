"""Proves at start what the PyTorch path promises, and names the arithmetic that proved it.

Made-up layers compute the same tokens in one chunk, in several, and among others. Equal bits mean that rows are exact
on this machine; the bits themselves are the main part of the fingerprint. Two layers are tried:

- a narrow one with the model's own heads, in float32: which query groups are exact. Never in bfloat16, which would
  round most differences away and call a mere likeness exact;
- one of the model's own widths in the precision asked for: whether all of it is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from stagewire.stage.compute.rotary import rotary_digest, rotary_table
from stagewire.stage.compute.row_exactness import Chunkings, compare_chunkings, made_up, num_test_blocks
from stagewire.stage.pytorch.attention_plan import KEY_TILE, GroupSizes
from stagewire.stage.pytorch.decoder import StageWeights, TorchDecoder
from stagewire.stage.pytorch.weights import WeightLoader, dtype_of
from stagewire.wire.card import ModelConfig

ARITHMETIC_VERSION = 1
"""Raise it with every change of the arithmetic that could change a bit."""

# From the fastest to the plainest. Measured with MKL: products of fewer than 3 rows, of 128 columns fewer than 6, may
# differ from those of more; which sizes that spares depends on the model's heads.
_CANDIDATES = (GroupSizes(few=1, many=16), GroupSizes(few=4, many=16), GroupSizes(few=8, many=8))
_VOCAB_SIZE = 256
_MAX_HIDDEN = 1024
# Those for attention reach into a second tile of keys.
_LAYER_CHUNKINGS = ([1, 1, 20, 33, 1, 14], [50, *[1] * 20])
_ATTENTION_CHUNKINGS = ([37, 1, 1, 2, 3, 5, 170, 33, *[1] * 8, 20], [100, *[1] * 6, 150, *[1] * 24])


@dataclass(frozen=True, slots=True)
class SelfTest:
    """`group_sizes` are the fastest that are exact here, or the plainest ones if none is."""

    fingerprint: str
    is_row_exact: bool
    group_sizes: GroupSizes


def run_selftest(config: ModelConfig, precision: str, device: torch.device) -> SelfTest:
    """Prove row exactness and compute the fingerprint; takes some tenths of a second.

    Layers wider than 1,024 are tested at that width, so that a big model does not wait for it.
    """
    sizes, is_attention_exact = _choose_group_sizes(config, device)
    logits, is_layer_exact = _compare(_layer_config(config), precision, device, sizes, _LAYER_CHUNKINGS)
    names = f"{ARITHMETIC_VERSION} torch {precision} {device.type} {rotary_digest(rotary_table(config))}"
    digest = hashlib.sha256(names.encode() + logits.tobytes()).hexdigest()
    return SelfTest(f"torch-{precision}-{digest[:16]}", is_attention_exact and is_layer_exact, sizes)


def _choose_group_sizes(config: ModelConfig, device: torch.device) -> tuple[GroupSizes, bool]:
    """The fastest query groups whose attention is exact, and whether any is."""
    config = _attention_config(config)
    for sizes in _CANDIDATES:
        if _compare(config, "f32", device, sizes, _ATTENTION_CHUNKINGS)[1]:
            return sizes, True
    return _CANDIDATES[-1], False


def _attention_config(config: ModelConfig) -> ModelConfig:
    """The model's heads and little else; heads of one group are like those of another."""
    num_kv_heads = min(config.num_kv_heads, 2)
    return replace(
        config,
        num_layers=1,
        num_heads=config.num_heads // config.num_kv_heads * num_kv_heads,
        num_kv_heads=num_kv_heads,
        hidden_size=128,
        intermediate_size=64,
        vocab_size=_VOCAB_SIZE,
        context_length=2 * KEY_TILE,
        tie_word_embeddings=False,
    )


def _layer_config(config: ModelConfig) -> ModelConfig:
    """A layer as wide as the model's, within limits."""
    group_heads = config.num_heads // config.num_kv_heads
    num_kv_heads = min(config.num_kv_heads, max(1, _MAX_HIDDEN // (group_heads * config.head_dim)))
    return replace(
        config,
        num_layers=1,
        num_heads=group_heads * num_kv_heads,
        num_kv_heads=num_kv_heads,
        hidden_size=min(config.hidden_size, _MAX_HIDDEN),
        intermediate_size=min(config.intermediate_size, 4 * _MAX_HIDDEN),
        vocab_size=_VOCAB_SIZE,
        context_length=KEY_TILE,
        tie_word_embeddings=False,
    )


class _MadeUpTensors:
    """Weights from integer arithmetic, the same on every machine, that keep the size of what they multiply."""

    def __init__(self, config: ModelConfig) -> None:
        self._columns = {"attn_output": config.num_heads * config.head_dim, "ffn_down": config.intermediate_size}
        self._hidden_size = config.hidden_size

    def dequantize(self, name: str, row_start: int = 0, row_end: int | None = None) -> NDArray[np.float32]:
        kind = name.removesuffix(".weight").rpartition(".")[2]
        if kind.endswith("_norm"):
            return np.ones(self._hidden_size, np.float32)
        assert row_end is not None
        columns = self._columns.get(kind, self._hidden_size)
        values = made_up(f"{name} {row_start}", row_end - row_start, columns)
        values /= np.float32(columns**0.5)
        return values

    def release(self, name: str) -> None:
        """Nothing is held."""


def _compare(
    config: ModelConfig, precision: str, device: torch.device, sizes: GroupSizes, chunkings: Chunkings
) -> tuple[NDArray[np.float32], bool]:
    """Logits of all positions at once, and whether both chunkings give the same bits."""
    loader = WeightLoader(_MadeUpTensors(config), config, precision, str(device))
    weights = StageWeights(None, (loader.layer(0),), loader.output(), dtype_of(precision))
    num_blocks = num_test_blocks(chunkings)
    decoder = TorchDecoder(config, weights, num_blocks, device, sizes)
    return compare_chunkings(decoder, config.hidden_size, chunkings)
