"""Makes 4- or 8-bit codes of weights that the model file holds in more bits; lossy, so only when asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stagewire.model.gguf_codes import CODE_FORMS, Codes

_BLOCK = 32
_TYPES = {4: "Q4_1", 8: "Q8_0"}


def requantize(weights: NDArray[np.float32], bits: int) -> Codes:
    """Rounds rows [R, C] to the nearest code of each block of 32.

    8 bits: the largest magnitude is 127 steps. 4 bits: 15 steps from the smallest weight to the largest. C that is
    no multiple of 32 is filled up with zeros.
    """
    missing = -weights.shape[1] % _BLOCK
    blocks = np.pad(weights, ((0, 0), (0, missing))).reshape(len(weights), -1, _BLOCK)
    form = CODE_FORMS[_TYPES[bits]]
    if bits == 8:
        scales = _half(np.abs(blocks).max(axis=2) / 127)
        codes = np.rint(_divide(blocks, scales)).clip(-127, 127) + form.zero
        return Codes(form, _flat(codes), scales)
    low, high = blocks.min(axis=2), blocks.max(axis=2)
    minima = _half(low)
    scales = _half((high - minima.astype(np.float32)) / 15)
    codes = np.rint(_divide(blocks - minima.astype(np.float32)[:, :, None], scales)).clip(0, 15)
    return Codes(form, _flat(codes), scales, minima)


def _half(values: NDArray[np.float32]) -> NDArray[np.float16]:
    return np.clip(values, -65504, 65504).astype(np.float16)


def _divide(blocks: NDArray[np.float32], scales: NDArray[np.float16]) -> NDArray[np.float32]:
    steps = scales.astype(np.float32)[:, :, None]
    return np.divide(blocks, steps, out=np.zeros_like(blocks), where=steps != 0)


def _flat(codes: NDArray[np.float32]) -> NDArray[np.uint8]:
    return codes.astype(np.uint8).reshape(len(codes), -1)
