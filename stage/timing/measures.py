"""What a stage's loop measures of its own work, step by step: plain numbers, read at any time by whoever watches."""

from __future__ import annotations

from collections.abc import Iterable

from stagewire.monitoring.metrics import (
    CODEC_TIME,
    FORWARD_TIME,
    SAMPLE_TIME,
    STEP_QUEUE_TIME,
    STEP_SEQUENCES,
    STEP_TOKENS,
)
from stagewire.stage.executor import Plan
from stagewire.stage.timing.head_measures import HeadMeasures
from stagewire.wire.codec import Frames
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import RESTORES, Phase, Slice, Step

PHASES = ("prefill", "decode", "mixed")
OUTCOMES = ("direct_miss", "forward_hit", "direct_hit")
_DECODES = frozenset({Phase.DECODE, Phase.TRY_RESTORE_DECODE})


class LinkTraffic:
    """The ring's messages in one direction."""

    def __init__(self) -> None:
        self.codec_s = CODEC_TIME.distribution()
        self.num_messages = self.num_bytes = 0

    def add(self, seconds: float, frames: Frames) -> float:
        """One message, and how long it took to encode or decode; returns that."""
        self.codec_s.observe(seconds)
        self.num_messages += 1
        self.num_bytes += sum([frame.nbytes if isinstance(frame, memoryview) else len(frame) for frame in frames])
        return seconds


class StageMeasures:
    """Since the start of the process."""

    def __init__(self) -> None:
        self.forward_s = {phase: FORWARD_TIME.distribution() for phase in PHASES}
        self.sample_s = SAMPLE_TIME.distribution()
        self.step_queue_s = STEP_QUEUE_TIME.distribution()
        self.step_tokens = STEP_TOKENS.distribution()
        self.step_sequences = STEP_SEQUENCES.distribution()
        self.sent, self.received = LinkTraffic(), LinkTraffic()
        self.restores = dict.fromkeys(OUTCOMES, 0)
        self.idle_s = 0.0
        self.head = HeadMeasures()

    def computed(self, taken: Step, plan: Plan, timing: StageTiming, queue_s: float, is_tail: bool) -> None:
        """A step is through; `taken` is what it was before its plan."""
        self.step_queue_s.observe(queue_s)
        if plan.batch is not None:
            self.forward_s[_phase_of(plan.step.slices)].observe(timing.compute_s)
            self.step_tokens.observe(plan.batch.num_rows)
            self.step_sequences.observe(len(plan.batch.slices))
            if is_tail:
                self.sample_s.observe(timing.sample_s)
        if plan.step is not taken:  # a step that restores or misses differs from what was planned
            self._count_restores(taken, plan, "direct_hit" if is_tail else "forward_hit")

    def _count_restores(self, taken: Step, plan: Plan, hit: str) -> None:
        for old, new in zip(taken.slices, plan.step.slices, strict=True):
            if new.phase in RESTORES and new.num_restored:
                self.restores[hit] += not new.missed and new.num_restored == old.num_restored
        self.restores["direct_miss"] += len(plan.misses)


def _phase_of(slices: Iterable[Slice]) -> str:
    """Of a step that has rows."""
    has_prefill = has_decode = False
    for piece in slices:
        has_prefill = has_prefill or piece.phase is Phase.PREFILL
        has_decode = has_decode or piece.phase in _DECODES
    if has_prefill and has_decode:
        return "mixed"
    return "prefill" if has_prefill else "decode"
