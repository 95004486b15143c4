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
from stagewire.wire.snapshots import SnapshotAction

if TYPE_CHECKING:
    from stagewire.client import Client
    from stagewire.wire.snapshots import SnapshotInfo, Snapshots

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
  stagewire snapshot list --all
  stagewire snapshot free --all-of anonymous-1fd5af9b5e9cf16e

`save` takes the text as it is, as `generate --raw` does; with --system, as the system message of chats and of
`generate --system`. A name that is taken is replaced. "decodes at once": a prompt that is equal gets its first token
without any computing.

Snapshots belong to a client: `--client-id` says which, and only one client of a name can be there at a time. They last
as long as the pipeline that holds them; those of a client without a name of its own go some minutes after it. `list
--all` shows whose snapshots there are, and what freeing one would give; `free NAME --of CLIENT` and `free --all-of
CLIENT` free another client's. `export` has every stage write a file into its --snapshot-directory (of `stagewire up`
and `stagewire stage`); `import` brings that back, later, for any client, and into any pipeline with the same model,
precision and cut.
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
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--all", action="store_true", help="with list: the snapshots of all clients")
    others.add_argument("--of", metavar="CLIENT", help="with list, describe, free: the snapshots of that client")
    others.add_argument("--all-of", metavar="CLIENT", help="with free: all snapshots of that client")
    parser.add_argument("--system", action="store_true", help="with save: the prompt is a chat's system message")
    add_endpoint_flag(parser)
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(options: argparse.Namespace) -> int:
    _check(options)
    is_for_others = options.all or options.of or options.all_of
    with connect(options, client_id=None if is_for_others else options.client_id) as client:
        snapshots = _perform(client, options)
    if options.action == "free" and not snapshots.num_freed and not snapshots.silent:
        raise _nothing(options)
    shown = describe(snapshots, with_owner=options.all)
    print_lines([json.dumps(asdict(snapshots))] if options.json else shown)
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
        case "free" if options.all_of:
            return client.free_all_snapshots(owner=options.all_of)
        case "free":
            return client.free_snapshot(options.name, owner=options.of or "")
        case "list" if options.all:
            return client.all_snapshots()
    snapshots = client.snapshots(owner=options.of or "")
    if options.action != "describe":
        return snapshots
    items = tuple(one for one in snapshots.items if one.name == options.name)
    if not items:
        raise _nothing(options)
    return replace(snapshots, items=items)


def _nothing(options: argparse.Namespace) -> StagewireError:
    owner = repr(options.of or options.all_of or options.client_id)
    what = "there are no snapshots" if options.name is None else f"there is no snapshot {options.name!r}"
    return StagewireError(f"{what} of client {owner}", ErrorCode.SNAPSHOT_NOT_FOUND)


def _check(options: argparse.Namespace) -> None:
    words = () if options.action == "free" and options.all_of else _WORDS[options.action]
    for flag, value, actions in (
        ("--all", options.all, ("list",)),
        ("--of", options.of, ("list", "describe", "free")),
        ("--all-of", options.all_of, ("free",)),
    ):
        if value not in (None, False) and options.action not in actions:
            raise SettingsError(f"{flag} goes with {', '.join(actions)}, not with {options.action}")
        if value == "":
            raise SettingsError(f"{flag} needs the name of a client; `stagewire snapshot list --all` shows them")
    num_given = sum(value is not None for value in (options.name, options.value))
    if not len([word for word in words if word[0] != "["]) <= num_given <= len(words):
        raise SettingsError(" ".join(["expected: stagewire snapshot", options.action, *words]))


def describe(snapshots: Snapshots, *, with_owner: bool = False) -> list[str]:
    """The answer in lines for people; `with_owner` where they are of several clients."""
    lines = [_line(one, with_owner) for one in snapshots.items]
    if snapshots.order.action is SnapshotAction.FREE_ALL:
        lines.append(f"freed {snapshots.num_freed}")
    lines += [f"{stage_id}: no answer" for stage_id in snapshots.silent]
    return lines or ["no snapshots"]


def _line(one: SnapshotInfo, with_owner: bool) -> str:
    at_once = ", decodes at once" if one.has_logits else ""
    own = "" if one.num_own_blocks == one.num_blocks else f", {one.num_own_blocks} of them its own"
    left = "" if one.expires_s is None else f", client gone, freed in {one.expires_s:.0f} s"
    owner = f"{one.client_id} " if with_owner else ""
    size = f"{counted(one.num_tokens, 'token')} in {counted(one.num_blocks, 'block')}"
    return f"{owner}{one.name}: {size}{own}{at_once}, pipeline {one.pipeline}{left}"
