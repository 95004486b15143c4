"""Keep the beginning of prompts in the stages' memory, under a name, until it is freed; write it to files and back.

Whoever sends a prompt that begins with the same tokens finds them, whatever else has been asked meanwhile.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from stagewire.cli.endpoint import add_endpoint_flag, connect
from stagewire.cli.visible import print_lines
from stagewire.wire.counted import counted
from stagewire.wire.errors import ErrorCode, SettingsError, StagewireError

if TYPE_CHECKING:
    from stagewire.client import Client
    from stagewire.wire.snapshots import Snapshots

EXAMPLES = """\
examples:
  stagewire snapshot save rules --system "You are a helpful assistant. Answer in one sentence."
  stagewire snapshot save tale "Once upon a time there was a king."
  stagewire snapshot list
  stagewire snapshot describe rules --json
  stagewire snapshot rename rules short-rules
  stagewire snapshot export short-rules rules-v1
  stagewire snapshot import rules rules-v1
  stagewire snapshot free rules

`save` takes the text as it is, as `generate --raw` does; with --system, as the system message of chats and of
`generate --system`. A name that is taken is replaced. "decodes at once": a prompt that is equal gets its first token
without any computing.

Snapshots belong to a client: `--client-id` says which, and only one client of a name can be there at a time. They last
as long as the pipeline that holds them. `export` has every stage write a file into its --snapshot-directory (of
`stagewire up` and `stagewire stage`); `import` brings that back, later, for any client, and into any pipeline with the
same model, precision and cut.
"""

_WORDS = {
    "save": ("NAME", "PROMPT"),
    "list": (),
    "describe": ("NAME",),
    "rename": ("NAME", "NEW_NAME"),
    "export": ("NAME", "[FILE]"),
    "import": ("NAME", "FILE"),
    "free": ("NAME",),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=[*_WORDS], help="what to do")
    parser.add_argument("name", nargs="?", help="of the snapshot; for all but list")
    parser.add_argument("value", nargs="?", help="the prompt to save, the new name, or the file's name")
    parser.add_argument(
        "--client-id", metavar="NAME", default="stagewire-cli", help="whose snapshots (default: %(default)s)"
    )
    parser.add_argument("--system", action="store_true", help="with save: the prompt is a chat's system message")
    add_endpoint_flag(parser)
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(options: argparse.Namespace) -> int:
    _check(options)
    with connect(options, client_id=options.client_id) as client:
        snapshots = _perform(client, options)
    print_lines([json.dumps(asdict(snapshots))] if options.json else describe(snapshots))
    return 1 if snapshots.silent else 0


def _perform(client: Client, options: argparse.Namespace) -> Snapshots:
    match options.action:
        case "save" if options.system:
            client.session().snapshot(options.name, messages=[{"role": "system", "content": options.value}])
        case "save":
            client.session().snapshot(options.name, options.value)
        case "import":
            client.session().import_snapshot(options.name, options.value)
        case "rename":
            return client.rename_snapshot(options.name, options.value)
        case "export":
            return client.export_snapshot(options.name, options.value)
        case "free":
            before = client.snapshots()
            if not before.silent:
                _named(before, options.name)
            return client.free_snapshot(options.name)
    snapshots = client.snapshots()
    if options.action != "describe":
        return snapshots
    return _named(snapshots, options.name)


def _named(snapshots: Snapshots, name: str) -> Snapshots:
    """Those of the name alone.

    Raises:
        StagewireError: SNAPSHOT_NOT_FOUND, there is none.
    """
    items = tuple(one for one in snapshots.items if one.name == name)
    if not items:
        raise StagewireError(f"there is no snapshot {name!r} of this client", ErrorCode.SNAPSHOT_NOT_FOUND)
    return replace(snapshots, items=items)


def _check(options: argparse.Namespace) -> None:
    words = _WORDS[options.action]
    num_given = sum(value is not None for value in (options.name, options.value))
    if not len([word for word in words if word[0] != "["]) <= num_given <= len(words):
        raise SettingsError(" ".join(["expected: stagewire snapshot", options.action, *words]))


def describe(snapshots: Snapshots) -> list[str]:
    """The answer in lines for people."""
    lines = []
    for one in snapshots.items:
        at_once = ", decodes at once" if one.has_logits else ""
        size = f"{counted(one.num_tokens, 'token')} in {counted(one.num_blocks, 'block')}"
        lines.append(f"{one.name}: {size}{at_once}, pipeline {one.pipeline}")
    lines += [f"{stage_id}: no answer" for stage_id in snapshots.silent]
    return lines or ["no snapshots"]
