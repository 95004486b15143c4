"""What the head's clock sees: a request that comes, a step that leaves, each token at the moment that it is sent.

One object for the life of the process; epochs come and go. It decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.monitoring.metrics import (
    HOP_TIME,
    INTER_TOKEN_LATENCY,
    REQUEST_DECODE_TIME,
    REQUEST_GENERATION_TOKENS,
    REQUEST_PREFILL_TIME,
    REQUEST_PROMPT_TOKENS,
    REQUEST_QUEUE_TIME,
    STEP_TRAVERSAL,
    TIME_PER_OUTPUT_TOKEN,
    TIME_TO_FIRST_TOKEN,
)
from stagewire.stage.timing.ring_clock import RoundTrip
from stagewire.wire.ring import SequenceResult, Step, StepResult


@dataclass(slots=True)
class _Timeline:
    """A request's moments so far, in monotonic seconds."""

    arrived_at: float
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float = 0.0
    num_tokens: int = 0


class HeadMeasures:
    """Counts and durations since the start of the process."""

    def __init__(self) -> None:
        self.first_token_s = TIME_TO_FIRST_TOKEN.distribution()
        self.inter_token_s = INTER_TOKEN_LATENCY.distribution()
        self.per_output_token_s = TIME_PER_OUTPUT_TOKEN.distribution()
        self.queue_s = REQUEST_QUEUE_TIME.distribution()
        self.prefill_s = REQUEST_PREFILL_TIME.distribution()
        self.decode_s = REQUEST_DECODE_TIME.distribution()
        self.prompt_lengths = REQUEST_PROMPT_TOKENS.distribution()
        self.generation_lengths = REQUEST_GENERATION_TOKENS.distribution()
        self.traversal_s = STEP_TRAVERSAL.distribution()
        self.hop_s = HOP_TIME.distribution()
        self.num_prompt_tokens = self.num_cached_tokens = self.num_generated_tokens = 0
        self.num_preemptions = self.num_saves = 0
        self._preemptions_of_epoch = 0
        self._timelines: dict[int, _Timeline] = {}
        self.num_in_flight = 0

    def begin_epoch(self) -> None:
        """Sequences and steps of the last one never end."""
        self._timelines.clear()
        self.num_in_flight = 0
        self._preemptions_of_epoch = 0

    # --- what the head sees ---

    def arrived(self, seq_id: int, now: float) -> None:
        """A request has come and will run."""
        self._timelines[seq_id] = _Timeline(now)

    def launched(self, step: Step, num_preemptions: int, now: float) -> None:
        """A step leaves; the sequences that start with it have waited until now."""
        self.num_in_flight += 1
        self.num_preemptions += num_preemptions - self._preemptions_of_epoch
        self._preemptions_of_epoch = num_preemptions
        for start in step.starts:
            timeline = self._timelines.get(start.seq_id)
            if timeline is not None:
                timeline.scheduled_at = now
                self.queue_s.observe(now - timeline.arrived_at)

    def completed(self, result: StepResult, round_trip: RoundTrip | None, now: float) -> None:
        """A step's result is back; it is of no interest where its launch is not known."""
        if round_trip is None:
            return
        self.num_in_flight -= 1
        self.traversal_s.observe(round_trip.total_s)
        self.hop_s.observe(round_trip.hops_s)
        self.num_saves += len(result.kept)
        for item in result.results:
            self._took(item, now)

    def _took(self, item: SequenceResult, now: float) -> None:
        timeline = self._timelines.get(item.seq_id)
        if timeline is None:
            return
        if item.token_ids:
            self._took_tokens(timeline, len(item.token_ids), now)
        if item.finish_reason is not None:
            del self._timelines[item.seq_id]
            self._ended(timeline, item)

    def _took_tokens(self, timeline: _Timeline, num_tokens: int, now: float) -> None:
        self.num_generated_tokens += num_tokens
        if timeline.first_token_at is None:
            timeline.first_token_at = now
            self.first_token_s.observe(now - timeline.arrived_at)
            self.prefill_s.observe(now - (timeline.scheduled_at or timeline.arrived_at))
        else:
            self.inter_token_s.observe(now - timeline.last_token_at)
        timeline.last_token_at = now
        timeline.num_tokens += num_tokens

    def _ended(self, timeline: _Timeline, item: SequenceResult) -> None:
        if timeline.first_token_at is not None:
            decode_s = timeline.last_token_at - timeline.first_token_at
            self.decode_s.observe(decode_s)
            if timeline.num_tokens > 1:
                self.per_output_token_s.observe(decode_s / (timeline.num_tokens - 1))
        if item.usage is not None:
            self.num_prompt_tokens += item.usage.prompt_tokens
            self.num_cached_tokens += item.usage.cached_tokens
            self.prompt_lengths.observe(item.usage.prompt_tokens)
            self.generation_lengths.observe(item.usage.completion_tokens)
