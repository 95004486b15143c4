"""What a handful of measurements say: median, spread, percentiles. Pure functions, and no unit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

_RESAMPLES = 2000


def median(samples: Sequence[float]) -> float:
    return statistics.median(samples)


def spread(samples: Sequence[float]) -> float:
    """The whole range as a share of the median: 0.1 for 95 to 105."""
    return (max(samples) - min(samples)) / median(samples)


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that `share` of all do not exceed (nearest rank, so always one that was measured)."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, float]:
    """95% bootstrap interval of the ratio of two medians; the samples are pairs and are drawn again as such."""
    draws = np.random.default_rng(0).integers(0, len(numerators), (_RESAMPLES, len(numerators)))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.median(np.asarray(numerators)[draws], axis=1) / np.median(np.asarray(denominators)[draws], axis=1)
        low, high = np.percentile(ratios, (2.5, 97.5))
    return float(low), float(high)
