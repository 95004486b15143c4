"""Random numbers that belong to a place, not to a sequence of calls: a replay draws the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_MANTISSA_BITS = 53


@dataclass(frozen=True, slots=True)
class Place:
    """Where a token is drawn. Two places that differ in anything have numbers that have nothing to do with each other.

    Attributes:
        prompt_digest: `prompt_digest` of the request's own prompt, 16 bytes.
        choice_index: which of several answers to this one prompt, from 0; below 2**64.
        position: index in the sequence of the token that is drawn, below 2**64 - 1.
    """

    prompt_digest: bytes
    choice_index: int
    position: int


def uniform(seed: int, place: Place) -> float:
    """A number in [0, 1) for one place of one request.

    The first 64-bit word of Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), of
    which the upper 53 bits count. Its key words are (seed, 0). Its counter words, the lowest first, are (position + 1,
    choice index, first half of the prompt digest, second half), the halves little-endian.

    Args:
        seed: 0 to 2**64 - 1.
        place: of the token that is drawn.
    """
    counter = int.from_bytes(place.prompt_digest, "little") << 128 | place.choice_index << 64 | place.position
    # numpy counts one up before it draws: hence position + 1.
    word = int(np.random.Philox(counter=counter, key=seed).random_raw())
    return float(word >> (64 - _MANTISSA_BITS)) * 2.0**-_MANTISSA_BITS
