"""How many columns of a terminal a character takes."""

from __future__ import annotations

import unicodedata

_EMOJI_STYLE = "\N{VARIATION SELECTOR-16}"
_SOFT_HYPHEN = "\N{SOFT HYPHEN}"
_INVISIBLE = frozenset({"Mn", "Me", "Cf"})  # combining marks, joiners, direction marks


def cells(character: str) -> int:
    """0, 1 or 2. Where terminals differ it is the larger number: a line may then break early, never too late."""
    if character in (_EMOJI_STYLE, _SOFT_HYPHEN):
        return 1
    if unicodedata.category(character) in _INVISIBLE or "\u1160" <= character <= "\u11ff":  # Jamo that join the first
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def width(text: str) -> int:
    """Of a text without tabs and line ends."""
    return sum(cells(character) for character in text)
