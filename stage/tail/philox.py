"""Random numbers that belong to a place, not to a sequence of calls: a replay draws the same."""

from __future__ import annotations

import numpy as np

_MANTISSA_BITS = 53


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for one position of one request.

    The first 64-bit word of Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with
    key `seed` and counter `position`, of which the upper 53 bits count.

    Args:
        seed: 0 to 2**64 - 1.
        position: index in the sequence of the token that is drawn.
    """
    word = int(np.random.Philox(counter=position, key=seed).random_raw())
    return float(word >> (64 - _MANTISSA_BITS)) * 2.0**-_MANTISSA_BITS
