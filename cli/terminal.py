"""How the command speaks while it works: progress on stderr, with a spinner on a terminal."""
# ruff: noqa: PLC0415  # rich is an extra, and slow to import

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from stagewire.cli.visible import visible_line

if TYPE_CHECKING:
    from rich.status import Status


@contextlib.contextmanager
def progress_lines() -> Iterator[Callable[[str], None]]:
    """Yields a function that is given one line per step; stdout stays free for results."""
    spinner = _spinner()
    if spinner is None:
        yield lambda line: print(visible_line(line), file=sys.stderr, flush=True)
        return

    def show(line: str) -> None:
        spinner.console.print(visible_line(line), style="dim", markup=False, highlight=False)

    with spinner:
        yield show


def _spinner() -> Status | None:
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    return Console(stderr=True).status("working, Ctrl-C stops")


def leave_on_sigterm() -> None:
    """SIGTERM then leaves with the code that shells expect; what runs is ended, and the terminal is as it was."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


class Terminated(KeyboardInterrupt):
    """SIGTERM: everything ends as at Ctrl-C, but for the exit code."""


def interrupt_on_sigterm() -> None:
    """SIGTERM then ends the command like Ctrl-C: with everything that it started stopped first."""

    def interrupt(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # it is sent twice at times, as by `timeout`; once is enough
        raise Terminated

    signal.signal(signal.SIGTERM, interrupt)
