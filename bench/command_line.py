"""What both commands share: progress on standard error, results on standard output and in their files."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from bench.llama_side import LlamaFailedError
from bench.page import page, write_page
from bench.record import Record, read_machines
from stagewire.model.catalogue import DEFAULT_MODEL
from stagewire.wire.errors import StagewireError


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a known name, or a .gguf file (default: %(default)s)")
    parser.add_argument("--precision", metavar="P", help="of Stagewire's stages (default: theirs)")
    parser.add_argument("--runs", type=positive, metavar="N", help="turns of each side in a round (default: 5)")
    parser.add_argument("--quick", action="store_true", help="fewer runs, none repeated; writes no file")
    parser.add_argument("--resume", action="store_true", help="go on with the run that was interrupted")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of the page")


def clocked_progress() -> Callable[[str], None]:
    """Lines on standard error, each with the minutes and seconds since the start."""
    started = time.monotonic()

    def show(line: str) -> None:
        seconds = int(time.monotonic() - started)
        print(f"{seconds // 60:3d}:{seconds % 60:02d}  {line}", file=sys.stderr, flush=True)

    return show


def record_of(command: str, options: argparse.Namespace, progress: Callable[[str], None]) -> Record:
    """What a quick look finds is not kept; anything else is on the page as soon as it is in the files."""
    return Record(
        command,
        progress,
        is_kept=not options.quick,
        is_resumed=options.resume,
        publish=lambda: write_page(read_machines()),
    )


def finish(record: Record, options: argparse.Namespace) -> None:
    """Ends the run and prints what is known of this machine."""
    machine = record.finish()
    print(json.dumps(asdict(machine.results), indent=1) if options.json else page([machine]))


def exit_code(run: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> int:
    """Runs a command; what it cannot do is said in a line. Asked to terminate, it stops as at Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(options)
    except (StagewireError, LlamaFailedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; --resume goes on behind the last row", file=sys.stderr)
        return 130
    return 0


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


def names_of(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """The type of a flag that takes some of `known`, with commas between."""

    def names(text: str) -> tuple[str, ...]:
        given = tuple(text.split(","))
        if unknown := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected some of {', '.join(known)}")
        return given

    return names
