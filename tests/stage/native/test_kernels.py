"""Single operators: every instruction set equals the portable kernels bit for bit, and those the mathematics."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from support.native_operators import (
    FAST_VARIANTS,
    MATRIX_KINDS,
    ROUNDING,
    Doubles,
    Floats,
    TightPages,
    elementwise,
    exact_weights,
    form_of,
    kernel_or_skip,
    linear,
    made_up_codes,
    made_up_matrix,
    quantize,
    same_bits,
)

from stagewire.model.gguf_codes import CODE_FORMS
from stagewire.stage.native.kernel import load_kernel
from stagewire.stage.native.matrix import NativeMatrix, pack_codes

NUM_ROWS = 300
SPECIALS = np.array(
    [0, -0.0, 1e-45, -1e-39, 1e-38, 9e-31, 1.1e-30, 1e-5, 1, -127, 65504, 65520, 1e30, 3.4e38, np.inf, -np.inf, np.nan],
    np.float32,
)

variants = pytest.mark.parametrize("variant", FAST_VARIANTS)
kinds = pytest.mark.parametrize("kind", MATRIX_KINDS)


def shapes_of(kind: str) -> list[tuple[int, int]]:
    """Outputs and inputs: one, a whole panel, ends of panels; the shortest rows, odd numbers of half blocks."""
    form = form_of(kind)
    if form and form.has_sub_scales:
        return [(1, 256), (17, 512), (64, 256), (50, 768)]
    if form and kind not in ("int4", "int8"):
        return [(1, 32), (17, 64), (64, 96), (50, 288)]
    return [(1, 16), (17, 48), (64, 80), (50, 304)]


@cache
def matrix_of(kind: str, shape: tuple[int, int]) -> tuple[NativeMatrix, Doubles]:
    return made_up_matrix(kind, *shape, seed=3)


@cache
def rows_of(inputs: int) -> Floats:
    """Rows of many sizes; every 7th has specials scattered in it, every 11th is one number, the extreme codes."""
    rng = np.random.default_rng(inputs)
    rows = rng.standard_normal((NUM_ROWS, inputs)) * 10.0 ** rng.integers(-3, 4, (NUM_ROWS, 1))
    rows = rows.astype(np.float32)
    for row in range(5, NUM_ROWS, 7):
        at = rng.integers(0, inputs, 3)
        rows[row, at] = SPECIALS[(row // 7 + np.arange(3)) % len(SPECIALS)]
    for row in range(8, NUM_ROWS, 11):
        rows[row] = np.where(rng.random(inputs) < 0.5, -127, 127)
    for row, number in enumerate(SPECIALS, 40):
        rows[row] = number
    return rows


@cache
def specified(kind: str, shape: tuple[int, int]) -> Floats:
    """What the portable kernels say."""
    matrix, _ = matrix_of(kind, shape)
    return linear(load_kernel("portable"), matrix, rows_of(matrix.inputs))


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    kernel_or_skip("portable")


@variants
@kinds
def test_products_are_those_of_the_portable_kernels_for_any_number_of_rows(variant: str, kind: str) -> None:
    """1 to 40 rows, and more than are taken together; infinities, NaNs and subnormals among them."""
    kernel = kernel_or_skip(variant)
    for shape in shapes_of(kind):
        matrix, _ = matrix_of(kind, shape)
        rows, expected = rows_of(matrix.inputs), specified(kind, shape)
        for count in (*range(1, 41), 128, 129, NUM_ROWS):
            assert same_bits(linear(kernel, matrix, rows[:count]), expected[:count]), (shape, count)
        assert same_bits(linear(kernel, matrix, rows[37:90]), expected[37:90]), "other rows in company"


@kinds
def test_the_portable_products_do_not_depend_on_the_rows_beside_them(kind: str) -> None:
    kernel, shape = load_kernel("portable"), shapes_of(kind)[-1]
    matrix, _ = matrix_of(kind, shape)
    rows, expected = rows_of(matrix.inputs), specified(kind, shape)
    for first, count in [(0, 1), (0, 7), (1, 13), (37, 53), (127, 129), (299, 1)]:
        part = np.ascontiguousarray(rows[first : first + count])
        assert same_bits(linear(kernel, matrix, part), expected[first : first + count]), (first, count)


def is_tame(rows: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Rows whose products neither overflow nor vanish."""
    return np.asarray((np.isfinite(rows) & (np.abs(rows) < 1e30)).all(axis=1))


