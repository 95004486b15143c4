"""Grafana's dashboards as JSON: panels of a few kinds on a grid of 24 columns, and the frame around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Json = dict[str, object]
Look = Literal["lines", "stacked", "number", "heatmap"]

COLUMNS = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_GRAFANA_TYPE = {"lines": "timeseries", "stacked": "timeseries", "number": "stat", "heatmap": "heatmap"}


@dataclass(frozen=True, slots=True)
class Query:
    """One expression, and what its lines are called; `{{label}}` stands for a label's value."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """`unit` is one of Grafana's: s, ops, bytes, percentunit, short, and so on."""

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    look: Look = "lines"
    width: int = 8
    height: int = 8


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading; `repeat` names a variable, for each of whose values there is a row."""

    title: str
    panels: tuple[Panel, ...]
    repeat: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a dashboard: the values of `label` among the series of `metric`."""

    name: str
    label: str
    metric: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = field(default=())


def lines(title: str, description: str, *queries: Query, unit: str = "short", width: int = 8) -> Panel:
    return Panel(title, description, queries, unit, "lines", width)


def stacked(title: str, description: str, *queries: Query, unit: str = "short", width: int = 8) -> Panel:
    return replace(lines(title, description, *queries, unit=unit, width=width), look="stacked")


def number(title: str, description: str, expression: str, unit: str = "short") -> Panel:
    return Panel(title, description, (Query(expression),), unit, "number", width=4, height=4)


def heatmap(title: str, description: str, expression: str, unit: str = "s") -> Panel:
    return Panel(title, description, (Query(expression, "{{le}}"),), unit, "heatmap")


def to_json(dashboard: Dashboard) -> Json:
    """As Grafana imports it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["stagewire"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "schemaVersion": 39,
        "time": {"from": "now-30m", "to": "now"},
        "links": [_link()],
        "annotations": {"list": []},
        "templating": {"list": [_datasource(), *(_variable(one) for one in dashboard.variables)]},
        "panels": _panels(dashboard.rows),
    }


def _link() -> Json:
    return {
        "title": "Stagewire", "type": "dashboards", "tags": ["stagewire"], "asDropdown": False, "icon": "dashboard",
        "includeVars": False, "keepTime": True, "targetBlank": False, "tooltip": "", "url": "",
    }  # fmt: skip


def _datasource() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def _variable(variable: Variable) -> Json:
    return {
        "name": variable.name,
        "label": variable.name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({variable.metric}, {variable.label})", "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(rows: Sequence[Row]) -> list[Json]:
    """Laid out from left to right, and a new line where one does not fit."""
    out: list[Json] = []
    top = 0
    for row in rows:
        out.append(_row(row, len(out) + 1, top))
        top, left, height = top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left, height = top + height, 0, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            out.append(_panel(panel, len(out) + 1, place))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return out


def _row(row: Row, number: int, top: int) -> Json:
    made: Json = {
        "id": number, "type": "row", "title": row.title, "collapsed": False, "panels": [],
        "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top},
    }  # fmt: skip
    return made | {"repeat": row.repeat} if row.repeat else made


def _panel(panel: Panel, number: int, place: dict[str, int]) -> Json:
    return {
        "id": number,
        "type": _GRAFANA_TYPE[panel.look],
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel),
        "targets": [_target(query, panel.look, chr(ord("A") + index)) for index, query in enumerate(panel.queries)],
    }


def _target(query: Query, look: Look, reference: str) -> Json:
    shape = "heatmap" if look == "heatmap" else "time_series"
    return {
        "refId": reference, "datasource": _SOURCE, "expr": query.expression, "legendFormat": query.legend or "__auto",
        "format": shape, "range": True, "instant": False, "editorMode": "code",
    }  # fmt: skip


def _field(panel: Panel) -> Json:
    common: Json = {"unit": panel.unit, "min": 0}
    if panel.look == "number":
        return common | {"color": {"mode": "thresholds"}, "thresholds": _THRESHOLDS}
    if panel.look == "heatmap":
        return common
    stacking = {"mode": "normal" if panel.look == "stacked" else "none", "group": "A"}
    custom = {
        "drawStyle": "line", "lineWidth": 1, "fillOpacity": 40 if panel.look == "stacked" else 8, "spanNulls": False,
        "showPoints": "never", "stacking": stacking,
    }  # fmt: skip
    return common | {"color": {"mode": "palette-classic"}, "custom": custom}


_THRESHOLDS = {"mode": "absolute", "steps": [{"color": "text", "value": None}]}


def _options(panel: Panel) -> Json:
    if panel.look == "number":
        reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": reduce, "colorMode": "value", "graphMode": "area", "textMode": "auto"}
    if panel.look == "heatmap":
        return {
            "calculate": False, "cellGap": 1, "yAxis": {"unit": panel.unit},
            "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
        }  # fmt: skip
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
