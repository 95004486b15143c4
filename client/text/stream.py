"""Tokens to text as they come: whole characters only, and nothing that a stop string would take back."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from stagewire.client.text.tokenizer import Tokenizer
from stagewire.wire.errors import RequestRefused


class TextStream:
    """Turns one request's tokens into text.

    All that `push` and `finish` return is the decoded text up to the stop string that is complete first; of
    those complete at the same character, the longest. It does not depend on how the text falls into tokens.

    Raises:
        RequestRefused: INVALID_REQUEST, on construction: a stop string is empty.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        if not all(stop):
            raise RequestRefused("a stop string is empty")
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._stopped: str | None = None

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text; None while it goes on. After it, tokens give no text."""
        return self._stopped

    def push(self, token_id: int) -> str:
        """Takes one token and returns the text that is safe to show now; control tokens have none.

        Raises:
            RequestRefused: TOKEN_OUT_OF_VOCABULARY; nothing has changed.
        """
        return self._advance(self._decoder.decode(self._tokenizer.visible_bytes(token_id)))

    def finish(self) -> str:
        """Returns what was held back; the bytes of a character that never became whole give one U+FFFD."""
        shown = self._advance(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return shown

    def _advance(self, text: str) -> str:
        if self._stopped is not None:
            return ""
        text = self._held + text
        if match := _first_stop(text, self._stop):
            self._stopped, self._held = match, ""
            return text[: text.index(match)]
        shown = len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[shown:]
        return text[:shown]


def _first_stop(text: str, stops: tuple[str, ...]) -> str | None:
    """Returns the stop string that is complete first in `text`; of several at once, the longest."""
    found = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    return min(found)[2] if found else None


def _overlap(text: str, stop: str) -> int:
    """Returns how many of the last characters of `text` might be the beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
