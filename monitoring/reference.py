"""Writes what is made from the table of metrics: `python -m stagewire.monitoring.reference`.

That is the reference page `docs/metrics.md` and the dashboards' JSON files. A test keeps them current.
"""

from __future__ import annotations

import json
from pathlib import Path

from stagewire.monitoring.cache_dashboard import CACHE
from stagewire.monitoring.metric import Kind, Metric, Source
from stagewire.monitoring.metrics import FOREIGN, METRICS
from stagewire.monitoring.overview_dashboard import OVERVIEW
from stagewire.monitoring.panels import to_json
from stagewire.monitoring.pipeline_dashboard import PIPELINE

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "metrics.md"
DASHBOARDS = {"overview": OVERVIEW, "kv-cache": CACHE, "pipeline": PIPELINE}

_INTRODUCTION = """\
# Metrics

Made from the table in `monitoring/metrics.py` by `python -m stagewire.monitoring.reference`; a test keeps it current.

Each process serves its own at `/metrics`, on loopback; [operations](operations.md#watching) tells how to scrape them.
Names follow vLLM's where the meaning is the same. No metric has a label per request or session. A stage's series get
the labels `role="stage"`, `stage` (its id) and `instance` (the same) from the broker's `/sd`, those of the broker
`role="broker"`. Series that count are there from the start, at 0, so that the first event is an increase.
"""
_TITLES = {
    Source.BROKER: "The broker",
    Source.HEAD: "Heads: stages that hold layer 0",
    Source.STAGE: "Every stage",
    Source.TAIL: "Tails: stages that hold the last layer",
}


def page() -> str:
    """The reference page."""
    parts = [_INTRODUCTION]
    for source, title in _TITLES.items():
        rows = "".join(_line(metric) for metric in METRICS.values() if metric.source is source)
        parts.append(f"## {title}\n\n| name | kind | unit | labels | what |\n|---|---|---|---|---|\n{rows}")
    foreign = "".join(f"| `{name}` | {text} |\n" for name, text in FOREIGN.items())
    parts.append(f"## Not ours\n\nDashboards and rules use these besides.\n\n| name | what |\n|---|---|\n{foreign}")
    bounds: dict[tuple[float, ...], list[str]] = {}
    for metric in METRICS.values():
        if metric.kind is Kind.HISTOGRAM:
            bounds.setdefault(metric.buckets, []).append(f"`{metric.name}`")
    buckets = "".join(f"| {', '.join(f'{b:g}' for b in key)} | {', '.join(names)} |\n" for key, names in bounds.items())
    parts.append(f"## Buckets\n\nThey suit processors and GPUs alike.\n\n| upper bounds | of |\n|---|---|\n{buckets}")
    return "\n".join(parts)


def _line(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind.value} | {metric.unit} | {labels} | {metric.help} |\n"


def files() -> dict[Path, str]:
    """Every generated file and its content."""
    folder = ROOT / "monitoring" / "grafana" / "dashboards"
    made = {folder / f"{name}.json": json.dumps(to_json(one), indent=1) + "\n" for name, one in DASHBOARDS.items()}
    return {PAGE: page(), **made}


if __name__ == "__main__":
    for path, content in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
