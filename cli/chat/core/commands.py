"""What a line of a chat asks for: a command, or a text for the model."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Say:
    """A text for the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """One of `COMMANDS`, by its name, and what stands behind it; blanks around that are gone."""

    name: str
    argument: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Begins with a slash and is no command."""

    word: str
    meant: str | None


@dataclass(frozen=True, slots=True)
class _Entry:
    form: str
    what: str


COMMANDS = {
    "help": _Entry("/help", "this list"),
    "retry": _Entry("/retry", "ask the last question again; the new answer replaces the old one"),
    "reset": _Entry("/reset", "forget the conversation; the system message stays"),
    "system": _Entry("/system TEXT", "set the system message; without TEXT show it; /system - takes it away"),
    "set": _Entry("/set NAME VALUE", "change how answers are made; /set alone lists names and values"),
    "save": _Entry("/save FILE", "write the conversation, as JSON"),
    "load": _Entry("/load FILE", "go on with a conversation that was saved"),
    "quit": _Entry("/quit", "leave; so do Ctrl-D, and Ctrl-C twice"),
}
_SAME = {"exit": "quit"}
_WORDS = re.compile(r"/(\S*)\s*(.*)", re.DOTALL)
HELP = (
    *(f"{entry.form:16} {entry.what}" for entry in COMMANDS.values()),
    "//TEXT           send a text that begins with a slash",
    "Ctrl-C ends an answer, and what has come of it stays. A text of several lines that is pasted is one message.",
)


def parsed(line: str) -> Say | Command | Unknown | None:
    """What the line, or the pasted lines, ask for; None if there is nothing but blanks."""
    text = line.strip()
    if not text.startswith("/"):
        # The first line of a pasted text may be indented.
        return Say(line.strip("\r\n").rstrip() if "\n" in text else text) if text else None
    if text.startswith("//"):
        return Say(text[1:])
    found = _WORDS.fullmatch(text)
    assert found is not None
    word, argument = found.groups()
    name = _SAME.get(word.lower(), word.lower())
    if name in COMMANDS:
        return Command(name, argument)
    return Unknown(f"/{word}", next(iter(difflib.get_close_matches(name, COMMANDS, 1)), None))


def unquoted(path: str) -> str:
    """A file's name as a person may write it: with quotes around, or without though there are blanks in it."""
    return path[1:-1] if len(path) > 2 and path[0] == path[-1] and path[0] in "'\"" else path
