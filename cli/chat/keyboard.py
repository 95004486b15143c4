"""Where the lines of a chat come from: a terminal, on which a paste of several lines is one message, or a pipe."""
# ruff: noqa: PLC0415  # not every Python has readline, and it takes the terminal over when it is imported

from __future__ import annotations

import contextlib
import os
import select
import sys

_REST_OF_PASTE_S = 0.05


class Keyboard:
    """Standard input, line by line.

    GNU readline marks what is pasted, and keeps it together. Where Python has another line editor or none, lines that
    are there already when the first one is read belong to it.
    """

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty()
        self._has_prompt = self.is_terminal and sys.stdout.isatty()
        self._marks_pastes = self._has_prompt and _readline_marks_pastes()

    def read(self, prompt: str) -> str:
        """The next line, or the pasted lines, without the last line end.

        Raises:
            EOFError: there are no more.
            UnicodeDecodeError: the line is not text; it is gone, and the next one can be read.
            KeyboardInterrupt: Ctrl-C; what was typed is gone.
        """
        if not self.is_terminal:
            return self._plain_line()
        if self._has_prompt:
            line = input(prompt)
        else:  # input() would write the prompt among the answers
            print(prompt, end="", file=sys.stderr, flush=True)
            line = self._plain_line()
        return line if self._marks_pastes else "\n".join([line, *self._rest_of_paste()])

    def _rest_of_paste(self) -> list[str]:
        lines: list[str] = []
        with contextlib.suppress(EOFError):
            while select.select([sys.stdin], [], [], _REST_OF_PASTE_S)[0]:
                lines.append(input() if self._has_prompt else self._plain_line())
        return lines

    @staticmethod
    def _plain_line() -> str:
        # Of bytes: text that cannot be decoded would take the lines behind it along.
        line = sys.stdin.buffer.readline()
        if not line:
            raise EOFError
        return line.decode(sys.stdin.encoding).removesuffix("\n").removesuffix("\r")


def _readline_marks_pastes() -> bool:
    """Line editing for `input`, where there is such; tells whether it can ask this terminal for marks."""
    try:
        import readline
    except ImportError:
        return False
    if "libedit" in (readline.__doc__ or "") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    readline.parse_and_bind("set enable-bracketed-paste on")  # Python switches it off
    return True