@kinds
def test_products_are_near_those_in_float64(kind: str) -> None:
    """Within the rounding of each step in the defined order, given the codes of the rows; no more, no less."""
    kernel, form = load_kernel("portable"), form_of(kind)
    for shape in shapes_of(kind):
        matrix, weights = matrix_of(kind, shape)
        rows = rows_of(matrix.inputs)
        tame = is_tame(rows)
        if form:
            parts = [quantize(kernel, row) for row in rows[tame]]
            x = np.array([(codes * scales[:, None].astype(np.float64)).reshape(-1) for codes, scales in parts])
            num_steps = 2 * matrix.inputs // form.group + 3
            # The integer sum and the minimum are rounded apart: their sizes count, not that of the weight.
            minimum = weights.min(axis=1, keepdims=True) if form.has_minima else 0
            sizes = np.abs(x) @ (np.abs(weights) + 2 * np.abs(minimum)).T
        else:
            x = rows[tame].astype(np.float64)
            num_steps, sizes = matrix.inputs + 1, np.abs(x) @ np.abs(weights).T
        expected = x[:, : weights.shape[1]] @ weights.T
        bound = num_steps * ROUNDING * 1.01 * sizes + num_steps * 2.0**-149
        assert (np.abs(specified(kind, shape)[tame] - expected) <= bound).all(), shape


@pytest.mark.parametrize("kind", [*CODE_FORMS, "int4", "int8"])
def test_quantized_products_err_by_half_a_step_of_the_rows_at_most(kind: str) -> None:
    """Against the rows as they were, before they became codes."""
    for shape in shapes_of(kind):
        matrix, weights = matrix_of(kind, shape)
        rows = rows_of(matrix.inputs)
        tame = is_tame(rows)
        x = rows[tame].astype(np.float64)
        blocks = np.pad(np.abs(x), ((0, 0), (0, -x.shape[1] % 32))).reshape(len(x), -1, 32)
        half_steps = np.repeat(blocks.max(axis=2) / 254 * (1 + 2.0**-12), 32, axis=1)[:, : x.shape[1]] + 1e-30
        bound = half_steps @ np.abs(weights).T * 1.01
        slack = 1e-4 * np.abs(x) @ np.abs(weights).T  # of rounding, which the test above bounds
        assert (np.abs(specified(kind, shape)[tame] - x @ weights.T) <= bound + slack).all(), shape


@pytest.mark.parametrize("kind", MATRIX_KINDS)
def test_what_is_not_finite_in_a_row_spoils_that_row_alone(kind: str) -> None:
    shape = shapes_of(kind)[1]
    matrix, _ = matrix_of(kind, shape)
    rows, out = rows_of(matrix.inputs), specified(kind, shape)
    is_finite = np.isfinite(rows).all(axis=1)
    assert 0 < (~is_finite).sum() < NUM_ROWS
    assert np.isfinite(out[is_tame(rows)]).all()
    assert not np.isfinite(out[~is_finite]).any()


@variants
@pytest.mark.parametrize("kind", CODE_FORMS)
def test_extreme_scales_and_codes_multiply_the_same(variant: str, kind: str) -> None:
    """Scales that are subnormal, the largest, infinite and NaN; codes all least or all largest, rows of +-127."""
    kernel, form = kernel_or_skip(variant), CODE_FORMS[kind]
    rng = np.random.default_rng(4)
    codes = made_up_codes(form, 32, 512, rng)
    halves = np.array([6e-8, -6e-8, 6e-5, 65504, -65504, np.inf, np.nan, 0, -0.0, 1], np.float16)
    codes.scales[:20] = rng.choice(halves, codes.scales[:20].shape)
    if codes.minima is not None:
        codes.minima[8:28] = rng.choice(halves, codes.minima[8:28].shape)
    codes.codes[::3] = min(2**form.bits - 1, 127 + form.zero)
    codes.codes[1::3] = 0
    matrix = pack_codes(TightPages(), form, 32, 512, iter([codes]))
    rows = rows_of(512)
    for count in (1, 8, 61):
        expected = linear(load_kernel("portable"), matrix, rows[:count])
        assert same_bits(linear(kernel, matrix, rows[:count]), expected)
    sums = linear(load_kernel("portable"), matrix, np.full((1, 512), 127, np.float32))
    with np.errstate(all="ignore"):
        exact = exact_weights(codes).sum(axis=1) * 127
    np.testing.assert_allclose(sums[0, 28:], exact[28:], rtol=1e-4, atol=1e-4)


# ---- Rows as codes


