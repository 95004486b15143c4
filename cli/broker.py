"""Run a broker: it admits requests, chains stages into pipelines, and never sees a token."""

# ruff: noqa: PLC0415  # imports wait until they are needed: `--help` answers at once, `broker` loads no torch
from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from stagewire.cli.daemon import Daemon, add_process_flags
from stagewire.cli.options import add_other_settings, add_settings, chosen

if TYPE_CHECKING:
    from stagewire.broker.loop import BrokerEndpoints

EXAMPLES = """\
examples:
  stagewire broker
  stagewire broker --frontend-endpoint 7170 --control-endpoint 7171
  stagewire broker --frontend-endpoint '127.0.0.1:*' --control-endpoint '127.0.0.1:*'

SIGTERM or Ctrl-C stops it; stages keep what they run and come back to the next broker on the same endpoints.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    from stagewire.broker.settings import BrokerSettings

    described = {
        "frontend_endpoint": "where clients connect, as 7070 or 127.0.0.1:7070; port * takes a free one",
        "control_endpoint": "where stages connect",
        "metrics_port": "where Prometheus finds /metrics and /sd, on this machine; 0: any free port; off: none",
        "feed_condition": "simulate a network to the heads, as in delay=10ms,bandwidth=100mbit",
    }
    add_settings(parser, BrokerSettings, described)
    add_other_settings(parser, BrokerSettings, "limits and times", without=described)
    add_process_flags(parser)


def run(options: argparse.Namespace) -> int:
    from stagewire.broker.loop import run_broker
    from stagewire.broker.settings import BrokerSettings

    daemon = Daemon(options)

    def on_ready(endpoints: BrokerEndpoints) -> None:
        daemon.ready({"frontend": endpoints.frontend, "control": endpoints.control, "metrics": endpoints.metrics})

    run_broker(chosen(BrokerSettings, options), on_ready, daemon.stop)
    return daemon.exit_code
