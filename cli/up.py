"""Serve a model on this machine: start a broker and stages, and keep them until Ctrl-C."""
# ruff: noqa: PLC0415  # imports wait until they are needed

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, NoReturn

from stagewire.cli.failure import EXIT_INTERRUPTED
from stagewire.cli.plan import add_plan_flags, planned_cluster
from stagewire.cli.terminal import Terminated, interrupt_on_sigterm, progress_lines
from stagewire.wire.address import DEFAULT_FRONTEND, ENDPOINT_VARIABLE
from stagewire.wire.errors import SettingsError

if TYPE_CHECKING:
    from stagewire.cluster.local import LocalCluster
    from stagewire.cluster.spec import BrokerSpec

EXAMPLES = """\
examples:
  stagewire up
  stagewire up --stages 3 --threads 2
  stagewire up --split 0:12,12:30 --device cuda:0,cpu
  stagewire up --model ./model.gguf --replicas 2 --frontend-port 7170
  stagewire up --kv-tokens 65536 --disk-directory ~/.cache/stagewire/kv
  stagewire up --wire-condition hop=delay=10ms,bandwidth=100mbit

A process that ends by itself is started again, three times at most; the fourth time all stop. Logs: --log-dir.
"""
_MAX_RESTARTS = 3
_LOOK_S = 0.5
_MAX_PORT = 65_533


def configure(parser: argparse.ArgumentParser) -> None:
    add_plan_flags(parser)
    parser.add_argument(
        "--frontend-port", type=int, default=7070, metavar="PORT",
        help="where clients connect; stages use the port after it, Prometheus the next (default: %(default)s; 0: any)",
    )  # fmt: skip
    parser.add_argument(
        "--snapshot-expiry-s", type=float, metavar="SECONDS",
        help="free snapshots of clients without a name so long after these have left (default: 300)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    from stagewire.cluster.resources import check_ports

    interrupt_on_sigterm()
    with contextlib.ExitStack() as running:
        with progress_lines() as progress:
            broker = _broker(options.frontend_port, options.snapshot_expiry_s)
            check_ports(broker)  # before a model is fetched
            cluster = running.enter_context(planned_cluster(options, progress, broker))
        try:
            _greet(cluster)
            _keep_alive(cluster)
        except KeyboardInterrupt as interrupt:
            print("stopping", flush=True)
            # SIGTERM is how a service manager ends what has done its work.
            return 0 if isinstance(interrupt, Terminated) else EXIT_INTERRUPTED


def _broker(frontend_port: int, snapshot_expiry_s: float | None) -> BrokerSpec:
    if not 0 <= frontend_port <= _MAX_PORT:
        raise SettingsError(f"frontend_port={frontend_port}: must be between 0 and {_MAX_PORT}; two more follow it")
    from stagewire.broker.settings import BrokerSettings
    from stagewire.cluster.spec import BrokerSpec

    if snapshot_expiry_s is not None:
        BrokerSettings(snapshot_expiry_s=snapshot_expiry_s)
    ports = (frontend_port, frontend_port + 1) if frontend_port else ("*", "*")
    frontend, control = (f"tcp://127.0.0.1:{port}" for port in ports)
    metrics_port = frontend_port and frontend_port + 2
    return BrokerSpec(
        frontend_endpoint=frontend,
        control_endpoint=control,
        metrics_port=metrics_port,
        snapshot_expiry_s=snapshot_expiry_s,
    )


def _greet(cluster: LocalCluster) -> None:
    is_default = cluster.endpoint == DEFAULT_FRONTEND and not os.environ.get(ENDPOINT_VARIABLE)
    option = "" if is_default else f" --endpoint {cluster.endpoint}"
    print(f"serving {cluster.model.card.name} at {cluster.endpoint}; talk to it from another terminal:")
    card = cluster.model.card
    if card.tokenizer is not None:
        raw = "" if card.chat_template else " --raw"
        print(f'  stagewire generate{option}{raw} "Why is the sky blue?"')
    if card.tokenizer is not None and card.chat_template:
        print(f"  stagewire chat{option}")
    print(f"  stagewire status{option}")
    if cluster.metrics_address:
        print(
            f"metrics: http://{cluster.metrics_address}/metrics, and for Prometheus http://{cluster.metrics_address}/sd"
        )
    print("Ctrl-C stops it", flush=True)


def _keep_alive(cluster: LocalCluster) -> NoReturn:
    """Starts again what ends by itself.

    Raises:
        ClusterError: a process ended too often.
    """
    num_restarts: Counter[str] = Counter()
    while True:
        time.sleep(_LOOK_S)
        for child in cluster.ended:
            num_restarts[child.name] += 1
            if num_restarts[child.name] > _MAX_RESTARTS:
                raise child.failure(f"{child.describe_end()}, for the {_MAX_RESTARTS + 1}th time")
            print(f"{child.name} {child.describe_end()}; starting it again", file=sys.stderr, flush=True)
            cluster.relaunch(child)
