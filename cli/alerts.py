"""Print the alert rules for Prometheus; with --docs-url, each links to what to do about it."""
# ruff: noqa: PLC0415  # imports wait until they are needed

from __future__ import annotations

import argparse

from stagewire.wire.errors import SettingsError

EXAMPLES = """\
examples:
  stagewire alerts > alert_rules.yml
  stagewire alerts --docs-url https://wiki.example.org/stagewire/docs > alert_rules.yml

Each alert has an annotation `runbook_url`, which Alertmanager and Grafana show as a link. Without --docs-url it is a
path in the repository, docs/operations.md#..., since nobody but you knows where you keep the documents.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--docs-url", metavar="URL",
        help="where the folder docs/ can be read, with operations.md in it (default: a path in the repository)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    from stagewire.monitoring.alert_rules import alert_rules

    try:
        rules = alert_rules(options.docs_url)
    except ValueError as error:
        raise SettingsError(f"docs_url={error}") from error
    print(rules, end="")
    return 0
