"""PromQL from metrics of the table, so that a dashboard cannot name one that does not exist."""

from __future__ import annotations

from stagewire.monitoring.metric import Kind, Metric

WINDOW = "$__rate_interval"
"""Grafana's word for a window that holds several scrapes."""


def rate(metric: Metric, by: str = "", where: str = "", part: str = "") -> str:
    """Per second; the sum over all series, or one for each value of `by`. `part` of a histogram: sum or count."""
    name = f"{metric.name}_{part}" if part else metric.name
    return f"sum{_by(by)} (rate({name}{_where(where)}[{WINDOW}]))"


def now(metric: Metric, by: str = "", where: str = "") -> str:
    """A gauge's values, added up."""
    return f"sum{_by(by)} ({metric.name}{_where(where)})"


def quantile(q: float, metric: Metric, by: str = "", where: str = "") -> str:
    """Of a histogram, interpolated."""
    assert metric.kind is Kind.HISTOGRAM, metric.name
    labels = f"le, {by}" if by else "le"
    buckets = f"sum by ({labels}) (rate({metric.name}_bucket{_where(where)}[{WINDOW}]))"
    return f"histogram_quantile({q:g}, {buckets})"


def average(metric: Metric, by: str = "", where: str = "") -> str:
    """Of a histogram's observations."""
    return ratio(rate(metric, by, where, "sum"), rate(metric, by, where, "count"))


def heat(metric: Metric) -> str:
    """Observations of each bucket, for a heatmap."""
    return f"sum by (le) (increase({metric.name}_bucket[{WINDOW}]))"


def ratio(part: str, whole: str) -> str:
    return f"{part} / {whole}"


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""


def _where(matchers: str) -> str:
    return f"{{{matchers}}}" if matchers else ""
