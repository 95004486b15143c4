"""The exponential function, defined to the bit: equal inputs give equal results on every machine.

numpy's own `exp` is whatever the machine's vector unit and C library make of it. Here every step is one operation of
IEEE 754 on float64, correctly rounded on its own and never fused: multiply, add, round to integer; and powers of two.
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

_STEP_BITS = 6
_STEPS = 1 << _STEP_BITS
"""2 to the power of j / _STEPS comes from a table."""
_STEPS_PER_UNIT = float.fromhex("0x1.71547652b82fep+6")  # _STEPS / ln 2
# ln 2 / _STEPS in two parts; the first has so few bits that its products with whole numbers are exact.
_STEP_HIGH = float.fromhex("0x1.62e42fef00000p-7")
_STEP_LOW = float.fromhex("0x1.473de6af278edp-40")
_COEFFICIENTS = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2)
"""Of the Taylor series, the highest power first; the rest is below 1e-19 where it is used."""
_LOWEST = -708.0
"""Below it the result would leave the normal numbers."""
_BLOCK = 4096
"""Values at a time, so that all of a block's steps stay in the cache."""
_DIGITS = 40


def _table() -> NDArray[np.float64]:
    # In decimal arithmetic, which is done in software and so is the same everywhere.
    with localcontext(Context(prec=_DIGITS)):
        return np.array([float(Decimal(2) ** (Decimal(j) / _STEPS)) for j in range(_STEPS)])


_POWERS = _table()


def exp_in_place(values: NDArray[np.float64]) -> None:
    """Replace each value by e to the power of it; the error is hardly more than one unit in the last place.

    Args:
        values: float64 [N], none above 0 and no NaN. Those below -708, also minus infinity, become 0.
    """
    for start in range(0, len(values), _BLOCK):
        values[start : start + _BLOCK] = _exp(values[start : start + _BLOCK])


def _exp(values: NDArray[np.float64]) -> NDArray[np.float64]:
    # values = steps * ln 2 / _STEPS + rest
    rest = np.maximum(values, _LOWEST)
    steps = np.rint(rest * _STEPS_PER_UNIT)
    rest -= steps * _STEP_HIGH
    rest -= steps * _STEP_LOW
    # exp(rest) - 1 = rest + rest² (1/2 + rest (1/6 + ...)), from the inside out.
    series = rest * _COEFFICIENTS[0]
    for coefficient in _COEFFICIENTS[1:]:
        series += coefficient
        series *= rest
    series *= rest
    series += rest
    whole = steps.astype(np.int64)
    result = _POWERS.take(whole & (_STEPS - 1))
    series *= result
    result += series
    # A power of two, by its bits; the product with it is exact.
    result *= (((whole >> _STEP_BITS) + 1023) << 52).view(np.float64)
    result[values < _LOWEST] = 0.0
    return result


def log(value: float) -> float:
    """The natural logarithm of a positive number, correctly rounded; takes some ten microseconds."""
    return float(Decimal(value).ln(Context(prec=_DIGITS)))


def total(values: NDArray[np.float64]) -> float:
    """The sum, one after the other; the order of numpy's `sum` depends on the machine."""
    return float(np.cumsum(values)[-1])
