"""What the head schedules for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Sizes of the pipeline that the head schedules for; `num_blocks` is its smallest KV pool."""

    num_stages: int
    num_blocks: int
    block_size: int
    max_sequences: int
    chunk_tokens: int
    chunk_target_s: float
