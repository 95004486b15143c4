"""Keep the beginning of prompts in the stages' memory, under a name, until it is freed.

Whoever sends a prompt that begins with the same tokens finds them, whatever else has been asked meanwhile.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from stagewire.cli.endpoint import add_endpoint_flag, connect
from stagewire.wire.errors import SettingsError

if TYPE_CHECKING:
    from stagewire.wire.snapshots import Snapshots

EXAMPLES = """\
examples:
  stagewire snapshot save rules "You are a helpful assistant. Answer in one sentence."
  stagewire snapshot list
  stagewire snapshot free rules

`save` takes the text as it is, without a chat template. Snapshots belong to a client: `--client-id` says which, and
only one client of a name can be there at a time. They last as long as the pipeline that holds them.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["save", "list", "free"], help="what to do")
    parser.add_argument("name", nargs="?", help="of the snapshot; for save and free")
    parser.add_argument("prompt", nargs="?", help="what to keep; for save")
    parser.add_argument(
        "--client-id", metavar="NAME", default="stagewire-cli", help="whose snapshots (default: %(default)s)"
    )
    add_endpoint_flag(parser)
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(options: argparse.Namespace) -> int:
    _check(options)
    with connect(options, client_id=options.client_id) as client:
        if options.action == "save":
            client.session().snapshot(options.name, options.prompt)
        snapshots = client.free_snapshot(options.name) if options.action == "free" else client.snapshots()
    print(json.dumps(asdict(snapshots)) if options.json else "\n".join(describe(snapshots)))
    return 1 if snapshots.silent else 0


def _check(options: argparse.Namespace) -> None:
    wanted = {"save": 2, "free": 1, "list": 0}[options.action]
    given = sum(value is not None for value in (options.name, options.prompt))
    if given != wanted:
        words = ["", " NAME", " NAME PROMPT"][wanted]
        raise SettingsError(f"expected: stagewire snapshot {options.action}{words}")


def describe(snapshots: Snapshots) -> list[str]:
    """The answer in lines for people."""
    lines = [f"{one.name}: {one.num_tokens} tokens, pipeline {one.pipeline}" for one in snapshots.items]
    lines += [f"{stage_id}: no answer" for stage_id in snapshots.silent]
    return lines or ["no snapshots"]
