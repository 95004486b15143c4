"""What `broker` and `stage` share as processes: flags, log lines, signals, and saying that they are ready."""

# ruff: noqa: PLC0415  # imports wait until they are needed: `--help` answers at once, `broker` loads no torch
from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from stagewire.cli.characters import path_of
from stagewire.cli.failure import EXIT_INTERRUPTED

LOG_LEVELS = ("debug", "info", "warning", "error")


def add_process_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default="info",
        help="one key=value line per event on stderr (default: info)",
    )
    group = parser.add_argument_group("for whoever starts this process")
    group.add_argument("--announce", type=path_of, metavar="FILE", help="write FILE (JSON) when ready")
    group.add_argument(
        "--parent-pipe",
        type=int,
        metavar="FD",
        help="end when the other end of this inherited pipe is closed",
    )


class Daemon:
    """This process as its command line wants it: logged, watched, ended cleanly by SIGTERM and Ctrl-C.

    `exit_code` is what the process shall end with, once `stop` is set.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.stop = threading.Event()
        self.exit_code = 0
        self._announce: Path | None = options.announce
        _log_to_stderr(options.log_level)

        if options.parent_pipe is not None:
            from stagewire.cluster.watchdog import end_with_parent

            end_with_parent(options.parent_pipe)

    def ready(self, facts: Mapping[str, str]) -> None:
        """Tells who waits for it. Until now a signal ended the process at once: there was nothing to tell."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        if self._announce is not None:
            from stagewire.cluster.announcement import announce

            announce(self._announce, facts)

    def _on_signal(self, number: int, _frame: object) -> None:
        self.exit_code = EXIT_INTERRUPTED if number == signal.SIGINT else 0
        self.stop.set()
        # The second Ctrl-C does not wait; SIGTERM is sent twice at times, as by `timeout`, and once is enough.
        signal.signal(number, signal.SIG_DFL if number == signal.SIGINT else signal.SIG_IGN)


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter("time=%(asctime)s.%(msecs)03d level=%(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])
