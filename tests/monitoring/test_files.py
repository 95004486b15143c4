"""What is made from the table of metrics is current, and what is written by hand names only what exists."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from support.watching import (
    DASHBOARDS,
    PROMETHEUS,
    ROOT,
    TARGET_LABELS,
    labels_in,
    missing,
    names_in,
    rules,
    shown,
    tool,
)

from stagewire.broker.requests import RequestState
from stagewire.monitoring import metrics as m
from stagewire.monitoring.metric import Kind, Metric, Source
from stagewire.monitoring.metrics import FOREIGN, METRICS
from stagewire.monitoring.reference import files
from stagewire.stage.timing.restore_note import RestoreOutcome
from stagewire.stage.timing.step_times import OUTCOMES, PHASES

ALERTS = rules("alert_rules.yml")
RECORDED = rules("recording_rules.yml")
SERIES = {name: metric for metric in METRICS.values() for name in metric.series_names}


def expressions() -> list[tuple[str, str]]:
    """Every expression of the project, and where it stands."""
    found = [(f"{one.dashboard}: {one.panel}", one.expression) for one in shown()]
    found += [(rule["alert"], rule["expr"]) for rule in ALERTS]
    return found + [(rule["record"], rule["expr"]) for rule in RECORDED]


def test_generated_files_are_current() -> None:
    """Otherwise run `python -m stagewire.monitoring.reference`."""
    assert [path.name for path, content in files().items() if path.read_text(encoding="utf-8") != content] == []
    assert set(DASHBOARDS) == {path for path in files() if path.suffix == ".json"}


def test_no_expression_names_an_undefined_metric_or_label() -> None:
    """Neither in a dashboard nor in a rule."""
    recorded = {rule["record"] for rule in RECORDED}
    for where, expression in expressions():
        names = names_in(expression)
        assert names, (where, expression)
        assert names <= set(SERIES) | set(FOREIGN) | recorded, (where, names)
        labels = set(TARGET_LABELS).union(*(SERIES[name].series_labels for name in names & set(SERIES)))
        assert labels_in(expression) <= labels, (where, expression)


def test_the_names_of_an_expression_are_found() -> None:
    """Otherwise the test above would pass on nothing."""
    expression = 'histogram_quantile(0.5, sum by (le, a) (rate(x_bucket{b="1", c=~"2"}[5m]))) / on (d) up or y:z:rate5m'
    assert names_in(expression) == {"x_bucket", "up", "y:z:rate5m"}
    assert labels_in(expression) == {"le", "a", "b", "c"}


def test_every_metric_is_shown_by_a_dashboard() -> None:
    """What nobody can look at need not be measured."""
    named = set().union(*(names_in(one.expression) for one in shown()))
    variables = set().union(*(re.findall(r"label_values\((\w+)", path.read_text()) for path in DASHBOARDS))
    unseen = [name for name, metric in METRICS.items() if not (set(metric.series_names) & named or name in variables)]
    assert unseen == []


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_metric_is_named_as_prometheus_wants_it(metric: Metric) -> None:
    """A counter ends in _total; durations, sizes and shares end in their base unit; no label tells requests apart."""
    assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    if metric.unit in {"seconds", "bytes"}:
        assert metric.unit in metric.name
    assert metric.name.endswith("_ratio") == (metric.unit == "0 to 1")
    assert metric.help.endswith((".", "!"))
    assert not set(metric.labels) & {
        "request",
        "request_id",
        "session",
        "client",
        "path",
        "le",
        *TARGET_LABELS - {"stage"},
    }
    # A stage's own series get `stage` from discovery; only the broker may name stages itself.
    assert "stage" not in metric.labels or metric.source is Source.BROKER


def test_every_metric_of_the_table_is_exported_somewhere() -> None:
    """By its name, in the module that reads the broker's or a stage's state."""
    names = {
        target.id: node.value
        for node in ast.parse((ROOT / "monitoring/metrics.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    watch = (ROOT / "broker/watch.py").read_text(encoding="utf-8") + (ROOT / "stage/watch.py").read_text(
        encoding="utf-8"
    )
    assert len(names) == len(METRICS)
    assert [name for name in names if not re.search(rf"\bm\.{name}\b", watch)] == []


def test_labels_that_a_help_text_names_are_exported() -> None:
    """A text of the form `value: what it means` names no phase, outcome or state that does not exist."""
    words = {
        m.FORWARD_TIME: set(PHASES),
        m.RESTORES: set(OUTCOMES),
        m.RESTORE_TIME: {outcome.value for outcome in RestoreOutcome},
        m.KV_BLOCKS: {"used", "cached", "free"},
        m.CACHE_HITS: {"ram", "disk"},
        m.NUM_SEQUENCES: {"waiting", "running", "paused", "ending"},
        m.DISK_BLOCKS: {"written", "dropped", "failed", "read", "set_aside"},
        m.NUM_REQUESTS_WAITING: {"no_pipeline", "capacity"},
        m.NUM_REQUESTS: {state.value for state in RequestState},
    }
    named = {metric: set(re.findall(r"\b([a-z]\w*): ", metric.help)) for metric in METRICS.values()}
    told = {metric: names for metric, names in named.items() if names and metric.labels}
    assert m.FORWARD_TIME in told and m.RESTORES in told
    for metric, names in told.items():
        assert names <= words[metric], metric.name


# --- rules ---


def test_every_alert_names_a_section_of_the_operations_page() -> None:
    """Its runbook: a heading that exists, with something below it."""
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    sections = {
        heading.lower().replace(" ", "-"): text.strip()
        for heading, text in re.findall(r"^###? (.+?)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    }
    for rule in ALERTS:
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert path == "docs/operations.md"
        assert len(sections.get(anchor, "")) > 100, rule["alert"]


def test_every_alert_is_tested_to_fire_and_not_to_fire() -> None:
    """By promtool, on series that were made up for it."""
    parsed = yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text(encoding="utf-8"))
    cases = [case for test in parsed["tests"] for case in test.get("alert_rule_test", [])]
    fires = {case["alertname"] for case in cases if case["exp_alerts"]}
    is_quiet = {case["alertname"] for case in cases if not case["exp_alerts"]}
    assert fires == is_quiet == {rule["alert"] for rule in ALERTS}


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", PROMETHEUS / "prometheus.yml"),
        ("check", "rules", PROMETHEUS / "recording_rules.yml", PROMETHEUS / "alert_rules.yml"),
        ("test", "rules", PROMETHEUS / "rules_test.yml"),
    ],
    ids=["config", "rules", "alerts"],
)
def test_promtool_finds_nothing_wrong(arguments: tuple[str | Path, ...]) -> None:
    """With configuration, rules, and what alerts do on made-up series."""
    done = subprocess.run([tool("promtool"), *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


# --- Grafana and Docker ---


def test_the_compose_file_and_what_it_mounts_fit_together() -> None:
    """Every mounted folder exists, and every path that a file names is mounted there. No Docker is run."""
    folder = ROOT / "monitoring"
    services = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))["services"]
    mounts: dict[str, Path] = {}
    for service in services.values():
        for volume in service["volumes"]:
            source, target, *_ = volume.split(":")
            if source.startswith("."):
                mounts[target] = folder / source
    assert all(path.is_dir() for path in mounts.values())
    assert (mounts["/etc/prometheus"] / "prometheus.yml").is_file()
    assert "--config.file=/etc/prometheus/prometheus.yml" in services["prometheus"]["command"]
    for name in yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))["rule_files"]:
        assert (PROMETHEUS / name).is_file()
    provisioning = mounts["/etc/grafana/provisioning"]
    (provider,) = yaml.safe_load((provisioning / "dashboards/stagewire.yml").read_text(encoding="utf-8"))["providers"]
    assert sorted(mounts[provider["options"]["path"]].glob("*.json")) == DASHBOARDS
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (mounts[str(home.parent)] / home.name).is_file()
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text(encoding="utf-8"))["datasources"]
    assert source["url"].removeprefix("http://") in " ".join(services["prometheus"]["command"])


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_lie_beside_each_other_and_say_what_they_show(path: Path) -> None:
    """None over another, each within the grid's 24 columns, with a text, and with variables that exist."""
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or len(panel["description"]) > 8
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(?!__)(\w+)", path.read_text(encoding="utf-8")))
    repeated = {panel["repeat"] for panel in panels if "repeat" in panel}
    assert used | repeated <= variables


