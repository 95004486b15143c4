"""The random numbers of PROTOCOL.md once more, in plain Python, and what they pick; nothing here is the product's."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

_MASK = (1 << 64) - 1
_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B


def philox4x64(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds, as in the paper's figure; words are 64 bits, the lowest first."""
    a, b, c, d = counter
    first, second = key
    for _ in range(10):
        low, high = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (high >> 64) ^ b ^ first, high & _MASK, (low >> 64) ^ d ^ second, low & _MASK
        first, second = (first + _WEYL[0]) & _MASK, (second + _WEYL[1]) & _MASK
    return a, b, c, d


def reference_uniform(seed: int, prompt: Sequence[int], position: int, choice_index: int = 0) -> float:
    """The number for one position of an answer to `prompt`."""
    digest = hashlib.blake2b(struct.pack(f"<{len(prompt)}i", *prompt), digest_size=16).digest()
    words = philox4x64((position + 1, choice_index, *struct.unpack("<2Q", digest)), (seed, 0))
    return (words[0] >> 11) / 2.0**53


def picked(shares: Sequence[float], number: float) -> int:
    """The first index at which the sum of the shares so far exceeds `number`."""
    reached = 0.0
    for index, share in enumerate(shares):
        reached += share
        if number < reached:
            return index
    return len(shares) - 1
