"""What the head schedules for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Sizes of the pipeline that the head schedules for; `num_blocks` is its smallest KV pool.

    `are_blocks_shared`: all stages make one block of equal ones, so snapshots of a common beginning hold it together.
    Not without a prefix cache, and not where rows are not exact.
    """

    num_stages: int
    num_blocks: int
    block_size: int
    max_sequences: int
    chunk_tokens: int
    chunk_target_s: float
    are_blocks_shared: bool = True
