"""Single operators of the native kernels on numpy arrays, and made-up matrices with the weights that they stand for."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from stagewire.model.gguf_codes import CODE_FORMS, CodeForm, Codes
from stagewire.stage.native.kernel import VARIANTS, load_kernel
from stagewire.stage.native.large_pages import LargePages
from stagewire.stage.native.matrix import FLOAT_KINDS, NativeMatrix, pack_codes, pack_floats
from stagewire.stage.native.requantize import requantize

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

FAST_VARIANTS = VARIANTS[:-1]
"""All but the portable one, which is their specification."""
MATRIX_KINDS = (*CODE_FORMS, "int4", "int8", *FLOAT_KINDS)
ROUNDING = 2.0**-24
"""The largest relative error of one float32 operation whose result is a normal number."""


class TightPages(LargePages):
    """Buffers of their own that end where they say, so that a sanitizer sees one byte too many."""

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        return np.zeros(num_bytes, np.uint8)


def kernel_or_skip(variant: str) -> ModuleType:
    """The kernels of one instruction set; the test is skipped, visibly, where they cannot be had."""
    try:
        return load_kernel(variant)
    except ImportError as error:
        pytest.skip(str(error))


def same_bits(first: Floats, second: Floats) -> bool:
    """Whether all numbers have equal bits. NaNs count as equal: which of two a sum keeps is no part of the promise."""
    is_nan = np.isnan(first)
    if first.shape != second.shape or not np.array_equal(is_nan, np.isnan(second)):
        return False
    return np.array_equal(np.where(is_nan, 0, first.view(np.uint32)), np.where(is_nan, 0, second.view(np.uint32)))


def linear(kernel: ModuleType, matrix: NativeMatrix, x: Floats) -> Floats:
    """Rows [R, inputs] times a matrix: [R, outputs]."""
    assert x.shape[1] == matrix.inputs and x.dtype == np.float32 and x.flags.c_contiguous
    words, out = np.array(matrix.words, np.int64), np.full((len(x), matrix.outputs), 7e7, np.float32)
    kernel.linear(words.tobytes(), x.ctypes.data, len(x), out.ctypes.data)
    return out


def quantize(kernel: ModuleType, row: Floats) -> tuple[NDArray[np.int8], Floats]:
    """One row as codes, int8 [blocks, 32], and the scale of each block."""
    num_blocks = -(-len(row) // 32)
    codes, scales = np.empty((num_blocks, 32), np.int8), np.empty(num_blocks, np.float32)
    kernel.quantize(row.ctypes.data, len(row), codes.ctypes.data, scales.ctypes.data)
    return codes, scales


def elementwise(kernel: ModuleType, name: str, x: Floats) -> Floats:
    """`exp`, `silu` or `half` of each number; as many as there are, filled up to whole lanes for the kernel."""
    padded = np.concatenate([x, np.zeros(-len(x) % 16, np.float32)])
    out = np.empty_like(padded)
    kernel.map(name, padded.ctypes.data, len(padded), out.ctypes.data)
    return out[: len(x)]


def form_of(kind: str) -> CodeForm | None:
    """None for floats."""
    return CODE_FORMS.get({"int4": "Q4_1", "int8": "Q8_0"}.get(kind, kind))


def made_up_matrix(kind: str, outputs: int, inputs: int, seed: int) -> tuple[NativeMatrix, Doubles]:
    """A random matrix and its weights, exact: float64 [outputs, inputs]. Columns added by padding weigh nothing."""
    rng = np.random.default_rng(seed)
    if kind in FLOAT_KINDS:
        return _made_up_floats(kind, rng.standard_normal((outputs, inputs)) / inputs**0.5)
    if kind in ("int4", "int8"):
        weights = (rng.standard_normal((outputs, inputs)) / inputs**0.5).astype(np.float32)
        codes = requantize(weights, int(kind[3:]))
    else:
        codes = made_up_codes(CODE_FORMS[kind], outputs, inputs, rng)
    matrix = pack_codes(TightPages(), codes.form, outputs, codes.codes.shape[1], iter([codes]))
    return matrix, exact_weights(codes)


def made_up_codes(form: CodeForm, outputs: int, inputs: int, rng: np.random.Generator) -> Codes:
    """Codes of all values that kernels take, a quarter of them extreme; weights of a size near 1 / sqrt(inputs)."""
    largest = min(2**form.bits - 1, 127 + form.zero)
    codes = rng.integers(0, largest + 1, (outputs, inputs))
    codes = np.where(rng.random(codes.shape) < 0.25, rng.choice([0, largest], codes.shape), codes)
    size, sub_size = (outputs, inputs // (256 if form.has_sub_scales else 32)), (outputs, inputs // form.group)
    unit = 1 / (max(largest - form.zero, form.zero) * inputs**0.5 * (64 if form.has_sub_scales else 1))
    scales = (unit * rng.uniform(0.2, 2, size)).astype(np.float16)
    minima = (largest / 2 * unit * rng.uniform(-2, 0.2, size)).astype(np.float16) if form.has_minima else None
    if not form.has_sub_scales:
        return Codes(form, codes.astype(np.uint8), scales, minima)
    subs = [rng.integers(-128, 128, sub_size).astype(np.int8) for _ in range(1 + form.has_minima)]
    return Codes(form, codes.astype(np.uint8), scales, minima, *subs)


def exact_weights(codes: Codes) -> Doubles:
    """What the codes stand for, without rounding: `(code - zero) * scale + minimum` in float64."""
    form = codes.form

    def spread(halves: NDArray[np.float16], subs: NDArray[np.int8] | None) -> Doubles:
        each = np.repeat(halves.astype(np.float64), codes.codes.shape[1] // halves.shape[1], axis=1)
        return each if subs is None else each * np.repeat(subs.astype(np.float64), form.group, axis=1)

    weights = (codes.codes.astype(np.float64) - form.zero) * spread(codes.scales, codes.sub_scales)
    return weights if codes.minima is None else weights + spread(codes.minima, codes.sub_minima)


def _made_up_floats(kind: str, weights: Doubles) -> tuple[NativeMatrix, Doubles]:
    stored: NDArray[np.generic] = weights.astype(np.float16 if kind == "F16" else np.float32)
    exact = stored.astype(np.float64)
    if kind == "BF16":
        stored = (stored.view(np.uint32) >> 16).astype(np.uint16)
        exact = (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return pack_floats(TightPages(), kind, stored), exact
