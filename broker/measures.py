"""What the broker counts for whoever watches it: plain numbers, written by the core's parts, read at any time."""

from __future__ import annotations

from collections import Counter

from stagewire.broker.requests import AcceptedRequest
from stagewire.monitoring.metrics import BROKER_QUEUE_TIME, E2E_LATENCY
from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import FinishReason

LOST_MEMORY_S = 900.0
"""A lost stage that nobody starts again is reported for so long."""
_MAX_LOST = 256
EXPIRED = "expire"
"""What the broker itself does with snapshots, beside what clients ask for."""


class BrokerMeasures:
    """Counts since the broker's start, and the stages that are missed."""

    def __init__(self) -> None:
        self.num_accepted = 0
        self.refused: Counter[ErrorCode] = Counter()
        self.succeeded: Counter[FinishReason] = Counter()
        self.failed: Counter[ErrorCode] = Counter()
        self.queue_s = BROKER_QUEUE_TIME.distribution()
        self.e2e_s = E2E_LATENCY.distribution()
        self.lost_epochs: Counter[ErrorCode] = Counter()
        self.snapshot_operations: Counter[str] = Counter()
        self.num_stages_lost = 0
        self.missed: dict[str, float] = {}
        """Names of stages that were lost, in order of time, and when."""

    # --- requests ---

    def dispatched(self, request: AcceptedRequest, now: float) -> None:
        self.queue_s.observe(now - request.queued_at)

    def ended(self, request: AcceptedRequest, reason: FinishReason, code: ErrorCode | None, now: float) -> None:
        """One whose `pushed_at` is unset came from before this broker's start, or never reached a pipeline."""
        if reason is FinishReason.FAILED:
            self.failed[code or ErrorCode.INTERNAL] += 1
        else:
            self.succeeded[reason] += 1
        if request.pushed_at:
            self.e2e_s.observe(now - request.queued_at)

    # --- stages ---

    def stage_came(self, stage_id: str) -> None:
        self.missed.pop(stage_id, None)

    def stage_lost(self, stage_id: str, now: float) -> None:
        """Without a goodbye: somebody should look."""
        self.num_stages_lost += 1
        self.missed.pop(stage_id, None)
        self.missed[stage_id] = now
        if len(self.missed) > _MAX_LOST:
            del self.missed[next(iter(self.missed))]

    def expire(self, now: float) -> None:
        while self.missed and now - next(iter(self.missed.values())) >= LOST_MEMORY_S:
            del self.missed[next(iter(self.missed))]
