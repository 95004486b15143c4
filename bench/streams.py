"""What the arrival times of tokens say about several streams that ran together. Pure functions; seconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Arrivals = Sequence[float]
"""When each token of one stream arrived, in order."""


def decode_window_s(streams: Sequence[Arrivals], num_tokens: int) -> float:
    """How long `num_tokens` of every stream took, counted from when the last of them had its first token.

    So nobody's prefill is timed, and all streams run all the time: each must bring `num_tokens` after that moment.

    Raises:
        ValueError: a stream is too short.
    """
    start = max(arrivals[0] for arrivals in streams)
    ends = []
    for arrivals in streams:
        later = [arrival for arrival in arrivals if arrival > start]
        if len(later) < num_tokens:
            raise ValueError(f"a stream brought {len(later)} tokens while all ran; {num_tokens} are to be timed")
        ends.append(later[num_tokens - 1])
    return max(ends) - start


def gaps(arrivals: Arrivals, after: float = float("-inf"), until: float = float("inf")) -> list[float]:
    """The times between neighbouring tokens that both arrived in `[after, until]`."""
    inside = [arrival for arrival in arrivals if after <= arrival <= until]
    return [later - earlier for earlier, later in pairwise(inside)]


def overlapping_gaps(arrivals: Arrivals, start: float, end: float) -> list[float]:
    """The times between neighbouring tokens of which some part lies in `[start, end]`: a long one may reach out."""
    return [later - earlier for earlier, later in pairwise(arrivals) if later > start and earlier < end]
