"""What tests of monitoring share: the queries of dashboards and rules, real tools, and a real Prometheus server."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "monitoring" / "prometheus"
DASHBOARDS = sorted((ROOT / "monitoring" / "grafana" / "dashboards").glob("*.json"))
REQUIRED = "STAGEWIRE_REQUIRED_TOOLS"
TARGET_LABELS = {"job", "instance", "role", "stage"}


def tool(name: str) -> str:
    """The path of a program; without it the test is skipped, or fails where the environment says that it must be."""
    path = shutil.which(name)
    if path is None:
        missing(name)
        raise AssertionError
    return path


def missing(name: str) -> None:
    """Skips, visibly; fails where `STAGEWIRE_REQUIRED_TOOLS` names it."""
    if name in os.environ.get(REQUIRED, "").split():
        pytest.fail(f"{name} is required here and is not installed")
    pytest.skip(f"{name} is not installed")


# --- queries ---


class Shown(NamedTuple):
    """One query of a dashboard."""

    dashboard: str
    panel: str
    expression: str


def shown() -> Iterator[Shown]:
    """Every query of every panel."""
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                yield Shown(dashboard["uid"], panel["title"], target["expr"])


def rules(name: str) -> list[dict[str, Any]]:
    """All rules of a file of `monitoring/prometheus`."""
    parsed = yaml.safe_load((PROMETHEUS / name).read_text(encoding="utf-8"))
    return [rule for group in parsed["groups"] for rule in group["rules"]]


_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_NOT_NAMES = {"by", "or", "and", "unless", "on", "ignoring", "without", "offset", "bool"}


def names_in(expression: str) -> set[str]:
    """The metrics of an expression: its words that are no function, keyword, label or duration."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|on|without|ignoring)\s*\([^)]*\)", " ", expression)
    words = [match for match in _WORD.finditer(bare) if not bare[match.end() :].lstrip().startswith("(")]
    return {match[0] for match in words} - _NOT_NAMES


def labels_in(expression: str) -> set[str]:
    """The labels that an expression selects or groups by."""
    matchers = re.findall(r"\{([^}]*)\}", expression)
    grouped = re.findall(r"\bby\s*\(([^)]*)\)", expression)
    selected = {name for one in matchers for name in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", one)}
    return selected | {name.strip() for one in grouped for name in one.split(",") if name.strip()}


# --- pages ---


def fetch(address: str, path: str, timeout_s: float = 5.0) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=timeout_s) as answer:
        return str(answer.read().decode())


def series_of(page: str) -> dict[str, float]:
    """Name and labels, as written, and the value of every line of a `/metrics` page."""
    lines = [line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


# --- the server ---


class PrometheusServer:
    """Prometheus in a process of its own, on a free port of loopback, with the project's rules and short times."""

    def __init__(self, folder: Path, sd_address: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        config = quickened(folder, sd_address)
        arguments = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
        arguments += [f"--web.listen-address={self.address}", "--log.level=warn"]
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen([tool("prometheus"), *arguments], stdout=log, stderr=log)
        self.wait(self._is_ready, 30, "the server is ready")

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        try:
            return "Ready" in fetch(self.address, "/-/ready")
        except OSError:
            return False

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait(10)

    def ask(self, path: str, **parameters: str) -> Any:
        answer = json.loads(fetch(self.address, f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query."""
        result = self.ask("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in result]

    def value(self, expression: str) -> float:
        """Of an expression with one series; NaN while there is none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return found[0][1] if found else math.nan

    def firing(self) -> set[tuple[str, str]]:
        """Name, and stage if there is one, of each alert that fires."""
        alerts = self.ask("alerts")["alerts"]
        return {(a["labels"]["alertname"], a["labels"].get("stage", "")) for a in alerts if a["state"] == "firing"}

    def wait(self, is_so: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_so():
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
            time.sleep(0.1)


def quickened(folder: Path, sd_address: str) -> Path:
    """The project's configuration with another broker and with times for tests; returns the file."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "500ms"}
    (discovery,) = config["scrape_configs"][0]["http_sd_configs"]
    discovery["url"] = f"http://{sd_address}/sd"
    discovery["refresh_interval"] = "1s"
    for name in config["rule_files"]:
        parsed = yaml.safe_load((PROMETHEUS / name).read_text(encoding="utf-8"))
        for group in parsed["groups"]:
            for rule in group["rules"]:
                if "for" in rule:
                    rule["for"] = "1s"
        (folder / name).write_text(yaml.safe_dump(parsed), encoding="utf-8")
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path
