"""The names of special tokens, such as `<|im_end|>`: which there are, and where a text holds them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from stagewire.wire.card import TokenizerData

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # GGUF's token types
HIDDEN_TYPES = frozenset({UNKNOWN, CONTROL})
_CONTROL_LOOKING = re.compile(r"<[|\uff5c].*[|\uff5c]>", re.DOTALL)
_WINDOW_CHARS = 1 << 16


class NamePattern:
    """Finds names in texts: at each place the longest."""

    def __init__(self, names: Iterable[str]) -> None:
        # The longest first: where one name begins with another, the longer one is meant.
        self.names = tuple(sorted({name for name in names if name}, key=lambda name: (-len(name), name)))
        self._pattern = re.compile("|".join(map(re.escape, self.names)) or "(?!)")
        self._any_case = re.compile(self._pattern.pattern, re.IGNORECASE)
        firsts = {case for name in self.names for case in (name[0], name[0].lower(), name[0].upper())}
        self._first = re.compile("|".join(map(re.escape, sorted(firsts))) or "(?!)")

    @property
    def longest(self) -> int:
        return max(map(len, self.names), default=0)

    def match(self, text: str, position: int) -> str | None:
        """The name that begins at `position`."""
        found = self._pattern.match(text, position)
        return found.group() if found else None

    def spans(self, text: str, position: int = 0) -> Iterator[tuple[int, int]]:
        """Start and end of each name from `position` on, none overlapping."""
        return self._windows(self._pattern, text, position)

    def starts_of_any_case(self, text: str) -> Iterator[int]:
        """Where a name begins, overlapping ones too, in capital or small letters."""
        starts = (start for start, _ in self._windows(self._first, text, 0))
        return (start for start in starts if self._any_case.match(text, start))

    def _windows(self, pattern: re.Pattern[str], text: str, position: int) -> Iterator[tuple[int, int]]:
        # The library searches a whole text without letting other threads run: so it gets a part at a time.
        while position < len(text):
            end = position + _WINDOW_CHARS
            for found in pattern.finditer(text, position, end + self.longest):
                if found.start() >= end:
                    break
                yield found.span()
                end = max(end, found.end())
            position = end


class SpecialNames:
    """The names of one vocabulary.

    Attributes:
        ids: the token of each.
        added: tokens that were added to the vocabulary for what texts contain.
        all: these, and the control tokens.
        looking: of the added ones, those that look like control tokens, which they are in many a file.
        free: the other added ones: any text may write them.
        guarded: control tokens and those that look like them: what a message holds must not become one.
    """

    def __init__(self, data: TokenizerData) -> None:
        kinds = list(zip(data.tokens, data.token_types, strict=True))
        added = [token for token, kind in kinds if kind == USER_DEFINED]
        control = [token for token, kind in kinds if kind in HIDDEN_TYPES]
        special = HIDDEN_TYPES | {USER_DEFINED}
        self.ids = {token: token_id for token_id, (token, kind) in enumerate(kinds) if kind in special}
        self.added = NamePattern(added)
        self.all = NamePattern([*control, *added])
        self.looking = NamePattern(token for token in added if _CONTROL_LOOKING.fullmatch(token))
        self.free = NamePattern(set(added) - set(self.looking.names))
        self.guarded = NamePattern([*control, *self.looking.names])
