"""How long a prefill chunk may be: a budget in time, learnt from what the slowest stage reports."""

from __future__ import annotations

from collections.abc import Iterable

from stagewire.stage.schedule.sequence import Sequence
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import Phase, Slice

CHUNK_PER_DECODE = 1.0
"""Chunks take so many times as long as the decodes of their step, which so run at half their pace, and not below."""
_FIRST_TOKENS = 128
_FIRST_TOKENS_BESIDE_DECODES = 32
"""Before anything is known."""
_GRANULES = (32, 8)
"""Kernels compute rows in tiles; a chunk that is long enough fills whole ones."""
_DECODES_ALONE_EVERY = 16
"""Of the steps that hold decodes while there are prompts, one in so many holds no chunk: it tells what decodes cost."""
_CHUNKS_PER_STAGE = 4
_FEWEST_PIPELINED_TOKENS = 64
"""Each chunk reads all weights anew; fewer tokens would not be worth it."""
_POSITIONS_PER_KEY = 512
_SMOOTHING = 0.15
_DECODES = (Phase.DECODE, Phase.TRY_RESTORE_DECODE)


class _Table:
    """Smoothed values by key; a key that has none takes that of the nearest."""

    def __init__(self) -> None:
        self._values: dict[int, float] = {}

    def get(self, key: int) -> float | None:
        value = self._values.get(key)
        if value is None and self._values:
            return self._values[min(self._values, key=lambda known: abs(known - key))]
        return value

    def learn(self, key: int, value: float) -> None:
        old = self._values.get(key, value)
        self._values[key] = old + _SMOOTHING * (value - old)


class ChunkBudget:
    """Predicts what decodes and chunks cost, in seconds of the slowest stage.

    A step's decodes cost what as many did before. A token of a chunk costs the more the further on it is, since it
    looks at all before it: it costs what others did at about its position.
    """

    def __init__(self, max_tokens: int, target_s: float, num_stages: int = 1) -> None:
        self._max_tokens, self._target_s, self._num_stages = max_tokens, target_s, num_stages
        self._decode_s, self._token_s = _Table(), _Table()
        self._num_shared = 0

    def room_s(self, num_decodes: int) -> float:
        """Time for the chunks of one step: little while others decode, `num_decodes` to a step; plenty otherwise."""
        if not num_decodes:
            return self._target_s
        decode_s = self._decode_s.get(num_decodes)
        if decode_s is None:
            return min(self._target_s, self.seconds(_FIRST_TOKENS_BESIDE_DECODES, 0))
        return min(self._target_s, CHUNK_PER_DECODE * decode_s)

    def seconds(self, num_tokens: int, pos_start: int) -> float:
        """What a chunk costs."""
        return num_tokens * self._seconds_per_token(pos_start + num_tokens // 2)

    def tokens(self, room_s: float, pos_start: int) -> int:
        """Tokens from `pos_start` on that can be computed in `room_s`, at most `max_tokens`."""
        affordable = min(self._max_tokens, int(room_s / self._seconds_per_token(pos_start)))
        granule = next((size for size in _GRANULES if size <= affordable), 1)
        return affordable // granule * granule

    def _seconds_per_token(self, position: int) -> float:
        return self._token_s.get(position // _POSITIONS_PER_KEY) or self._target_s / _FIRST_TOKENS

    def share_out(self, prompts: Iterable[Sequence], num_decodes: int) -> list[tuple[Sequence, int]]:
        """Which of `prompts` get how many tokens in the next step, the oldest first.

        Half of the time is the oldest's, so that it never starves, and all that the others do not need. Of these the
        one with the fewest tokens left comes first: a short prompt does not wait for a long one to end.
        """
        if num_decodes:
            self._num_shared += 1
            if self._num_shared % _DECODES_ALONE_EVERY == 0:
                return []
        by_age = sorted(prompts, key=lambda s: s.seq_id)
        room_s, room_tokens = self.room_s(num_decodes), self._room_tokens(sum(s.num_unscheduled for s in by_age))
        others = sorted(by_age[1:], key=lambda s: (s.num_unscheduled, s.seq_id))
        needed_s = sum(self.seconds(s.num_unscheduled, s.num_scheduled) for s in others)
        shares: list[tuple[Sequence, int]] = []
        for sequence in [*by_age[:1], *others]:
            is_oldest = not shares
            own_s = max(room_s / 2, room_s - needed_s) if is_oldest else room_s
            affordable = max(self.tokens(own_s, sequence.num_scheduled), int(is_oldest))
            num_tokens = min(affordable, room_tokens, sequence.num_prefill)
            if num_tokens < 1:
                break
            room_s -= self.seconds(num_tokens, sequence.num_scheduled)
            room_tokens -= num_tokens
            shares.append((sequence, num_tokens))
        return shares

    def _room_tokens(self, num_waiting: int) -> int:
        """Several stages only work at the same time if what waits is enough for several chunks each."""
        if self._num_stages == 1:
            return self._max_tokens
        even = -(-num_waiting // (_CHUNKS_PER_STAGE * self._num_stages * _GRANULES[0])) * _GRANULES[0]
        return min(self._max_tokens, max(_FEWEST_PIPELINED_TOKENS, even))

    def moved(self, num_tokens: int, pos_start: int) -> int:
        """How many tokens from `pos_start` on take as long as `num_tokens` at the beginning; one at least."""
        return max(1, min(num_tokens, self.tokens(self.seconds(num_tokens, 0), pos_start))) if pos_start else num_tokens

    def observe(self, slices: tuple[Slice, ...], timings: Iterable[StageTiming]) -> None:
        """Learn from a finished step."""
        slowest_s = max([timing.compute_s for timing in timings], default=0.0)
        if slowest_s <= 0:
            return
        chunks = [span for span in slices if span.phase is Phase.PREFILL]
        num_decodes = sum(span.phase in _DECODES for span in slices)
        if not chunks and not num_decodes:
            return
        decode_s = self._decode_s.get(num_decodes)
        chunk_s = sum(self.seconds(span.num_tokens, span.pos_start) for span in chunks)
        if num_decodes and (not chunks or decode_s is None):
            # Seen for the first time, and not alone: decodes are what the chunks do not explain.
            self._decode_s.learn(num_decodes, max(slowest_s - chunk_s, slowest_s / 10))
            return
        # The one pass over the weights, which all rows share, is in what decodes cost. Beside long decodes a short
        # chunk is learnt about slowly: most of what the step took too long is not its own.
        factor = slowest_s / (chunk_s + (decode_s or 0.0))
        for span in chunks:
            position = span.pos_start + span.num_tokens // 2
            self._token_s.learn(position // _POSITIONS_PER_KEY, factor * self._seconds_per_token(position))
