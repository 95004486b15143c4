"""Characters into and out of the command: what comes in is UTF-8 or refused, what goes out is shown as far as can be.

Python decodes by the locale, and ends with a traceback where bytes or characters do not fit it.
"""

from __future__ import annotations

import argparse
import codecs
import io
import os
import re
import sys
from pathlib import Path

from stagewire.wire.errors import SettingsError
from stagewire.wire.printable import printable

_SHOWN = "stagewire.shown"
_SUBSTITUTES = str.maketrans({
    "█": "#", "▒": "=", "░": ".", "→": "->", "…": "...", "\N{EN DASH}": "-", "\N{EM DASH}": "-",
    "\N{LEFT SINGLE QUOTATION MARK}": "'", "\N{RIGHT SINGLE QUOTATION MARK}": "'", "“": '"', "”": '"',
    "\N{NO-BREAK SPACE}": " ",
})  # fmt: skip
_NOT_TEXT = re.compile(r"[\ud800-\udfff]")
_UTF_16 = re.compile(r"\udcff\udcfe|\udcfe\udcff")
_EXCERPT_CHARS = 20


class PathText(str):
    """A word of the command line that is a path, or a model's name: its bytes need not be text."""

    __slots__ = ()


def path_text(given: str) -> PathText:
    """A path with `~` expanded, which shells leave alone in `--model=~/x.gguf`; as it is if there is no such home."""
    return PathText(os.path.expanduser(given))  # noqa: PTH111  # pathlib's raises where there is no home


def path_of(given: str) -> Path:
    return Path(path_text(given))


def prepare_streams() -> None:
    """Standard input is UTF-8 whatever the locale says; what output cannot encode is replaced.

    To be called before anything is read.
    """
    codecs.register_error(_SHOWN, _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_SHOWN)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")


def decode_texts(options: argparse.Namespace) -> None:
    """Makes every parsed option that is a text one, read as UTF-8 where the locale could not.

    Raises:
        SettingsError: its bytes are not UTF-8.
    """
    for name, value in vars(options).items():
        setattr(options, name, _decoded(value, name))


def read_text() -> str:
    """All of standard input.

    Raises:
        SettingsError: it is not UTF-8.
    """
    return checked_text(sys.stdin.read(), "standard input").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")


def read_line(prompt: str) -> str:
    """One line, as `input` reads it.

    Raises:
        SettingsError: it is not UTF-8.
        EOFError: there is none any more.
    """
    return checked_text(input(prompt), "the line")


def checked_text(text: str, where: str) -> str:
    """The same text.

    Raises:
        SettingsError: it holds bytes that are not UTF-8, and `where`.
    """
    found = _NOT_TEXT.search(text)
    if found is None:
        return text
    if _UTF_16.match(text):
        raise SettingsError(f"{where} looks like UTF-16, not UTF-8; convert it, as with `iconv -f utf-16 -t utf-8`")
    start = max(0, found.start() - _EXCERPT_CHARS)
    excerpt = printable(text[start : found.end() + _EXCERPT_CHARS])
    raise SettingsError(
        f"{where} is not UTF-8 at its character {found.start() + 1}: '{excerpt}'; convert it, as with "
        "`iconv -f latin1 -t utf-8`, or set the terminal to UTF-8"
    )


def _decoded(value: object, name: str) -> object:
    if isinstance(value, (list, tuple)):
        return type(value)(_decoded(item, name) for item in value)
    if type(value) is not str or _NOT_TEXT.search(value) is None:
        return value
    return checked_text(os.fsencode(value).decode("utf-8", "surrogateescape"), name)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end].translate(_SUBSTITUTES)
    shown = (printable(one) if _NOT_TEXT.match(one) else one if one.isascii() else "?" for one in wrong)
    return "".join(shown), error.end
