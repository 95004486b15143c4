"""`stagewire alerts`: rules whose runbook links lead somewhere."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from support.watching import PROMETHEUS, tool

from stagewire.cli.main import main

Capture = pytest.CaptureFixture[str]


def links(text: str) -> list[str]:
    rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    return [rule["annotations"]["runbook_url"] for rule in rules]


def test_without_an_address_the_rules_are_those_of_the_repository(capsys: Capture) -> None:
    """As they are checked and tested there."""
    assert main(["alerts"]) == 0
    text = capsys.readouterr().out
    assert text == (PROMETHEUS / "alert_rules.yml").read_text(encoding="utf-8")
    assert all(link.startswith("docs/operations.md#") for link in links(text))


@pytest.mark.parametrize(
    "docs_url",
    [
        "https://wiki.example.org/stagewire/docs",
        "http://127.0.0.1:8000",
        "https://host/a%20b/",
        "http://[::1]:80/docs//",
    ],
)
def test_every_alert_links_to_its_section_below_the_address(docs_url: str, capsys: Capture, tmp_path: Path) -> None:
    """And Prometheus takes the file."""
    assert main(["alerts"]) == 0
    plain = links(capsys.readouterr().out)
    assert main(["alerts", "--docs-url", docs_url]) == 0
    text = capsys.readouterr().out
    assert links(text) == [link.replace("docs/", docs_url.rstrip("/") + "/", 1) for link in plain]
    (tmp_path / "rules.yml").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [tool("promtool"), "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "docs_url",
    ["docs", "", "https://", "ftp://host/docs", "javascript:alert(1)", "https://host/a b", "https://host/\n- x: y",
     "https://host/{{ 1 }}", "https://host/#x", "http://host:port/", 'https://host/"'],
)  # fmt: skip
def test_what_is_no_address_is_refused_in_one_line(docs_url: str, capsys: Capture) -> None:
    """It would make a link that leads nowhere, or another file than was meant."""
    assert main(["alerts", "--docs-url", docs_url]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    error, hint = told.err.splitlines()
    assert error.startswith("error: docs_url=") and "as in https://HOST/docs" in error
    assert "stagewire alerts --help" in hint
