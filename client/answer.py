"""The answer to one request, whoever waits for it: what sync and async generations have in common.

Where a stop string ends it is decided here. No threads and no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from stagewire.client.core import events
from stagewire.client.core.events import DeliverEnding, DeliverTokens
from stagewire.client.delivery import Deliveries, Delivery
from stagewire.client.links.loop import ClientLoop
from stagewire.client.result import RequestFailed, Result, Timings, TokenEvent, TopLogprob
from stagewire.wire.errors import ErrorCode, RequestRefused, StagewireError
from stagewire.wire.frontend import Generate
from stagewire.wire.request import Ending, FinishReason, Usage
from stagewire.wire.returns import TokenLogprobs
from stagewire.wire.sampling import SamplingParams

if TYPE_CHECKING:
    from stagewire.client.text.stream import TextStream

_NEWS_TOKENS = 64
"""After so many tokens the socket thread is woken to hear of it: well before half of a return link's window."""


class Transcript:
    """Tokens to events and, at the end, to the result.

    `stream` gives the text and finds stop strings; without it there are token ids only. `sampling` is what was asked.
    `text_of` is the text of one token by itself.
    """

    def __init__(
        self,
        num_prompt_tokens: int,
        stream: TextStream | None,
        sampling: SamplingParams,
        text_of: Callable[[int], str] | None = None,
    ) -> None:
        self._text_of = text_of or (lambda _token_id: "")
        self._num_prompt_tokens, self._stream, self._sampling = num_prompt_tokens, stream, sampling
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
        top = tuple(TopLogprob(other, self._text_of(other), logprob) for other, logprob in logprobs.top)
        return TokenEvent(token_id, text, index, logprobs.chosen, top)

    def flush(self) -> str:
        """Text that was held back and now comes after all: there are no more tokens."""
        text = self._stream.finish() if self._stream else ""
        self._texts.append(text)
        return text

    def result(self, ending: Ending, timings: Timings, refused: bool = False) -> Result:
        """The result, whose usage counts the tokens that are kept.

        A stop string that was found ends the answer, however the pipeline ended meanwhile.
        """
        usage = Usage(self._num_prompt_tokens, self.num_tokens, ending.usage.cached_tokens)
        reason = ending.finish_reason if self.stop_reason is None else FinishReason.STOP
        error = _error(ending, refused) if reason is FinishReason.FAILED else None
        text, token_ids = "".join(self._texts), tuple(self._token_ids)
        return Result(
            text, token_ids, reason, self.stop_reason, usage, timings, ending.cache, ending.kept_tokens,
            self._sampling, error, ending.restore_note,
        )  # fmt: skip


