"""Prompts to measure with: token ids nobody has seen before, so that no cache of prefixes can answer them."""

from __future__ import annotations

import numpy as np

# Below are control tokens and single bytes of common vocabularies; the cost of a token does not depend on its id.
_LOWEST_ID = 300


class PromptSource:
    """Draws prompts; equal seeds draw the same ones in the same order."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._vocab_size = vocab_size

    def draw(self, num_tokens: int) -> list[int]:
        return [int(token_id) for token_id in self._random.integers(_LOWEST_ID, self._vocab_size, num_tokens)]
