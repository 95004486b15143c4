"""Hands what the socket thread delivers to whoever iterates: one queue per request, in order, without loss.

The queue is bounded by the protocol: a request pauses at 256 tokens that its caller has not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from stagewire.client.core.events import Milestone
from stagewire.client.stopwatch import Stopwatch
from stagewire.wire.request import Ending
from stagewire.wire.returns import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens as they came; `logprobs` is empty or as long."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The one ending. `refused`: nothing has run."""

    ending: Ending
    refused: bool


class Sink(Protocol):
    """Who is told what happens to a request; called in the socket thread, so it must be quick."""

    def on_tokens(self, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]) -> None:
        """The next tokens."""

    def on_milestone(self, milestone: Milestone) -> None:
        """Accepted, or dispatched to a pipeline."""

    def on_ending(self, ending: Ending, refused: bool) -> None:
        """The one ending; nothing comes after it."""


class QueueSink:
    """A `Sink` that puts everything on a queue through `put`, which any thread may call."""

    def __init__(self, put: Callable[[Tokens | Finished], None]) -> None:
        self._put = put
        self.stopwatch = Stopwatch()

    def on_tokens(self, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]) -> None:
        self.stopwatch.token()
        self._put(Tokens(token_ids, logprobs))

    def on_milestone(self, milestone: Milestone) -> None:
        self.stopwatch.milestone(milestone)

    def on_ending(self, ending: Ending, refused: bool) -> None:
        self.stopwatch.end()
        self._put(Finished(ending, refused))
