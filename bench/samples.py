"""What a handful of measurements say: median, spread, percentiles. Pure functions, and no unit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def median(samples: Sequence[float]) -> float:
    return statistics.median(samples)


def spread(samples: Sequence[float]) -> float:
    """The whole range as a share of the median: 0.1 for 95 to 105."""
    return (max(samples) - min(samples)) / median(samples)


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that `share` of all do not exceed (nearest rank, so always one that was measured)."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
