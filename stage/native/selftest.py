"""Proves at start what the native kernels promise, and names the arithmetic that proved it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from stagewire.stage.compute.rotary import rotary_digest, rotary_table
from stagewire.stage.compute.row_exactness import Chunkings, compare_chunkings, made_up, num_test_blocks
from stagewire.stage.native.decoder import KvPool, NativeDecoder
from stagewire.stage.native.large_pages import LargePages
from stagewire.stage.native.matrix import NativeMatrix, pack_codes
from stagewire.stage.native.requantize import requantize
from stagewire.stage.native.weights import NativeLayer, NativeOutput
from stagewire.wire.card import ModelConfig

_CHUNKINGS: Chunkings = ([37, 1, 1, 2, 3, 5, 130, 20, 1], [100, *[1] * 6, 64, 30])
_HIDDEN, _INTERMEDIATE, _VOCAB = 96, 224, 128


@dataclass(frozen=True, slots=True)
class NativeSelfTest:
    """What a stage says of its arithmetic; equal fingerprints compute equal bits, whatever the instruction set."""

    fingerprint: str
    is_row_exact: bool


def run_native_selftest(kernel: ModuleType, config: ModelConfig, precision: str, kv_dtype: str) -> NativeSelfTest:
    """Run a made-up layer with the model's heads; takes some hundredths of a second."""
    small = _small_config(config)
    pool = KvPool.make(small, 1, num_test_blocks(_CHUNKINGS), kv_dtype)
    output = NativeOutput(np.ones(_HIDDEN, np.float32), _matrix("output", _VOCAB, _HIDDEN, 8))
    decoder = NativeDecoder(kernel, small, [_layer(small)], output, rotary_table(small), pool, threads=1)
    logits, is_row_exact = compare_chunkings(decoder, _HIDDEN, _CHUNKINGS)
    rotary = rotary_digest(rotary_table(config))
    names = f"{kernel.ARITHMETIC_VERSION} {precision} {kv_dtype} {config.rms_norm_eps} {rotary}"
    digest = hashlib.sha256(names.encode() + logits.tobytes()).hexdigest()
    return NativeSelfTest(f"native-{kernel.ARITHMETIC_VERSION}-{precision}-{kv_dtype}-{digest[:16]}", is_row_exact)


def _small_config(config: ModelConfig) -> ModelConfig:
    """The model's heads and little else; heads of one group are like those of another."""
    num_kv_heads = min(config.num_kv_heads, 2)
    return replace(
        config,
        num_layers=1,
        num_heads=config.num_heads // config.num_kv_heads * num_kv_heads,
        num_kv_heads=num_kv_heads,
        hidden_size=_HIDDEN,
        intermediate_size=_INTERMEDIATE,
        vocab_size=_VOCAB,
        context_length=sum(_CHUNKINGS[0]),
    )


def _layer(config: ModelConfig) -> NativeLayer:
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    sizes: dict[str, tuple[int, int]] = {
        "query": (query, _HIDDEN),
        "key": (key, _HIDDEN),
        "value": (key, _HIDDEN),
        "attention output": (_HIDDEN, query),
        "gate": (_INTERMEDIATE, _HIDDEN),
        "up": (_INTERMEDIATE, _HIDDEN),
        "down": (_HIDDEN, _INTERMEDIATE),
    }
    norm: NDArray[np.float32] = np.ones(_HIDDEN, np.float32)
    return NativeLayer(norm, norm, tuple(_matrix(name, *size, 4) for name, size in sizes.items()))


def _matrix(name: str, outputs: int, inputs: int, bits: int) -> NativeMatrix:
    codes = requantize(made_up(name, outputs, inputs) / np.float32(inputs**0.5), bits)
    return pack_codes(LargePages(), codes.form, outputs, codes.codes.shape[1], iter([codes]))
