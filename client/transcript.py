"""Turns delivered tokens into events and, at the end, into the result; where a stop string ends it is decided here.

No threads and no clock: sync and async generations share it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagewire.client.result import RequestFailed, Result, Timings, TokenEvent
from stagewire.wire.errors import ErrorCode, RequestRefused, StagewireError
from stagewire.wire.request import Ending, FinishReason, Usage
from stagewire.wire.returns import TokenLogprobs

if TYPE_CHECKING:
    from stagewire.client.text.stream import TextStream


class Transcript:
    """All of one answer. `stream` gives its text and finds stop strings; without it there are token ids only."""

    def __init__(self, num_prompt_tokens: int, stream: TextStream | None) -> None:
        self._num_prompt_tokens, self._stream = num_prompt_tokens, stream
        self._texts: list[str] = []
        self._token_ids: list[int] = []

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    @property
    def last_token_id(self) -> int:
        return self._token_ids[-1]

    @property
    def stop_reason(self) -> str | None:
        """The stop string that was found; tokens after it are not wanted."""
        return self._stream.stopped if self._stream else None

    def take(self, token_id: int, logprobs: TokenLogprobs | None) -> TokenEvent:
        """Append one token."""
        text = self._stream.push(token_id) if self._stream else ""
        self._texts.append(text)
        self._token_ids.append(token_id)
        index = len(self._token_ids) - 1
        if logprobs is None:
            return TokenEvent(token_id, text, index)
        return TokenEvent(token_id, text, index, logprobs.chosen, logprobs.top)

    def flush(self) -> str:
        """Text that was held back and now comes after all: there are no more tokens."""
        text = self._stream.finish() if self._stream else ""
        self._texts.append(text)
        return text

    def result(self, ending: Ending, timings: Timings, refused: bool = False) -> Result:
        """The result, whose usage counts the tokens that are kept."""
        usage = Usage(self._num_prompt_tokens, self.num_tokens, ending.usage.cached_tokens)
        reason = ending.finish_reason
        error = _error(ending, refused) if reason is FinishReason.FAILED else None
        text, token_ids = "".join(self._texts), tuple(self._token_ids)
        return Result(
            text, token_ids, reason, self.stop_reason, usage, timings, ending.cache, ending.kept_tokens, error
        )


def _error(ending: Ending, refused: bool) -> StagewireError:
    kind = RequestRefused if refused else RequestFailed
    return kind(ending.detail or "the request failed", ending.code or ErrorCode.INTERNAL)
