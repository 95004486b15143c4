"""What happens to a chat: what a person does, and what becomes of what was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stagewire.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Line:
    """A person entered it, or a pipe held it; several lines if they were pasted."""

    text: str


@dataclass(frozen=True, slots=True)
class NotText:
    """A line whose bytes are no text."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Ctrl-C, and no answer was coming."""


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """Ctrl-D, or the end of a pipe."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer has ended: as it should, cut off, or stopped with Ctrl-C."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer came, or it broke off."""

    code: ErrorCode
    detail: str


@dataclass(frozen=True, slots=True)
class Overflowed:
    """The conversation is too long; without `num_turns` of the oldest it would fit. None: nothing helps."""

    num_turns: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class FileRead:
    """What a file held that was to be read."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class FileTrouble:
    """A file could not be read, or not be written; says which, and why."""

    detail: str


Event: TypeAlias = Line | NotText | Interrupt | EndOfInput | Answered | Failed | Overflowed | FileRead | FileTrouble
