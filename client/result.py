"""What a caller gets: tokens one by one, and the result at the end."""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.client.time_parts import TimeParts
from stagewire.wire import errors
from stagewire.wire.errors import StagewireError
from stagewire.wire.request import CacheStatistics, FinishReason, StageTiming, Usage


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token.

    `text` is what may be shown now: it can be empty, while a character or a possible stop string is not complete, and
    hold several tokens' text at once. Without a tokenizer it is always empty. `index` counts from 0. `logprob` and
    `top_logprobs` (token id, natural log probability) are there if they were asked for.
    """

    token_id: int
    text: str
    index: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds on this machine's clock from the call on, None where it was not reached; then what the stages spent.

    `accepted_s`: admitted by the broker; `dispatched_s`: given to a pipeline; `first_token_s`, `total_s`: arrived here.
    `parts` says where `total_s` went. There is none, and there are no stages, where the pipeline's own ending did not
    come: after a stop string, which is found here, a cancel that did not wait, or a failure.
    """

    accepted_s: float | None
    dispatched_s: float | None
    first_token_s: float | None
    total_s: float
    stages: tuple[StageTiming, ...]
    parts: TimeParts | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a generation. `stop_reason` is the stop string that ended it, if one did.

    `cache` is what the stages' caches did in the steps that held the request, also for others in those steps.
    `kept_tokens` is the length of the snapshot that was asked for and is complete.
    `error` is set when it failed; the tokens before it stay valid.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | None
    usage: Usage
    timings: Timings
    cache: CacheStatistics
    kept_tokens: int
    error: StagewireError | None = None


def kept_tokens(result: Result, name: str) -> int:
    """The length of a snapshot that was to be made.

    Raises:
        StagewireError: what ended the request, or that not all stages could keep it.
    """
    if result.error is not None:
        raise result.error
    if not result.kept_tokens:
        raise RequestFailed(f"snapshot {name!r} is not complete; try again")
    return result.kept_tokens


class RequestFailed(errors.RequestFailed):
    """An accepted request ended without finishing; `result` holds what came before."""

    result: Result | None = None
