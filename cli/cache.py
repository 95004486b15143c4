"""Show what the stages keep in their prefix caches, or make them forget it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from stagewire.cli.endpoint import add_endpoint_flag, connect
from stagewire.cli.visible import print_lines
from stagewire.wire.counted import counted

if TYPE_CHECKING:
    from stagewire.wire.cache_reports import Caches, DiskCounts, StageCache

EXAMPLES = """\
examples:
  stagewire cache stats
  stagewire cache stats --json
  stagewire cache clear

`clear` forgets what no running request uses; requests that run keep what they have. Files of --disk-directory stay.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["stats", "clear"], help="what to do with the caches of all stages")
    add_endpoint_flag(parser)
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(options: argparse.Namespace) -> int:
    with connect(options) as client:
        caches = client.clear_caches() if options.action == "clear" else client.caches()
    print_lines([json.dumps(asdict(caches))] if options.json else describe(caches))
    return 1 if caches.silent else 0


def describe(caches: Caches) -> list[str]:
    """The answer in lines for people."""
    lines = [_line(stage, caches.clear) for stage in caches.stages]
    lines += [f"{stage_id}: no answer" for stage_id in caches.silent]
    return lines or ["no stage is there"]


def _line(stage: StageCache, is_clear: bool) -> str:
    size = stage.block_size
    if is_clear:
        forgotten = counted(stage.num_cleared * size, "token")
        return f"{stage.stage_id}: forgot {forgotten}, {_megabytes(stage, stage.num_cleared)}"
    told, kept = stage.statistics, stage.num_cached_blocks
    return (
        f"{stage.stage_id}: keeps {counted(kept * size, 'token')} ({_megabytes(stage, kept)}) of at most "
        f"{stage.max_cached_blocks * size}; requests use {stage.num_used_blocks * size}; "
        f"lookups: {counted(told.hits, 'hit')}, {counted(told.misses, 'miss')}; "
        f"tokens: {told.restored_tokens} restored, {told.recorded_tokens} recorded, "
        f"{told.evicted_blocks * size} given up{_files(stage.disk)}"
    )


def _files(disk: DiskCounts | None) -> str:
    if disk is None:
        return ""
    lost = f", {disk.num_dropped + disk.num_failed} not written, {disk.num_set_aside} damaged"
    return f"; files: {disk.num_written} written, {disk.num_read} read{lost}"


def _megabytes(stage: StageCache, num_blocks: int) -> str:
    return f"{num_blocks * stage.block_bytes / 1e6:.1f} MB"
