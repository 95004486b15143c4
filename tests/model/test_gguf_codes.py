"""Codes, scales and minima put together again are the weights that dequantizing gives, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from stagewire.model.gguf_codes import CODE_FORMS, take_apart
from stagewire.model.gguf_types import TYPE_BY_NAME, dequantize_bytes

ROWS, BLOCKS = 24, 4


def random_rows(type_name: str, num_rows: int = ROWS) -> NDArray[np.uint8]:
    """Rows of blocks in which any byte may be anything: scales are NaN, infinite or subnormal now and then."""
    size = BLOCKS * TYPE_BY_NAME[type_name].block_bytes
    return np.random.default_rng(1).integers(0, 256, (num_rows, size), np.uint8)


def bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """All NaNs count as one: which of two NaNs a product keeps is the processor's choice."""
    return np.where(np.isnan(values), np.float32("nan"), values).view(np.uint32)


@pytest.mark.parametrize("type_name", CODE_FORMS)
def test_random_bytes_dequantize_as_the_reference_does(type_name: str) -> None:
    data = random_rows(type_name, 400)
    expected = dequantize_bytes(data.reshape(-1), type_name).reshape(len(data), -1)
    with np.errstate(all="ignore"):
        ours = take_apart(type_name, data).dequantize()
    assert not np.isfinite(expected).all(), "the bytes hold special values, too"
    assert np.array_equal(bits(ours), bits(expected))


@pytest.mark.parametrize("byte", [0x00, 0x7B, 0x80, 0xFF])
@pytest.mark.parametrize("type_name", CODE_FORMS)
def test_codes_and_scales_at_their_extremes_dequantize_too(type_name: str, byte: int) -> None:
    """Blocks of one repeated byte: all bits clear, all set, the largest finite scales, negative zeros."""
    data = np.full_like(random_rows(type_name), byte)
    expected = dequantize_bytes(data.reshape(-1), type_name).reshape(ROWS, -1)
    with np.errstate(all="ignore"):
        ours = take_apart(type_name, data).dequantize()
    assert np.array_equal(bits(ours), bits(expected))


@pytest.mark.parametrize("type_name", CODE_FORMS)
def test_the_parts_have_the_shapes_and_ranges_that_the_form_promises(type_name: str) -> None:
    """Kernels take codes of 4 bits two to a byte, and the codes of 8 bits less their zero as signed bytes."""
    form, parts = CODE_FORMS[type_name], take_apart(type_name, random_rows(type_name))
    columns = BLOCKS * TYPE_BY_NAME[type_name].block_size
    assert parts.codes.shape == (ROWS, columns)
    assert parts.codes.max() <= min(2**form.bits - 1, 127 + form.zero)
    halves = (ROWS, columns // (256 if form.has_sub_scales else 32))
    assert parts.scales.shape == halves
    assert (None if parts.minima is None else parts.minima.shape) == (halves if form.has_minima else None)
    subs = (ROWS, columns // form.group) if form.has_sub_scales else None
    assert (None if parts.sub_scales is None else parts.sub_scales.shape) == subs
    assert (None if parts.sub_minima is None else parts.sub_minima.shape) == (subs if form.has_minima else None)


@pytest.mark.parametrize("type_name", ["F32", "BF16", "TQ1_0", "MXFP4"])
def test_a_type_without_codes_is_refused(type_name: str) -> None:
    with pytest.raises(KeyError, match=type_name):
        take_apart(type_name, random_rows(type_name))
