"""What a chat is to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stagewire.cli.chat.core.choices import Choices
from stagewire.cli.chat.core.conversation import Message


@dataclass(frozen=True, slots=True)
class Tell:
    """Lines for the person; they are no part of an answer."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """Have the model answer the last of these messages."""

    messages: tuple[Message, ...]
    choices: Choices


@dataclass(frozen=True, slots=True)
class ReadFile:
    """Gives `FileRead`, or `FileTrouble`."""

    path: str


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Write a conversation, over another one at most; gives `FileTrouble` if that cannot be."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Leave:
    """End with this exit code."""

    exit_code: int


Instruction: TypeAlias = Tell | Ask | ReadFile | WriteFile | Leave
