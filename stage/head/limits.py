"""What the head checks requests against."""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.stage.schedule.limits import SchedulerLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLimits:
    """What requests are checked against, and when a step is overdue."""

    scheduler: SchedulerLimits
    context_length: int
    vocab_size: int
    end_token_ids: tuple[int, ...]
    step_deadline_s: float

    def max_total_tokens(self, num_pinned_blocks: int) -> int:
        """Tokens that one sequence may ever hold: the context, or what snapshots leave of the smallest KV pool."""
        num_blocks = self.scheduler.num_blocks - num_pinned_blocks
        return min(self.context_length - 1, num_blocks * self.scheduler.block_size)
