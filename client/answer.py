"""The answer to one request, whoever waits for it: what sync and async generations have in common."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from stagewire.client.core import events
from stagewire.client.delivery import Finished, QueueSink, Tokens
from stagewire.client.links.loop import ClientLoop
from stagewire.client.result import RequestFailed, Result, TokenEvent
from stagewire.client.transcript import Transcript
from stagewire.wire.errors import ErrorCode, RequestRefused
from stagewire.wire.frontend import Generate
from stagewire.wire.request import Ending, FinishReason, Usage


class Answer:
    """Tokens that have come and were not taken yet, and the result once there is one.

    `take_next` returns an event if one is there; else the caller waits for a delivery and gives it to `deliver`.
    """

    def __init__(
        self, owner: object, loop: ClientLoop, generate: Generate, transcript: Transcript, sink: QueueSink
    ) -> None:
        # A client that nobody refers to closes, but not under a request that somebody reads.
        self._owner = owner
        self._loop, self._request_id = loop, generate.request_id
        self._transcript, self._sink = transcript, sink
        self._waiting: deque[TokenEvent] = deque()
        self._is_cancelled = False
        self.result: Result | None = None
        loop.submit(generate, sink)

    @property
    def is_over(self) -> bool:
        """The result is there and every token was taken."""
        return self.result is not None and not self._waiting

    def deliver(self, delivery: Tokens | Finished) -> None:
        """Take what came; what comes after a stop string, or after the result, is dropped."""
        if self.result is not None:
            return
        if isinstance(delivery, Finished):
            self._finish(delivery)
            return
        logprobs = delivery.logprobs or (None,) * len(delivery.token_ids)
        for token_id, logprob in zip(delivery.token_ids, logprobs, strict=True):
            try:
                self._waiting.append(self._transcript.take(token_id, logprob))
            except RequestRefused as error:
                self._end_here(FinishReason.FAILED, ErrorCode.PROTOCOL_ERROR, error.detail)
                return
            if self._transcript.stop_reason is not None:
                self._end_here(FinishReason.STOP)
                return

    def _end_here(self, reason: FinishReason, code: ErrorCode | None = None, detail: str = "") -> None:
        """The caller's side ends the answer; what the pipeline still computes of it nobody wants."""
        self._loop.post(events.CancelRequest(self._request_id, discard=True))
        self._sink.stopwatch.end()
        self._transcript.flush()
        ending = Ending(reason, self._transcript.num_tokens, Usage(0, 0), (), code, detail)
        self.result = self._transcript.result(ending, self._sink.stopwatch.timings(None))

    def _finish(self, finished: Finished) -> None:
        finished = self._explained(finished)
        tail = self._transcript.flush()
        if tail and self._waiting:
            last = self._waiting.pop()
            self._waiting.append(
                TokenEvent(last.token_id, last.text + tail, last.index, last.logprob, last.top_logprobs)
            )
        elif tail:
            # The last token was taken already: its text comes in an event without a token of its own.
            self._waiting.append(TokenEvent(self._transcript.last_token_id, tail, self._transcript.num_tokens - 1))
        timings = self._sink.stopwatch.timings(finished.ending)
        self.result = self._transcript.result(finished.ending, timings, finished.refused)
        self._acknowledge()

    def _explained(self, finished: Finished) -> Finished:
        """A cancel that nobody here asked for is the broker's, which had given this client up: not a plain end."""
        ending = finished.ending
        is_ours = self._is_cancelled or self._loop.is_closing
        if is_ours or ending.finish_reason is not FinishReason.CANCELLED:
            return finished
        code, detail = ErrorCode.CLIENT_GONE, "the broker had not heard of this client for long and ended its requests"
        failed = replace(ending, finish_reason=FinishReason.FAILED, code=code, detail=detail)
        return Finished(failed, finished.refused)

    def take_next(self) -> TokenEvent | None:
        """The next event, acknowledged with being taken; None when none is there."""
        if not self._waiting:
            return None
        event = self._waiting.popleft()
        self._acknowledge()
        return event

    def _acknowledge(self) -> None:
        num_taken = self._transcript.num_tokens - len(self._waiting)
        self._loop.post(events.Consumed(self._request_id, max(0, num_taken), ended=self.is_over))

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
            self._is_cancelled = True
            self._loop.post(events.CancelRequest(self._request_id, discard=False))

    def hold(self, paused: bool) -> None:
        """Pause the request, or let it go on."""
        self._loop.post(events.HoldRequest(self._request_id, paused))
