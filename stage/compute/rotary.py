"""Rotary tables, computed in float64 once and rounded to float32; every kernel takes its angles from here."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from stagewire.wire.card import ModelConfig


def rotary_table(config: ModelConfig) -> NDArray[np.float32]:
    """Returns cosine and sine of each position and pair: float32 [context_length, head_dim / 2, 2].

    GGUF rotates neighbouring elements: pair i of a head is its elements 2i and 2i + 1, turned by
    position * theta ** (-2i / rope_dim). Pairs beyond `rope_dim` are not rotated: cosine 1, sine 0.
    """
    num_pairs = config.rope_dim // 2
    frequencies = np.float64(config.rope_theta) ** (-np.arange(num_pairs, dtype=np.float64) / num_pairs)
    angles = np.outer(np.arange(config.context_length, dtype=np.float64), frequencies)
    table = np.zeros((config.context_length, config.head_dim // 2, 2), np.float32)
    table[:, :, 0] = 1.0
    table[:, :num_pairs, 0], table[:, :num_pairs, 1] = np.cos(angles), np.sin(angles)
    return table


def rotary_digest(table: NDArray[np.float32]) -> str:
    """SHA-256 of a table, in hexadecimal: mathematics libraries may differ in the last bit."""
    return hashlib.sha256(table.tobytes()).hexdigest()
