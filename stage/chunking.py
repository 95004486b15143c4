"""How long a prefill chunk may be: a budget in time, learnt from what the slowest stage reports."""

from __future__ import annotations

from collections.abc import Sequence

from stagewire.wire.request import StageTiming

_GRANULE = 32
"""Chunks are whole multiples of the row tile where they can be; smaller ones waste the rest of a tile."""
_SMOOTHING = 0.3


class ChunkBudget:
    """Turns `target_s` into tokens: at most `max_tokens`, at least one granule."""

    def __init__(self, max_tokens: int, target_s: float) -> None:
        self._max_tokens, self._target_s = max_tokens, target_s
        self._s_per_token: float | None = None

    @property
    def tokens(self) -> int:
        if self._s_per_token is None:
            return min(self._max_tokens, 4 * _GRANULE)
        affordable = int(self._target_s / self._s_per_token) // _GRANULE * _GRANULE
        return min(self._max_tokens, max(_GRANULE, affordable))

    def observe(self, num_tokens: int, timings: Sequence[StageTiming]) -> None:
        """Learn from a finished step; steps of less than one granule say little about prefill."""
        slowest_s = max((timing.compute_s for timing in timings), default=0.0)
        if num_tokens < _GRANULE or slowest_s <= 0:
            return
        sample = slowest_s / num_tokens
        old = self._s_per_token
        self._s_per_token = sample if old is None else old + _SMOOTHING * (sample - old)
