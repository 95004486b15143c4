"""Word wrap of a text that is still coming: what may be shown now, with line ends where words would not fit."""

from __future__ import annotations

import unicodedata

from stagewire.cli.chat.core.cells import cells, width

_TAB_COLUMNS = 8
_JOINER = "\N{ZERO WIDTH JOINER}"
_CLOSING = frozenset({"Pe", "Pf", "Po"})  # do not begin a line
_OPENING = frozenset({"Ps", "Pi"})  # do not end one


class WordWrap:
    """Give it pieces of a text; it returns what is certain. A word is held back until it is whole.

    Lines break at blanks, and between wide characters. A word that is wider than a line begins one, and the terminal
    breaks it: so a long address can be copied in one piece. The width may change between two pieces.
    """

    def __init__(self) -> None:
        self._column = 0
        self._gap = ""  # blanks before the word
        self._word = ""
        self._is_long = False  # the word is wider than a line, and its beginning is out

    def push(self, text: str, columns: int) -> str:
        """Take a piece; returns what may be shown."""
        return "".join(self._take(character, columns) for character in text)

    def finish(self, columns: int) -> str:
        """What was held back: nothing more comes."""
        return self._end_word(columns)

    def _take(self, character: str, columns: int) -> str:
        if character == "\n":
            shown = self._end_word(columns) + "\n"
            self._column, self._gap = 0, ""
            return shown
        if character in " \t":
            shown = self._end_word(columns)
            self._gap += character
            return shown
        shown = self._end_word(columns) if _may_break(self._word, character) else ""
        self._word += character
        if self._is_long or width(self._word) > columns:
            shown += self._place(columns)
            self._is_long = True
        return shown

    def _end_word(self, columns: int) -> str:
        shown = self._place(columns)
        self._is_long = False
        return shown

    def _place(self, columns: int) -> str:
        """The gap and the word, on this line or the next one."""
        if not self._word:
            return ""
        word, gap, begin = self._word, self._gap, _after(self._gap, self._column)
        self._word, self._gap = "", ""
        if self._is_long or begin + width(word) <= columns or self._column == 0:
            self._column = _after_long(word, begin, columns)
            return gap + word
        self._column = _after_long(word, 0, columns)
        return "\n" + word


def _may_break(word: str, character: str) -> bool:
    """Whether a line may end between the two: one is wide, and neither punctuation nor a joiner holds them together."""
    base = next((one for one in reversed(word) if one == _JOINER or cells(one)), "")
    if not base or base == _JOINER or not cells(character) or unicodedata.category(character) in {"Sk", *_CLOSING}:
        return False
    return 2 in (cells(base), cells(character)) and unicodedata.category(base) not in _OPENING


def _after(gap: str, column: int) -> int:
    """The column behind blanks."""
    for blank in gap:
        column += 1 if blank == " " else _TAB_COLUMNS - column % _TAB_COLUMNS
    return column


def _after_long(word: str, column: int, columns: int) -> int:
    """The column behind a word that the terminal breaks where it must."""
    for character in word:
        size = cells(character)
        column = size if column + size > columns else column + size
    return column
