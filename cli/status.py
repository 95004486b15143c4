"""Show what the broker knows: stages, pipelines, the queue, and what is missing."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from stagewire.cli.endpoint import add_endpoint_flag, connect
from stagewire.cli.visible import print_lines
from stagewire.wire.counted import counted

if TYPE_CHECKING:
    from stagewire.wire.control import StageInfo
    from stagewire.wire.status import PipelineStatus, StageStatus, Status

EXAMPLES = """\
examples:
  stagewire status
  stagewire status --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_endpoint_flag(parser)
    parser.add_argument("--json", action="store_true", help="print the broker's whole report as JSON")


def run(options: argparse.Namespace) -> int:
    with connect(options) as client:
        status = client.status()
    print_lines([json.dumps(asdict(status))] if options.json else describe(status))
    return 0


def describe(status: Status) -> list[str]:
    """The report in lines for people."""
    requests = f"{counted(status.num_requests_running, 'request')} running, {status.num_requests_waiting} waiting"
    lines = [f"broker up {status.uptime_s:.0f} s; {counted(status.num_clients, 'client')}; {requests}"]
    for pipeline in status.pipelines:
        members = {stage.info.stage_id: stage for stage in status.stages}
        lines.append(_pipeline_line(pipeline))
        lines += [_stage_line(members[name]) for name in pipeline.stage_ids if name in members]
    spares = [stage for stage in status.stages if stage.pipeline is None]
    if spares:
        lines += ["in no pipeline", *(_stage_line(stage) for stage in spares)]
    lines.append(f"snapshots of anonymous clients go {status.snapshot_expiry_s:g} s after them")
    if status.waiting_for:
        lines.append(f"missing: {status.waiting_for}")
    return lines


def _pipeline_line(pipeline: PipelineStatus) -> str:
    load = f"{pipeline.num_requests} of {counted(pipeline.capacity, 'request')}"
    return f"pipeline {pipeline.epoch} {pipeline.state}, {load}"


def _stage_line(stage: StageStatus) -> str:
    info = stage.info
    step = "" if stage.step_age_s is None else f", in a step for {stage.step_age_s:.1f} s"
    return (
        f"  {info.stage_id}: {info.model_name} layers {info.layer_start}:{info.layer_end} of {info.num_layers}, "
        f"{info.weight_bytes / 1e6:.0f} MB {info.precision} by {_kernel(info)} on {info.device}, "
        f"{counted(info.threads, 'thread')}, "
        f"KV for {counted(info.num_blocks * info.block_size, 'token')}, heard {stage.silent_s:.1f} s ago{step}"
    )


def _kernel(info: StageInfo) -> str:
    name = "PyTorch" if info.kernel == "torch" else f"{info.kernel} kernels"
    return name if info.is_row_exact else f"{name} (not exact: tokens may depend on the batch)"
