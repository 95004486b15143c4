"""A prompt's text, and where in it the names of control tokens stand for the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stagewire.client.text.special_names import SpecialNames


@dataclass(frozen=True, slots=True)
class ChatText:
    """What a template wrote.

    Attributes:
        own_names: start and end of each guarded name that the template itself wrote; elsewhere such a name came from
            a message and is characters like others. None: all are the template's.
    """

    text: str
    own_names: frozenset[tuple[int, int]] | None = None

    def spans(self, names: SpecialNames) -> Iterator[tuple[int, int]]:
        """Start and end of each name that stands for its token, none overlapping."""
        if self.own_names is None:
            yield from names.all.spans(self.text)
            return
        guarded, position = frozenset(names.guarded.names), 0
        while (span := next(names.all.spans(self.text, position), None)) is not None:
            start, position = span
            if span in self.own_names or self.text[start:position] not in guarded:
                yield span
            # Not a token; but a name that any text may write can begin in the same place.
            elif added := names.free.match(self.text, start):
                position = start + len(added)
                yield start, position
            else:
                position = start + 1
