"""A command on a pseudo-terminal of its own: what a person would type, and what the terminal would be sent."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

STAGEWIRE = (sys.executable, "-m", "stagewire")
CTRL_C, CTRL_D, ENTER = "\x03", "\x04", "\r"
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
_WAIT_S = 60.0


class Terminal:
    """The command's controlling terminal, of so many columns; Ctrl-C typed there interrupts it. `kind` is its TERM."""

    def __init__(self, command: Sequence[str], columns: int, kind: str) -> None:
        self._controller, terminal = pty.openpty()
        self.resize(columns)
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *command], stdin=terminal, stdout=terminal, stderr=terminal,
            start_new_session=True, env=environment | {"TERM": kind},
        )  # fmt: skip
        os.close(terminal)
        self.shown = ""
        self._seen = 0

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._controller, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._controller, text.encode())

    def paste(self, text: str) -> None:
        """As terminals mark it."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def until(self, pattern: str) -> str:
        """Reads until the pattern has come; returns what came since the last time, to its end."""
        deadline = time.monotonic() + _WAIT_S
        while (found := re.compile(pattern, re.DOTALL).search(self.shown, self._seen)) is None:
            assert time.monotonic() < deadline, f"{pattern!r} did not come: {self.shown[self._seen :]!r}"
            assert self._read(), f"{pattern!r} did not come before the end: {self.shown[self._seen :]!r}"
        begin, self._seen = self._seen, found.end()
        return self.shown[begin : self._seen]

    def until_prompt(self) -> str:
        """What is shown before the next prompt of the line editor, which then waits: a signal now is heard at once."""
        shown = self.until(r"\x1b\[\?2004h> ")
        self.idle()
        return shown

    def idle(self) -> None:
        """Until the command, which has shown a prompt, waits."""
        deadline = time.monotonic() + _WAIT_S
        while psutil.Process(self.process.pid).status() != psutil.STATUS_SLEEPING:
            assert time.monotonic() < deadline

    def exit_code(self) -> int:
        """When the command has ended; `shown` is whole then."""
        deadline = time.monotonic() + _WAIT_S
        while self._read():
            assert time.monotonic() < deadline
        return self.process.wait(_WAIT_S)

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed, as it does unless a line editor has it."""
        return bool(termios.tcgetattr(self._controller)[3] & termios.ECHO)

    def _read(self) -> bool:
        """Whether the command still has the terminal."""
        if select.select([self._controller], [], [], 0.5)[0]:
            try:
                self.shown += os.read(self._controller, 65536).decode(errors="replace")
            except OSError:  # nobody has the other side
                return False
        return True

    def close(self) -> None:
        self.process.kill()
        self.process.wait(5)
        os.close(self._controller)


@contextmanager
def on_terminal(
    *arguments: str, columns: int = 200, kind: str = "xterm", command: Sequence[str] = STAGEWIRE
) -> Iterator[Terminal]:
    """`stagewire` with these arguments; it is killed at the end if it still runs."""
    terminal = Terminal([*command, *arguments], columns, kind)
    try:
        yield terminal
    finally:
        terminal.close()
