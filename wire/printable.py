"""Text as it may be shown: what a terminal would obey, or nobody could read, is escaped."""

from __future__ import annotations

_BYTE_0 = 0xDC00
"""Python has a byte that is not text as this code point and the byte's value together."""


def printable(text: str, keep: str = "") -> str:
    r"""Returns `text` with every character that is not printable, but for those in `keep`, as an escape.

    An escape sequence is then `\x1b[2J`, and a byte of a file's name that is not UTF-8 is `\xe9`.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keep else _escape(character) for character in text
    )


def _escape(character: str) -> str:
    code = ord(character)
    if _BYTE_0 + 0x80 <= code <= _BYTE_0 + 0xFF:
        return f"\\x{code - _BYTE_0:02x}"
    return character.encode("unicode_escape").decode("ascii")