class Answer:
    """Tokens that have come and were not taken yet, and the result once there is one.

    `take_next` returns an event if one is there; else the caller waits for a delivery and gives it to `deliver`.
    """

    def __init__(
        self, owner: object, loop: ClientLoop, generate: Generate, transcript: Transcript, deliveries: Deliveries
    ) -> None:
        # A client that nobody refers to closes, but not under a request that somebody reads.
        self._owner = owner
        self._loop, self._request_id = loop, generate.request_id
        self._transcript, self._deliveries = transcript, deliveries
        self._waiting: deque[TokenEvent] = deque()
        self._is_cancelled = False
        self.result: Result | None = None
        loop.submit(generate, deliveries)

    @property
    def is_over(self) -> bool:
        """The result is there and every token was taken."""
        return self.result is not None and not self._waiting

    def deliver(self, delivery: Delivery) -> None:
        """Take what came; tokens after a stop string, and all after the result, are dropped."""
        if self.result is not None:
            return
        if isinstance(delivery, DeliverEnding):
            self._finish(delivery)
        elif self._transcript.stop_reason is None:
            self._take(delivery)

    def _take(self, delivery: DeliverTokens) -> None:
        logprobs = delivery.logprobs or (None,) * len(delivery.token_ids)
        for token_id, logprob in zip(delivery.token_ids, logprobs, strict=True):
            try:
                self._waiting.append(self._transcript.take(token_id, logprob))
            except RequestRefused as error:
                self._end_here(FinishReason.FAILED, ErrorCode.PROTOCOL_ERROR, error.detail)
                return
            if self._transcript.stop_reason is not None:
                # The ending still comes, with what the pipeline knows of it, or, after a while, without.
                self._loop.post(events.StopRequest(self._request_id, self._transcript.num_tokens))
                return

    def _end_here(self, reason: FinishReason, code: ErrorCode | None = None, detail: str = "") -> None:
        """The caller's side ends the answer; what the pipeline still computes of it nobody wants."""
        self._loop.post(events.CancelRequest(self._request_id, discard=True))
        self._deliveries.end()
        self._transcript.flush()
        ending = Ending(reason, self._transcript.num_tokens, Usage(0, 0), (), code, detail)
        self.result = self._transcript.result(ending, self._deliveries.timings(None))

    def _finish(self, delivery: DeliverEnding) -> None:
        ending = self._explained(delivery.ending)
        tail = self._transcript.flush()
        if tail and self._waiting:
            last = self._waiting.pop()
            self._waiting.append(
                TokenEvent(last.token_id, last.text + tail, last.index, last.logprob, last.top_logprobs)
            )
        elif tail:
            # The last token was taken already: its text comes in an event without a token of its own.
            self._waiting.append(TokenEvent(self._transcript.last_token_id, tail, self._transcript.num_tokens - 1))
        self.result = self._transcript.result(ending, self._deliveries.timings(ending), delivery.refused)
        self._acknowledge()

    def _explained(self, ending: Ending) -> Ending:
        """A cancel that nobody here asked for is the broker's, which had given this client up: not a plain end."""
        is_ours = self._is_cancelled or self._loop.is_closing
        if is_ours or ending.finish_reason is not FinishReason.CANCELLED:
            return ending
        code, detail = ErrorCode.CLIENT_GONE, "the broker had not heard of this client for long and ended its requests"
        return replace(ending, finish_reason=FinishReason.FAILED, code=code, detail=detail)

    def take_next(self) -> TokenEvent | None:
        """The next event, acknowledged with being taken; None when none is there.

        Raises:
            RequestRefused: OTHER_PROCESS, what is still to come never comes here.
        """
        if self.result is None:
            self._loop.check_process()
        if not self._waiting:
            return None
        event = self._waiting.popleft()
        self._acknowledge()
        return event

    def _acknowledge(self) -> None:
        num_taken = self._transcript.num_tokens - len(self._waiting)
        if self.is_over or num_taken % _NEWS_TOKENS == 0:
            self._loop.post(events.Consumed(self._request_id, max(0, num_taken), ended=self.is_over))
        else:
            self._loop.consumed(self._request_id, num_taken)

    def describe(self) -> str:
        """For people: how far it is."""
        num_tokens = self._transcript.num_tokens
        how = "running" if self.result is None else self.result.finish_reason.value
        return f"{self._request_id[:8]} {how}, {num_tokens} tokens"

    def raise_error(self) -> None:
        """Raise what the result says, if it says so."""
        error = self.result.error if self.result is not None else None
        if isinstance(error, RequestFailed):
            error.result = self.result
        if error is not None:
            raise error

    def cancel(self, discard: bool) -> None:
        """Ask for an end, which still comes; or (`discard`) end at once with what was taken so far."""
        if self.result is not None:
            return
        if discard:
            self._waiting.clear()
            self._end_here(FinishReason.CANCELLED)
        else:
            self._loop.check_process()
            self._is_cancelled = True
            self._loop.post(events.CancelRequest(self._request_id, discard=False))

    def hold(self, paused: bool) -> None:
        """Pause the request, or let it go on."""
        self._loop.check_process()
        self._loop.post(events.HoldRequest(self._request_id, paused))


def _error(ending: Ending, refused: bool) -> StagewireError:
    kind = RequestRefused if refused else RequestFailed
    return kind(ending.detail or "the request failed", ending.code or ErrorCode.INTERNAL)
