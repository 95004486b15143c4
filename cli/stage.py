"""Run one stage: it holds some layers of a model and joins the broker's pipelines."""

# ruff: noqa: PLC0415  # imports wait until they are needed: `--help` answers at once, `broker` loads no torch
from __future__ import annotations

import argparse

from stagewire.cli.characters import path_text
from stagewire.cli.daemon import Daemon, add_process_flags
from stagewire.cli.options import add_other_settings, add_settings, chosen
from stagewire.wire.address import DEFAULT_CONTROL
from stagewire.wire.errors import ErrorCode, SettingsError

EXAMPLES = """\
examples:
  stagewire stage --layers 0:12
  stagewire stage --layers 12: --device cuda:0
  stagewire stage --model ./model.gguf --layers 0:16 --threads 4 --control-endpoint 7171

SIGTERM or Ctrl-C stops it.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    from stagewire.model.catalogue import DEFAULT_MODEL
    from stagewire.stage.settings import StageSettings

    parser.add_argument(
        "--model",
        type=path_text,
        default=DEFAULT_MODEL,
        help="a name from `stagewire models`, or a .gguf file (default: %(default)s)",
    )
    parser.add_argument(
        "--layers", type=_layers, metavar="START:END", default=(0, None),
        help="the layers to hold, the end not included; `12:` goes to the last (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--control-endpoint", metavar="ADDRESS", default=DEFAULT_CONTROL,
        help="where the broker serves stages, as 7071 or host:7071 (default: %(default)s)",
    )  # fmt: skip
    described = {
        "stage_id": "a name for people, unique at the broker (default: random)",
        "device": "where the layers are computed: cpu, or cuda:0",
        "threads": "CPU threads for computing",
        "precision": "of weights and products",
        "kv_tokens": "tokens whose keys and values fit into memory",
        "cache_tokens": "of these, as many may stay in the prefix cache when no request uses them; 0: no cache",
        "disk_directory": "also keep the cache in files there, for later and for the next start (default: no files)",
        "disk_bytes": "how much that directory may hold",
        "snapshot_directory": "where snapshots are exported to and imported from (default: neither)",
        "snapshot_bytes": "how much that directory may hold",
        "metrics_port": "where Prometheus finds /metrics, on this machine; 0: any free port; off: none",
        "bind": "where this stage listens for its neighbours",
    }
    add_settings(parser, StageSettings, described)
    shown = {*described, "model", "layer_start", "layer_end", "control_endpoint"}
    add_other_settings(parser, StageSettings, "limits, times and simulated networks", without=shown)
    add_process_flags(parser)


def run(options: argparse.Namespace) -> int:
    from stagewire.stage.settings import StageSettings

    layer_start, layer_end = options.layers
    settings = chosen(StageSettings, options, layer_start=layer_start, layer_end=layer_end)
    daemon = Daemon(options)
    # Only now PyTorch: a wrong setting is refused at once, and the watchdog runs while it loads.
    from stagewire.stage.worker import run_stage

    run_stage(settings, lambda: daemon.ready({"stage_id": settings.stage_id}), daemon.stop)
    return daemon.exit_code


def _layers(text: str) -> tuple[int, int | None]:
    start, colon, end = text.partition(":")
    if not colon or not start.isdecimal() or not (end.isdecimal() or not end):
        raise SettingsError(f"layers={text!r}: expected START:END, as in 0:12", ErrorCode.INVALID_LAYER_RANGE)
    return int(start), int(end) if end else None
