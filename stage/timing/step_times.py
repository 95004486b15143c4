"""What a stage's loop times of its steps, and counts: plain numbers, for heartbeats and for Prometheus alike."""

from __future__ import annotations

import time
from collections.abc import Sequence

import zmq

from stagewire.monitoring.metrics import (
    CODEC_TIME,
    FORWARD_TIME,
    SAMPLE_TIME,
    STEP_QUEUE_TIME,
    STEP_SEQUENCES,
    STEP_TOKENS,
)
from stagewire.sockets.nonblocking import Ready, poll_until
from stagewire.stage.compute.operators import Batch
from stagewire.stage.executor import Plan
from stagewire.stage.kv.store import KvStore
from stagewire.stage.stage_epoch import StageEpoch, TakenStep
from stagewire.stage.timing.head_times import HeadMeasures, ReadTime
from stagewire.wire.counters import StageCounters
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import RESTORES, Phase, Slice, Step


class LoopClock:
    """Between two polls; sums are kept by `StageMeasures`."""

    def __init__(self) -> None:
        self._polled_at = self._sampled_at = time.monotonic()
        self._unread_s = self._written_s = 0.0
        self.idle_s = 0.0

    def poll(self, poller: zmq.Poller, end: float) -> Ready:
        """As `poll_until`; what is there at once may have lain there since the last time."""
        asked_at = time.monotonic()
        ready = poll_until(poller, asked_at)
        has_waited = not ready and end > asked_at
        if has_waited:
            ready = poll_until(poller, end)
        now = time.monotonic()
        self._unread_s = 0.0 if has_waited else asked_at - self._polled_at
        self.idle_s += now - asked_at if has_waited else 0.0
        self._polled_at = now
        return ready

    def read_time(self, read_s: float) -> ReadTime:
        """How a message of the ring came in that was turned from frames in `read_s`."""
        return ReadTime(read_s, self._unread_s)

    def timing(self, stage_index: int, begun: float, planned: float, computed: float, sampled: float) -> StageTiming:
        """Of a step, from when it was begun; what writing the last one took goes with it."""
        written_s, self._written_s, self._sampled_at = self._written_s, 0.0, sampled
        spent = (1, computed - planned, sampled - computed, written_s)
        return StageTiming(stage_index, *spent, plan_s=planned - begun, written_s=written_s)

    def wrote(self, now: float) -> float:
        """What came of the step was booked and turned into frames; returns how long that took."""
        self._written_s = now - self._sampled_at
        return self._written_s


PHASES = ("prefill", "decode", "mixed")
OUTCOMES = ("direct_miss", "forward_hit", "direct_hit")


class LinkTraffic:
    """The ring's messages in one direction."""

    def __init__(self) -> None:
        self.codec_s = CODEC_TIME.distribution()
        self.num_messages = self.num_bytes = 0

    def add(self, seconds: float, num_bytes: int) -> float:
        """One message, and how long it took to encode or decode; returns that."""
        self.codec_s.observe(seconds)
        self.num_messages += 1
        self.num_bytes += num_bytes
        return seconds


class StageMeasures:
    """Since the start of the process."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self.forward_s = {phase: FORWARD_TIME.distribution() for phase in PHASES}
        self.sample_s = SAMPLE_TIME.distribution()
        self.step_queue_s = STEP_QUEUE_TIME.distribution()
        self.step_tokens = STEP_TOKENS.distribution()
        self.step_sequences = STEP_SEQUENCES.distribution()
        self.sent, self.received = LinkTraffic(), LinkTraffic()
        self.restores = dict.fromkeys(OUTCOMES, 0)
        self.num_steps = self.num_prefill_tokens = self.num_decode_tokens = 0
        self.plan_s = self.idle_s = 0.0
        self.head = HeadMeasures()

    def computed(self, taken: TakenStep, plan: Plan, timing: StageTiming, is_tail: bool) -> None:
        """A step is through."""
        self.num_steps += 1
        self.plan_s += timing.plan_s
        self.step_queue_s.observe(taken.queue_s)
        if plan.batch is not None:
            self._count_rows(plan.batch, plan.step.slices, timing.compute_s)
            if is_tail:
                self.sample_s.observe(timing.sample_s)
        if plan.step is not taken.step:  # a step that restores or misses differs from what was planned
            self._count_restores(taken.step, plan, "direct_hit" if is_tail else "forward_hit")

    def _count_rows(self, batch: Batch, slices: Sequence[Slice], compute_s: float) -> None:
        num_prefill = sum([span.num_rows for span in slices if span.phase is Phase.PREFILL])
        self.num_prefill_tokens += num_prefill
        self.num_decode_tokens += batch.num_rows - num_prefill
        phase = "decode" if not num_prefill else "mixed" if batch.num_rows > num_prefill else "prefill"
        self.forward_s[phase].observe(compute_s)
        self.step_tokens.observe(batch.num_rows)
        self.step_sequences.observe(len(batch.slices))

    def _count_restores(self, taken: Step, plan: Plan, hit: str) -> None:
        for old, new in zip(taken.slices, plan.step.slices, strict=True):
            if new.phase in RESTORES and new.num_restored:
                self.restores[hit] += not new.missed and new.num_restored == old.num_restored
        self.restores["direct_miss"] += len(plan.misses)

    def counters(self, store: KvStore, stage_epoch: StageEpoch | None) -> StageCounters:
        """All of it by now, with what the stage holds and what its pipeline counts."""
        forward_s = self.forward_s
        return StageCounters(
            uptime_s=time.monotonic() - self._started_at,
            idle_s=self.idle_s,
            num_steps=self.num_steps,
            num_prefill_tokens=self.num_prefill_tokens,
            num_decode_tokens=self.num_decode_tokens,
            prefill_s=forward_s["prefill"].total + forward_s["mixed"].total,
            decode_s=forward_s["decode"].total,
            plan_s=self.plan_s,
            sample_s=self.sample_s.total,
            codec_s=self.sent.codec_s.total + self.received.codec_s.total,
            num_queued_steps=stage_epoch.num_queued_steps if stage_epoch else 0,
            num_used_blocks=store.num_used,
            num_cached_blocks=store.num_cached,
            head=stage_epoch.head.counters() if stage_epoch and stage_epoch.head else None,
            tail=stage_epoch.tail.counters() if stage_epoch and stage_epoch.tail else None,
        )
