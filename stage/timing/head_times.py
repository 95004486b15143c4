"""What the head's clock sees: what sequences wait for, how long steps are under way, when tokens come.

No clock of its own: `now` is monotonic seconds of the head. Durations go into steps and into distributions; nothing is
decided here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from stagewire.monitoring.metrics import (
    EXPORT_TIME,
    FETCH_TIME,
    HOP_TIME,
    INTER_TOKEN_LATENCY,
    REQUEST_DECODE_TIME,
    REQUEST_GENERATION_TOKENS,
    REQUEST_PREFILL_TIME,
    REQUEST_PROMPT_TOKENS,
    REQUEST_QUEUE_TIME,
    RESTORE_TIME,
    STEP_TRAVERSAL,
    TIME_PER_OUTPUT_TOKEN,
    TIME_TO_FIRST_TOKEN,
)
from stagewire.stage.timing.restore_note import RestoreOutcome, outcome_of
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import SequenceResult, Step, StepResult
from stagewire.wire.timing import Wait


@dataclass(frozen=True, slots=True)
class ReadTime:
    """How a message of the ring came in: read in `read_s`; before, `unread_s` at most, it lay at a busy stage."""

    read_s: float = 0.0
    unread_s: float = 0.0


def spent_s(timing: StageTiming) -> float:
    """From when the stage began to read the step until it passed on what came of it."""
    return timing.queue_s + timing.plan_s + timing.compute_s + timing.sample_s + timing.codec_s


NO_TIME = ReadTime()
"""Nothing to speak of."""


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A step's way around the ring: what it took, and what of that the stages do not explain."""

    total_s: float
    hops_s: float


@dataclass(slots=True)
class _Waiting:
    """A sequence since its last step; `since` counts while no step holds it."""

    since: float
    num_in_flight: int = 0
    is_paused: bool = False
    is_fetching: bool = False
    queue_s: float = 0.0
    paused_s: float = 0.0
    fetch_s: float = 0.0
    read_time: ReadTime = NO_TIME

    def settle(self, now: float) -> None:
        """Book the time up to now."""
        if not self.num_in_flight:
            if self.is_fetching:
                self.fetch_s += now - self.since
            elif self.is_paused:
                self.paused_s += now - self.since
            else:
                self.queue_s += now - self.since
            self.since = now

    def take(self, seq_id: int) -> Wait:
        """What it has waited; it begins anew."""
        waits = (self.queue_s, self.paused_s, self.read_time.read_s, self.read_time.unread_s, self.fetch_s)
        wait = Wait(seq_id, *waits)
        self.queue_s, self.paused_s, self.fetch_s, self.read_time = 0.0, 0.0, 0.0, NO_TIME
        return wait


class RingClock:
    """Sequences by id from their arrival to their end, and steps from their launch to their result."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}
        self._steps: dict[int, tuple[float, tuple[int, ...]]] = {}

    def arrived(self, seq_id: int, now: float) -> None:
        """A sequence is there."""
        self._waiting[seq_id] = _Waiting(now)

    def paused(self, seq_id: int, is_paused: bool, now: float) -> None:
        """Its client does not read, or reads again."""
        if waiting := self._waiting.get(seq_id):
            waiting.settle(now)
            waiting.is_paused = is_paused

    def fetching(self, seq_id: int, is_fetching: bool, now: float) -> None:
        """Stages begin to read files for it, or have read them."""
        if waiting := self._waiting.get(seq_id):
            waiting.settle(now)
            waiting.is_fetching = is_fetching

    def gone(self, seq_id: int) -> None:
        """The sequence has ended."""
        self._waiting.pop(seq_id, None)

    def launched(self, step: Step, now: float) -> Step:
        """A step begins: it is given what its sequences have waited."""
        seq_ids = tuple(dict.fromkeys([span.seq_id for span in step.slices]))
        self._steps[step.step_id] = now, seq_ids
        waits = tuple([self._leave(seq_id, now) for seq_id in seq_ids if seq_id in self._waiting])
        return replace(step, waits=waits) if waits else step

    def _leave(self, seq_id: int, now: float) -> Wait:
        waiting = self._waiting[seq_id]
        waiting.settle(now)
        waiting.num_in_flight += 1
        return waiting.take(seq_id)

    def returned(
        self, step_id: int, timings: Iterable[StageTiming], now: float, read_time: ReadTime = NO_TIME
    ) -> RoundTrip | None:
        """A step's result was read; None if its launch is not known."""
        launched = self._steps.pop(step_id, None)
        if launched is None:
            return None
        launched_at, seq_ids = launched
        for seq_id in seq_ids:
            if waiting := self._waiting.get(seq_id):
                waiting.num_in_flight -= 1
                waiting.since, waiting.read_time = now, read_time
        return self._round_trip(now - launched_at, timings, read_time)

    @staticmethod
    def _round_trip(total_s: float, timings: Iterable[StageTiming], read_time: ReadTime) -> RoundTrip:
        # What may have lain unread is not the network's, as far as the round trip has time for it.
        known_s = read_time.read_s + read_time.unread_s + sum([spent_s(timing) + timing.unread_s for timing in timings])
        return RoundTrip(total_s, max(0.0, total_s - known_s))


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
        self.restore_s = {outcome: RESTORE_TIME.distribution() for outcome in RestoreOutcome}
        self.fetch_s = FETCH_TIME.distribution()
        self.export_s = EXPORT_TIME.distribution()
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
        for found in result.restored:
            self.restore_s[outcome_of(found)].observe(round_trip.total_s)
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
