"""Samples to the text that Prometheus reads. State is read when somebody asks, and at no other time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from stagewire.monitoring.distribution import Distribution
from stagewire.monitoring.metric import Buckets, Metric, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Read = Callable[[], Iterable[Sample]]


class Exposition:
    """The `/metrics` page of one process: what `read` gives, and the process's own CPU time and memory."""

    def __init__(self, read: Read) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Samples(read))
        ProcessCollector(registry=self._registry)

    def page(self) -> bytes:
        return generate_latest(self._registry)


class _Samples(Collector):
    def __init__(self, read: Read) -> None:
        self._read = read
        self._bounds: dict[Buckets, list[str]] = {}

    def describe(self) -> Iterable[Family]:
        """Nothing is registered beforehand: names are unique in the table."""
        return ()

    def collect(self) -> Iterable[Family]:
        families: dict[str, Family] = {}
        for metric, labels, value in self._read():
            family = families.get(metric.name) or families.setdefault(metric.name, _family(metric))
            named = dict(zip(metric.labels, labels, strict=True))
            if isinstance(value, Distribution):
                self._add_distribution(family, metric, named, value)
            else:
                family.add_sample(metric.name, named, value)
        return families.values()

    def _add_distribution(self, family: Family, metric: Metric, labels: dict[str, str], value: Distribution) -> None:
        bounds = self._bounds.get(metric.buckets)
        if bounds is None:
            bounds = self._bounds[metric.buckets] = [*(f"{float(bound)}" for bound in metric.buckets), "+Inf"]
        counts = value.cumulative()
        for bound, count in zip(bounds, counts, strict=True):
            family.add_sample(f"{metric.name}_bucket", labels | {"le": bound}, count)
        family.add_sample(f"{metric.name}_count", labels, counts[-1])
        family.add_sample(f"{metric.name}_sum", labels, value.total)


def _family(metric: Metric) -> Family:
    """The library names a counter's family without the `_total` of its series."""
    return Family(metric.name.removesuffix("_total"), metric.help, metric.kind.value)
