"""What a stage's loop spends its time on: told with each step, and counted since the start."""

from __future__ import annotations

import time

import zmq

from stagewire.sockets.poll_until import Ready, poll_until
from stagewire.stage.kv.store import KvStore
from stagewire.stage.stage_epoch import Assembly
from stagewire.stage.timing.ring_clock import Reading
from stagewire.wire.counters import StageCounters
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import Phase, Step


class LoopClock:
    """The sums of one process."""

    def __init__(self) -> None:
        self._started_at = self._polled_at = self._drawn_at = time.monotonic()
        self._unread_s = self._written_s = 0.0
        self.idle_s = self._prefill_s = self._decode_s = 0.0
        self._plan_s = self._sample_s = self._codec_s = 0.0
        self._num_steps = self._num_prefill_tokens = self._num_decode_tokens = 0

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

    def read(self, read_s: float) -> Reading:
        """A message of the ring was turned from frames in `read_s`."""
        self._codec_s += read_s
        return Reading(read_s, self._unread_s)

    def timing(self, stage_index: int, begun: float, started: float, computed: float, drawn: float) -> StageTiming:
        """Of a step, from when it was begun; what writing the last one took goes with it."""
        written_s, self._written_s, self._drawn_at = self._written_s, 0.0, drawn
        spent = (1, computed - started, drawn - computed, written_s)
        return StageTiming(stage_index, *spent, plan_s=started - begun, written_s=written_s)

    def wrote(self, now: float) -> None:
        """What came of the step was booked and turned into frames."""
        self._written_s = now - self._drawn_at
        self._codec_s += self._written_s

    def count(self, step: Step, timing: StageTiming) -> None:
        """A step is done."""
        num_decode = sum([piece.num_rows for piece in step.slices if piece.phase is not Phase.PREFILL])
        num_prefill = sum([piece.num_rows for piece in step.slices]) - num_decode
        self._num_steps += 1
        self._num_prefill_tokens += num_prefill
        self._num_decode_tokens += num_decode
        if num_prefill:
            self._prefill_s += timing.compute_s
        else:
            self._decode_s += timing.compute_s
        self._plan_s += timing.plan_s
        self._sample_s += timing.sample_s

    def counters(self, store: KvStore, assembly: Assembly | None) -> StageCounters:
        """All of it by now, with what the stage holds and what its pipeline counts."""
        return StageCounters(
            uptime_s=time.monotonic() - self._started_at,
            idle_s=self.idle_s,
            num_steps=self._num_steps,
            num_prefill_tokens=self._num_prefill_tokens,
            num_decode_tokens=self._num_decode_tokens,
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
            plan_s=self._plan_s,
            sample_s=self._sample_s,
            codec_s=self._codec_s,
            num_queued_steps=assembly.num_queued_steps if assembly else 0,
            num_used_blocks=store.num_used,
            num_cached_blocks=store.num_cached,
            head=assembly.head.counters() if assembly and assembly.head else None,
            tail=assembly.tail.counters() if assembly and assembly.tail else None,
        )
