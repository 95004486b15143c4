"""What a caller gets: tokens one by one, and the result at the end, with where its time went."""

from __future__ import annotations

from dataclasses import dataclass, fields

from stagewire.wire import errors
from stagewire.wire.errors import StagewireError
from stagewire.wire.request import CacheStatistics, FinishReason, StageTiming, Usage
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.timing import RequestTiming

_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the most likely tokens of a position: `text` is its own, empty without a tokenizer.

    A control token's text is its name, and bytes that are only part of a character give U+FFFD.
    """

    token_id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token.

    `text` is what may be shown now: it can be empty, while a character or a possible stop string is not complete, and
    hold several tokens' text at once. Without a tokenizer it is always empty. `index` counts from 0. `logprob` and
    `top_logprobs`, natural logarithms and the most likely token first, are there if they were asked for.
    """

    token_id: int
    text: str
    index: int
    logprob: float | None = None
    top_logprobs: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TimeParts:
    """Where a request's time went, end to end: seconds that together make up `total_s`.

    Each is timed by the clock of one process; `remainder_s` is the rest.

    Attributes:
        return_s: by this client: a message's way to the broker and back, from the call to the word that the request is
            admitted. It stands for the request's way there and for the last token's way back. That word may be read
            when a head is at work already: where all parts would exceed the total, so much is taken off here, too.
        admission_s: by the broker: queued there.
        handover_s: by this client: from the word that it is admitted to the word that a head has it, less
            `admission_s`. A head that is computing reads it late. Its word is still under way when it begins: where all
            parts would exceed the total, so much is taken off here.
        queue_s: by head and stages: waiting for its next step, and for a stage to be free. What may have lain unread at
            a busy stage counts here, as far as nothing else explains the time.
        paused_s: by the head: the caller did not take its tokens.
        restore_s, prefill_s: by the tail: steps that took a prefix from the caches, and that computed the prompt; by
            the head, in `restore_s`, waiting until stages had read files.
        compute_s: by each stage, head first: forward passes of the steps that brought a token; then, of the same steps,
            `plan_s`, making ready; `sample_s`, drawing; `codec_s`, messages to frames and back.
        hops_s: by the tail: what its round trips took beyond all that, so the links between stages.
        remainder_s: what is left of the total: above all the first step's way from stage to stage; never below zero.
    """

    return_s: float
    admission_s: float
    handover_s: float
    queue_s: float
    paused_s: float
    restore_s: float
    prefill_s: float
    compute_s: tuple[float, ...]
    plan_s: float
    sample_s: float
    codec_s: float
    hops_s: float
    remainder_s: float

    def rows(self) -> list[tuple[str, float]]:
        """Name and seconds of each part in order, one for each stage's `compute_s`."""
        found: list[tuple[str, float]] = []
        for field in fields(self):
            value = getattr(self, field.name)
            name = field.name.removesuffix("_s")
            if isinstance(value, tuple):
                found += [(f"{name} stage {index}", seconds) for index, seconds in enumerate(value)]
            else:
                found.append((name, value))
        return found


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds on this machine's clock from the call on, None where it was not reached; then what the stages spent.

    `accepted_s`: admitted by the broker; `dispatched_s`: given to a pipeline; `first_token_s`, `total_s`: arrived here.
    `parts` says where `total_s` went. There is none, and there are no stages, where the pipeline's own ending did not
    come: after a cancel that did not wait, or a failure.
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
    `kept_tokens` is the length of the snapshot that was asked for and is complete. `sampling` is what the tokens were
    drawn with, the model's own values and the seed included: asked for again, it gives the same answer.
    `finish_reason` LENGTH says that the answer was cut: by `max_tokens`, or by the end of context or memory.
    `error` is set when it failed; the tokens before it stay valid.
    `restore_note` says why the snapshot that `restore` names could not be used as a whole; empty if it could.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | None
    usage: Usage
    timings: Timings
    cache: CacheStatistics
    kept_tokens: int
    sampling: SamplingParams
    error: StagewireError | None = None
    restore_note: str = ""

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= _SHOWN_CHARS else self.text[: _SHOWN_CHARS - 1] + "…"
        why = f" at {self.stop_reason!r}" if self.stop_reason else f", {self.error!r}" if self.error else ""
        usage = f"{self.usage.prompt_tokens} prompt tokens ({self.usage.cached_tokens} cached)"
        shown = f"{text!r}, {self.finish_reason.value}{why}, {self.usage.completion_tokens} tokens after {usage}"
        return f"Result({shown} in {self.timings.total_s:.3g} s)"


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


def time_parts(
    timing: RequestTiming, accepted_s: float | None, dispatched_s: float | None, total_s: float
) -> TimeParts:
    """The parts of `total_s`; what this client has not seen (a broker that restarted, say) is left to the remainder."""
    left_s = total_s - _told_s(timing)
    return_s = min(accepted_s or 0.0, max(0.0, left_s))
    rest_s = left_s - return_s
    most_s = 0.0 if dispatched_s is None else max(0.0, dispatched_s - (accepted_s or 0.0) - timing.admission_s)
    handover_s = min(most_s, max(0.0, rest_s))
    rest_s -= handover_s
    unread_s = min(max(0.0, rest_s), timing.unread_s)
    return TimeParts(
        return_s=return_s,
        admission_s=timing.admission_s,
        handover_s=handover_s,
        queue_s=timing.queue_s + unread_s,
        paused_s=timing.paused_s,
        restore_s=timing.restore_s,
        prefill_s=timing.prefill_s,
        compute_s=timing.compute_s,
        plan_s=timing.plan_s,
        sample_s=timing.sample_s,
        codec_s=timing.codec_s,
        hops_s=timing.hops_s,
        remainder_s=rest_s - unread_s,
    )


def _told_s(timing: RequestTiming) -> float:
    """The sum of what the broker and the pipeline have told."""
    waited_s = timing.admission_s + timing.queue_s + timing.paused_s
    decode_s = sum(timing.compute_s) + timing.plan_s + timing.sample_s + timing.codec_s + timing.hops_s
    return waited_s + timing.restore_s + timing.prefill_s + decode_s
