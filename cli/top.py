"""Watch a running cluster: pipelines, what each stage spends its time on, hit rate, tokens a second, the slowest hop.

On a terminal the view renews itself until q or Ctrl-C; elsewhere one frame after the other is printed.
"""
# ruff: noqa: PLC0415  # rich is an extra, and slow to import; termios is not everywhere

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from stagewire.cli.endpoint import add_endpoint_flag, connect
from stagewire.cli.fitted import WIDE
from stagewire.cli.top_view import COMPUTE, ENGINE, IDLE, frame
from stagewire.cli.visible import print_lines, visible_line
from stagewire.wire.errors import ErrorCode, SettingsError, StagewireError
from stagewire.wire.extras import install_command

if TYPE_CHECKING:
    from rich.text import Text

    from stagewire.client import Client

EXAMPLES = """\
examples:
  stagewire top
  stagewire top --interval 5
  stagewire top --once
"""
_LEAST_INTERVAL_S = 1.0


def configure(parser: argparse.ArgumentParser) -> None:
    add_endpoint_flag(parser)
    parser.add_argument(
        "--interval", type=float, default=_LEAST_INTERVAL_S, metavar="SECONDS",
        help="time between two frames, 1 or more: stages tell every half second what they did (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--once", action="store_true", help="print one frame, of one interval, and end")


def run(options: argparse.Namespace) -> int:
    if not options.interval >= _LEAST_INTERVAL_S:
        detail = f"--interval {options.interval:g}: must be at least {_LEAST_INTERVAL_S:g} second"
        raise SettingsError(detail, ErrorCode.INVALID_SETTING)
    with connect(options) as client:
        if options.once:
            _show_once(client, options.interval)
        elif sys.stdout.isatty() and find_spec("rich"):
            _show_live(client, options.interval)
        else:
            if sys.stdout.isatty():
                print(f"for a view that renews itself: {install_command('cli')}", file=sys.stderr)
            follow(client, options.interval, lambda lines: print_lines([*lines, ""]), _slept)
    return 0


def _show_once(client: Client, interval_s: float) -> None:
    before = client.status()
    time.sleep(interval_s)
    print_lines(frame(before, client.status(), _width()))


def follow(client: Client, interval_s: float, show: Callable[[list[str]], None], wait: Callable[[float], bool]) -> None:
    """Frame after frame until `wait` says so; while the broker does not answer, that is what is shown."""
    before = client.status()
    while not wait(interval_s):
        try:
            after = client.status()
        except StagewireError as error:
            show([f"{error.detail}; asking again every {interval_s:g} s"])
            continue
        show(frame(before, after, _width()))
        before = after


def _width() -> int:
    """Of the terminal as it is now, or of COLUMNS."""
    return shutil.get_terminal_size((WIDE, 24)).columns


def _slept(seconds: float) -> bool:
    """A wait that only Ctrl-C ends for good."""
    time.sleep(seconds)
    return False


# --- on a terminal ---


def _show_live(client: Client, interval_s: float) -> None:
    from rich.live import Live

    with _quit_key() as is_quit, Live(screen=True, auto_refresh=False) as live:
        live.update(_coloured(["asking the broker; q quits"]), refresh=True)
        follow(client, interval_s, lambda lines: live.update(_coloured([*lines, "q quits"]), refresh=True), is_quit)


def _coloured(lines: list[str]) -> Text:
    from rich.text import Text

    text = Text("\n".join(visible_line(line) for line in lines), no_wrap=True, overflow="ellipsis")
    for marks, style in ((COMPUTE, "green"), (ENGINE, "yellow"), (IDLE, "bright_black")):
        text.highlight_regex(f"{marks}+", style)
    text.highlight_regex(r"(?m)silent for .*$|^missing: .*$", "bold red")
    text.highlight_regex(r"(?m)^pipeline .*$", "bold")
    return text


@contextlib.contextmanager
def _quit_key() -> Iterator[Callable[[float], bool]]:
    """Yields a wait of so many seconds that tells whether q was pressed; Ctrl-C interrupts it as always."""
    if not sys.stdin.isatty():
        yield _slept
        return
    import select
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    settings = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def is_quit(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            # Past Python's buffer, which would hide a key that comes right behind another.
            if select.select([descriptor], [], [], left_s)[0] and os.read(descriptor, 1) in (b"q", b"Q", b""):
                return True
        return False

    try:
        yield is_quit
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)
