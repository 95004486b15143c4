"""Where a chat's words go: answers to stdout, all else to stderr, so that a pipe gets answers alone."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable

from stagewire.cli.chat.core.wrap import WordWrap
from stagewire.cli.visible import visible


class Screen:
    """On a terminal all is wrapped, and control characters of answers are shown; elsewhere answers stay as they are."""

    def __init__(self) -> None:
        self._wrap = WordWrap() if sys.stdout.isatty() else None

    def show(self, text: str) -> None:
        """A piece of an answer."""
        self._write(text if self._wrap is None else self._wrap.push(visible(text), _columns()))

    def end_answer(self) -> None:
        """What was held back, and a line end."""
        if self._wrap is not None:
            rest, self._wrap = self._wrap.finish(_columns()), WordWrap()
            self._write(rest)
        self._write("\n")

    @staticmethod
    def tell(lines: Iterable[str]) -> None:
        """Lines that are no answer."""
        is_terminal = sys.stderr.isatty()
        for line in lines:
            print(_wrapped(visible(line)) if is_terminal else visible(line), file=sys.stderr, flush=True)

    @staticmethod
    def _write(text: str) -> None:
        if text:
            print(text, end="", flush=True)


def _wrapped(line: str) -> str:
    wrap, columns = WordWrap(), _columns()
    return wrap.push(line, columns) + wrap.finish(columns)


def _columns() -> int:
    return shutil.get_terminal_size().columns
