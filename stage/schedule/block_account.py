"""The head's account of KV blocks: what running sequences and snapshots occupy of the smallest pool, or will."""

from __future__ import annotations

from collections.abc import Mapping

from stagewire.stage.schedule.limits import SchedulerLimits
from stagewire.stage.schedule.sequence import Sequence
from stagewire.stage.schedule.snapshots import Snapshots


class BlockAccount:
    """`running` and `snapshots` are the scheduler's own.

    A block that running sequences share, with each other or with snapshots, counts for each of them, so that a copy
    always finds its block; one that only snapshots share counts once.
    """

    def __init__(self, limits: SchedulerLimits, running: Mapping[int, Sequence], snapshots: Snapshots) -> None:
        self._limits, self._running, self._snapshots = limits, running, snapshots

    @property
    def num_free(self) -> int:
        """Blocks that neither a running sequence nor a snapshot occupies."""
        num_running = sum(s.num_blocks(self._limits.block_size) for s in self._running.values())
        return self._limits.num_blocks - num_running - self._snapshots.num_blocks

    def num_new(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that `num_tokens` more take."""
        size = self._limits.block_size
        return sequence.num_blocks(size, num_tokens) - sequence.num_blocks(size)

    def has_place(self, sequence: Sequence) -> bool:
        """Room for all its tokens and all of those that run, and a block of headroom for each, or it would thrash."""
        size = self._limits.block_size
        promised = sum(s.num_blocks(size, s.num_unscheduled) for s in self._running.values())
        needed = promised + sequence.num_blocks(size, sequence.num_unscheduled) + len(self._running)
        is_room = needed + self._snapshots.num_blocks <= self._limits.num_blocks
        return is_room and len(self._running) < self._limits.max_sequences
