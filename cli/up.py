"""Serve a model on this machine: start a broker and stages, and keep them until Ctrl-C."""
# ruff: noqa: PLC0415  # imports wait until they are needed

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, NoReturn

from stagewire.cli.endpoint import DEFAULT_ENDPOINT
from stagewire.cli.plan import add_plan_flags, planned_cluster
from stagewire.cli.terminal import interrupt_on_sigterm, progress_lines
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


def run(options: argparse.Namespace) -> int:
    interrupt_on_sigterm()
    with contextlib.ExitStack() as running:
        with progress_lines() as progress:
            broker = _broker(options.frontend_port)
            cluster = running.enter_context(planned_cluster(options, progress, broker))
        try:
            _greet(cluster)
            _keep_alive(cluster)
        except KeyboardInterrupt:
            print("stopping", flush=True)
    return 0  # Ctrl-C is the way in which it is meant to end


def _broker(frontend_port: int) -> BrokerSpec:
    if not 0 <= frontend_port <= _MAX_PORT:
        raise SettingsError(f"frontend_port={frontend_port}: must be between 0 and {_MAX_PORT}; two more follow it")
    from stagewire.cluster.spec import BrokerSpec

    ports = (frontend_port, frontend_port + 1) if frontend_port else ("*", "*")
    frontend, control = (f"tcp://127.0.0.1:{port}" for port in ports)
    metrics_port = frontend_port and frontend_port + 2
    return BrokerSpec(frontend_endpoint=frontend, control_endpoint=control, metrics_port=metrics_port)


def _greet(cluster: LocalCluster) -> None:
    option = "" if cluster.endpoint == DEFAULT_ENDPOINT else f" --endpoint {cluster.endpoint}"
    print(f"serving {cluster.model.card.name} at {cluster.endpoint}; talk to it from another terminal:")
    print(f'  stagewire generate{option} "Why is the sky blue?"')
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