def blocks_to_quantize() -> Floats:
    """A row of 400 blocks: all sizes, specials, exact halves of a step, one number alone in its block."""
    rng = np.random.default_rng(7)
    blocks = rng.standard_normal((400, 32)) * 10.0 ** rng.uniform(-36, 36, (400, 1))
    blocks[:50] = rng.integers(-254, 255, (50, 32)) / 2
    blocks[:50, 0] = 127
    blocks[50:60] = 0
    blocks[50:60, 17] = 3
    row: Floats = blocks.astype(np.float32).reshape(-1)
    for block, number in enumerate(SPECIALS, 60):
        row[block * 33] = number
    for block, number in enumerate(SPECIALS, 80):
        row[block * 32 : block * 32 + 32] = number
    return row


@pytest.mark.parametrize("variant", ["portable", *FAST_VARIANTS])
def test_rows_become_the_codes_that_the_definition_says(variant: str) -> None:
    """In every kernel: the nearest of 127 steps, ties to even, of the block's largest magnitude; checked in numpy."""
    kernel, row = kernel_or_skip(variant), blocks_to_quantize()
    blocks = row.reshape(-1, 32)
    is_finite = np.asarray(np.isfinite(blocks).all(axis=1))
    largest = np.abs(np.where(is_finite[:, None], blocks, 0)).max(axis=1)
    is_zero = np.asarray(largest < np.float32(1e-30))
    inverse = np.float32(127) / np.where(is_zero, np.float32(1), largest)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        steps = np.rint(np.where((is_finite & ~is_zero)[:, None], blocks * inverse[:, None], np.float32(0)))
    scales = np.where(is_finite, np.where(is_zero, 0, largest / np.float32(127)), np.float32("nan")).astype(np.float32)
    codes, found = quantize(kernel, row)
    assert np.array_equal(codes, steps.astype(np.int8))
    assert same_bits(found, scales)
    assert codes.min() == -127 and codes.max() == 127


@pytest.mark.parametrize("variant", ["portable", *FAST_VARIANTS])
def test_half_a_block_at_the_end_is_filled_up_with_zeros(variant: str) -> None:
    kernel = kernel_or_skip(variant)
    row = np.arange(1, 49, dtype=np.float32)
    codes, scales = quantize(kernel, row)
    assert not codes[1, 16:].any() and codes[1, 15] == 127
    assert scales[1] == np.float32(48) / np.float32(127)


# ---- Functions of single numbers


def sweep() -> Floats:
    """All signs and exponents, NaNs with them, every 16,411th number; and densely where the functions bend."""
    bits = np.arange(0, 1 << 32, 16411, dtype=np.uint64).astype(np.uint32)
    dense = np.linspace(-95, 95, 100_001).astype(np.float32)
    edges = np.array([-87, 88, -87.00001, 88.00001, 65504, 65519.996, 65520, 2.0**-24, 2.0**-25, 1.5 * 2.0**-24])
    return np.concatenate([bits.view(np.float32), dense, edges.astype(np.float32), -edges.astype(np.float32), SPECIALS])


@variants
@pytest.mark.parametrize("name", ["exp", "silu", "half"])
def test_functions_of_numbers_are_those_of_the_portable_kernels(variant: str, name: str) -> None:
    kernel, x = kernel_or_skip(variant), sweep()
    assert same_bits(elementwise(kernel, name, x), elementwise(load_kernel("portable"), name, x))


def test_exp_is_within_two_units_of_the_last_place() -> None:
    """From -87 to 88; below it is 0, above it stays, and NaN stays NaN."""
    x = sweep()
    ours = elementwise(load_kernel("portable"), "exp", x)
    inside = (x >= -87) & (x <= 88)
    exact = np.exp(x[inside].astype(np.float64))
    units = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert (np.abs(ours[inside] - exact) <= 2 * units).all()
    assert not ours[x < -87].any()
    assert (ours[x > 88] == elementwise(load_kernel("portable"), "exp", np.array([88], np.float32))).all()
    assert np.isnan(ours[np.isnan(x)]).all()


def test_silu_is_near_its_definition() -> None:
    """x / (1 + e^-x): 2 units from exp, half a one from each of two more operations; e^88 is the largest divisor."""
    x = sweep()
    x = x[np.abs(x) < 1e30]
    ours, exact = elementwise(load_kernel("portable"), "silu", x), x.astype(np.float64)
    exact = exact / (1 + np.exp(np.minimum(-exact, 88.0)))
    assert (np.abs(ours - exact) <= 7 * ROUNDING * np.abs(exact) + 2.0**-149).all()


def test_keys_become_the_nearest_finite_halves() -> None:
    x = sweep()
    with np.errstate(over="ignore"):
        nearest = np.clip(x, np.float32(-65504), np.float32(65504)).astype(np.float16).astype(np.float32)
    assert same_bits(elementwise(load_kernel("portable"), "half", x), nearest)
