"""Saved conversations on a disk: a file is read whole or not at all, and only a conversation is overwritten."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from stagewire.cli.chat.core.saved import NotAConversation, from_text

_MAX_BYTES = 1 << 26


class FileError(Exception):
    """A file cannot be read or written; says which, why, and what to do. On the disk nothing has changed."""


def read(path: str) -> str:
    """The text of a file.

    Raises:
        FileError: see there.
    """
    file = _file(path)
    try:
        if file.exists() and not file.is_file():
            raise FileError(f"{path}: is not a file")
        if file.stat().st_size > _MAX_BYTES:
            raise FileError(f"{path}: is larger than {_MAX_BYTES >> 20} MiB")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FileError(f"{path}: is not UTF-8, so it is no saved conversation") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise FileError(f"{path}: {_reason(error)}") from None


def write(path: str, text: str) -> Path:
    """Puts a conversation there in one step; returns where it lies.

    Raises:
        FileError: see there; among the reasons, there is something else in its place.
    """
    file = _file(path)
    try:
        if file.exists():
            _check_is_conversation(path, file)
        file = file.resolve()  # a link stays one
        beside = file.with_name(f".{file.name[:100]}.{os.getpid()}.part")
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(file)
        finally:
            with contextlib.suppress(OSError):
                beside.unlink()
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: {_reason(error)}") from None
    return file


def _check_is_conversation(path: str, file: Path) -> None:
    if not file.is_file():
        raise FileError(f"{path}: is not a file; choose another name")
    try:
        from_text(read(path) if file.stat().st_size else "[]")
    except NotAConversation:
        raise FileError(f"{path}: is there and is no saved conversation; choose another name") from None


def _file(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # there is no such user
        raise FileError(f"{path}: {error}") from None


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
