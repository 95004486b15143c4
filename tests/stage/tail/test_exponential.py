"""Our own exponential: as exact as the C library's, and the same bits everywhere."""

from __future__ import annotations

import hashlib
import math
from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stagewire.stage.tail import exponential
from stagewire.stage.tail.exponential import exp_in_place, log, total

GOLDEN = "7db5f9c97c1d8e8673f9cdeab0bf6e276f1641f6cb8b2f79c0f9f716fca8029a"


def exp(values: list[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    result = np.array(values, dtype=np.float64)
    exp_in_place(result)
    return result


@given(st.floats(-708, 0))
def test_it_agrees_with_the_c_library_to_the_last_places(value: float) -> None:
    assert float(exp([value])[0]) == pytest.approx(math.exp(value), rel=1e-15, abs=0)


def test_it_is_within_about_one_unit_of_the_true_value() -> None:
    """Against 40 decimal digits, over the whole range and close to the table's steps."""
    rng = np.random.default_rng(3)
    steps = -np.arange(1, 500) * math.log(2) / 128
    values = np.concatenate([-rng.uniform(0, 708, 500), -rng.uniform(0, 1, 500), steps, np.nextafter(steps, 0)])
    context = Context(prec=40)
    for value, result in zip(values.tolist(), exp(values).tolist(), strict=True):
        true = Decimal(value).exp(context)
        assert abs(Decimal(result) - true) <= Decimal(1.05 * math.ulp(result)), value


def test_extreme_values_give_zero_or_one() -> None:
    """What is too small for a normal number is 0; the smallest steps below 0 change nothing."""
    assert exp([0.0, -0.0, -5e-324, -1e-300, -1e-17]).tolist() == [1.0] * 5
    assert exp([-708.0000001, -745.0, -1e300, -math.inf]).tolist() == [0.0] * 4
    assert exp([]).tolist() == []


def test_it_never_falls_where_its_argument_rises() -> None:
    """Rankings by probability follow those by logit."""
    values = np.sort(-np.random.default_rng(4).uniform(0, 30, 20_000))
    assert (np.diff(exp(values)) >= 0).all()


def test_a_value_does_not_depend_on_its_place() -> None:
    """Nor on how many there are: blocks and vector lanes change nothing."""
    values = -np.random.default_rng(5).uniform(0, 50, 10_000)
    together = exp(values)
    assert together.tolist() == [float(exp(values[i : i + 1])[0]) for i in range(len(values))]
    assert together[3:].tolist() == exp(values[3:]).tolist()


def test_the_bits_are_fixed() -> None:
    """A release, a machine or a numpy that changes one would draw other tokens on a replica."""
    values = -(np.arange(200_000) % 70_001) / 100.0
    assert hashlib.sha256(exp(values).tobytes()).hexdigest() == GOLDEN


def test_its_constants_are_what_they_say() -> None:
    """ln 2 in two parts, the first short enough that its products with whole numbers are exact."""
    high, low = Decimal(exponential._STEP_HIGH), Decimal(exponential._STEP_LOW)
    with localcontext(Context(prec=60)):
        assert abs(Decimal(2).ln() / 64 - high - low) < Decimal("1e-28")
        assert all(Decimal(steps * exponential._STEP_HIGH) == steps * high for steps in range(-65_400, 0, 97))


@pytest.mark.parametrize("value", [1.0, 1.5, 49152.0, 1e-300, 2.718281828459045])
def test_the_logarithm_is_correctly_rounded(value: float) -> None:
    true = Decimal(value).ln(Context(prec=60))
    result = log(value)
    assert all(abs(Decimal(result) - true) <= abs(Decimal(math.nextafter(result, to)) - true) for to in (-1e9, 1e9))


def test_sums_go_from_the_first_to_the_last() -> None:
    """Pairs would keep the small ones, which in this order are lost one by one."""
    assert total(np.array([1.0, *[2.0**-53] * 1000])) == 1.0
    assert total(np.array([*[2.0**-53] * 1000, 1.0])) > 1.0
