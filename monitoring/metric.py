"""What one metric is: its name, kind, labels, unit and help, and how finely a histogram divides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from stagewire.monitoring.distribution import Distribution

Buckets = tuple[float, ...]

# Seconds. A step on a GPU takes fractions of a millisecond, on one core of a CPU up to seconds.
STEP_SECONDS: Buckets = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
)  # fmt: skip
# Parts of a step that are short everywhere: messages to frames and back, a draw.
SHORT_SECONDS: Buckets = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25)
TOKEN_SECONDS: Buckets = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.15, 0.25, 0.4, 0.75, 1, 2.5, 5, 10, 30,
)  # fmt: skip
REQUEST_SECONDS: Buckets = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)
TOKENS: Buckets = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)
SEQUENCES: Buckets = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Kind(str, Enum):
    """As Prometheus knows them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Source(str, Enum):
    """Which process exports it. HEAD: a stage that holds layer 0. TAIL: one that holds the last."""

    BROKER = "broker"
    STAGE = "stage"
    HEAD = "head"
    TAIL = "tail"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. `unit` is for people; a name ends in it where that is usual."""

    name: str
    kind: Kind
    source: Source
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: Buckets = ()

    def distribution(self) -> Distribution:
        """An empty one with this metric's bounds."""
        return Distribution(self.buckets)

    @property
    def series_names(self) -> tuple[str, ...]:
        """The names under which Prometheus stores it."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)

    @property
    def series_labels(self) -> frozenset[str]:
        return frozenset(self.labels) | ({"le"} if self.kind is Kind.HISTOGRAM else frozenset())


class Sample(NamedTuple):
    """A value now; `labels` in the metric's order."""

    metric: Metric
    labels: Sequence[str]
    value: float | Distribution