def test_grafana_has_the_version_of_the_schema_that_dashboards_are_checked_with() -> None:
    """Otherwise the check would say nothing about it."""
    compose = (ROOT / "monitoring/compose.yaml").read_text(encoding="utf-8")
    package = (ROOT / "tests/data/grafana/package.json").read_text(encoding="utf-8")
    (version,) = re.findall(r"grafana/grafana:(\S+)", compose)
    assert f'"@grafana/schema": "{version}"' in package


GRAFANA_TOOLS = ROOT / "build" / "grafana"
"""Where `make grafana-tools` installs `tests/data/grafana/package.json`."""


@pytest.mark.timeout(240)
def test_dashboards_satisfy_grafanas_own_types(tmp_path: Path) -> None:
    """TypeScript checks each file against `@grafana/schema`, and finds an error that is put in."""
    compiler = GRAFANA_TOOLS / "node_modules/.bin/tsc"
    if not compiler.exists():
        missing("grafana-schema")
    (tmp_path / "node_modules").symlink_to(GRAFANA_TOOLS / "node_modules")
    (tmp_path / "dashboard.mts").write_text((ROOT / "tests/data/grafana/dashboard.mts").read_text(encoding="utf-8"))
    whole = DASHBOARDS[0].read_text(encoding="utf-8")
    assert '"placement": "bottom"' in whole
    pages = {path.stem: path.read_text(encoding="utf-8") for path in DASHBOARDS}
    pages["wrong"] = whole.replace('"placement": "bottom"', '"placement": "botom"', 1)
    for name, content in pages.items():
        imports = 'import type { StagewireDashboard } from "./dashboard.mjs";\n'
        (tmp_path / f"{name}.mts").write_text(f"{imports}export default ({content}) satisfies StagewireDashboard;\n")
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022"]
    done = subprocess.run(
        [tool("node"), compiler, *options, *(f"{name}.mts" for name in pages)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if "error" in line]
    assert len(found) == 1, done.stdout
    assert found[0].startswith("wrong.mts")
    assert '"botom"' in found[0]
