"""One request's time, added up at the tail from step to step; its parts do not overlap, and nothing is counted twice.

No clock of its own: `now` is monotonic seconds of the tail, when it has drawn a step's tokens.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from stagewire.stage.timing.head_times import spent_s
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import RESTORES, Phase, Slice
from stagewire.wire.timing import RequestTiming, Wait


@dataclass(slots=True)
class _Spent:
    """The sum of one stage's timings; added to in place, since every step adds to every sequence of it."""

    steps: int = 0
    compute_s: float = 0.0
    sample_s: float = 0.0
    codec_s: float = 0.0
    queue_s: float = 0.0
    plan_s: float = 0.0
    unread_s: float = 0.0
    written_s: float = 0.0
    decode_s: float = 0.0

    def add(self, timing: StageTiming) -> None:
        self.steps += timing.steps
        self.compute_s += timing.compute_s
        self.sample_s += timing.sample_s
        self.codec_s += timing.codec_s
        self.queue_s += timing.queue_s
        self.plan_s += timing.plan_s
        self.unread_s += timing.unread_s
        self.written_s += timing.written_s

    def timing(self, stage_index: int) -> StageTiming:
        spent = (self.steps, self.compute_s, self.sample_s, self.codec_s)
        return StageTiming(stage_index, *spent, self.queue_s, self.plan_s, self.unread_s, self.written_s)


@dataclass(frozen=True, slots=True)
class StepCost:
    """What the stages say of one step, and the sums over them.

    `known_s` is from reading to drawing. Of the step before, the tail has written its result in `result_s`, and the
    others have passed it on in `passed_s`, which was before the tail drew.
    """

    timings: tuple[StageTiming, ...]
    known_s: float
    plan_s: float
    sample_s: float
    read_s: float
    queue_s: float
    unread_s: float
    passed_s: float
    result_s: float

    @classmethod
    def of(cls, timings: tuple[StageTiming, ...]) -> StepCost:
        known_s = plan_s = sample_s = codec_s = queue_s = unread_s = written_s = 0.0
        for timing in timings:
            known_s += spent_s(timing)
            plan_s += timing.plan_s
            sample_s += timing.sample_s
            codec_s += timing.codec_s
            queue_s += timing.queue_s
            unread_s += timing.unread_s
            written_s += timing.written_s
        result_s = timings[-1].written_s if timings else 0.0
        read_s, passed_s = codec_s - written_s, written_s - result_s
        return cls(timings, known_s - written_s, plan_s, sample_s, read_s, queue_s, unread_s, passed_s, result_s)


class TimeAccount:
    """All of one request's steps. Between two of them runs the tail's clock; the first is what the stages say of it."""

    def __init__(self, admission_s: float) -> None:
        self._admission_s = admission_s
        self._spent: defaultdict[int, _Spent] = defaultdict(_Spent)
        self._last_at: float | None = None
        self._is_first = self._is_prefill = False
        self._result_s = self._last_hops_s = 0.0
        self._queue_s = self._paused_s = self._restore_s = self._prefill_s = 0.0
        self._plan_s = self._sample_s = self._codec_s = self._hops_s = self._unread_s = 0.0

    def stages(self) -> tuple[StageTiming, ...]:
        """What each stage spent on the steps, whole ones also where others shared them."""
        return tuple(spent.timing(index) for index, spent in sorted(self._spent.items()))

    def parts(self) -> RequestTiming:
        """Where the request's own time went."""
        compute_s = tuple(spent.decode_s for _, spent in sorted(self._spent.items()))
        return RequestTiming(
            self._admission_s, self._queue_s, self._paused_s, self._restore_s, self._prefill_s, compute_s,
            self._plan_s, self._sample_s, self._codec_s, self._hops_s, self._unread_s,
        )  # fmt: skip

    def wrote(self, cost: StepCost) -> None:
        """The step after the request's last one tells how long that was written, which had looked like hops."""
        self._result_s = cost.result_s
        if self._is_first and self._is_prefill:
            self._prefill_s += cost.passed_s
        elif self._is_first:
            self._codec_s += cost.passed_s
        else:
            passed_s = min(cost.passed_s, max(0.0, self._last_hops_s))
            self._codec_s += passed_s
            self._hops_s -= passed_s

    def step(self, first: Slice, last: Slice, wait: Wait | None, cost: StepCost, now: float) -> None:
        """Book a step that held the request with these slices; they are one, or a restore and a chunk behind it."""
        for timing in cost.timings:
            self._spent[timing.stage_index].add(timing)
        waited_s, read_s, unread_s = 0.0, self._result_s, cost.unread_s
        if wait is not None:
            waited_s = wait.queue_s + wait.paused_s + wait.fetch_s
            read_s, unread_s = read_s + wait.read_s, unread_s + wait.unread_s
            self._restore_s += wait.fetch_s
            self._queue_s += wait.queue_s
            self._paused_s += wait.paused_s
        self._is_first, self._is_prefill = self._last_at is None, last.phase is Phase.PREFILL
        if self._last_at is None:
            span_s, self._unread_s = cost.known_s, unread_s
        else:
            span_s = now - self._last_at - waited_s
        self._last_at, self._result_s, self._last_hops_s = now, 0.0, 0.0
        self._book(first, last, cost, span_s, read_s, unread_s)

    def _book(self, first: Slice, last: Slice, cost: StepCost, span_s: float, read_s: float, unread_s: float) -> None:
        """Divide `span_s`, in which the step was under way and before it the last result, read in `read_s`."""
        if last.missed or last.phase is Phase.TRY_RESTORE:
            self._restore_s += span_s
            return
        is_restored = first.phase in RESTORES
        self._restore_s += cost.plan_s if is_restored else 0.0
        gap_s = span_s - cost.known_s - read_s
        if last.phase is Phase.PREFILL or gap_s < -1e-6:  # computed again, while those before it were under way
            self._prefill_s += span_s - (cost.plan_s if is_restored else 0.0)
            return
        self._plan_s += 0.0 if is_restored else cost.plan_s
        self._sample_s += cost.sample_s
        self._codec_s += cost.read_s + read_s
        for timing in cost.timings:
            self._spent[timing.stage_index].decode_s += timing.compute_s
        lain_s = min(max(gap_s, 0.0), unread_s)
        self._last_hops_s = gap_s - lain_s
        self._queue_s += cost.queue_s + lain_s
        self._hops_s += self._last_hops_s
