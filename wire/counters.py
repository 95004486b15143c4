"""What a stage has done since its start, as its heartbeats carry it: counts that only grow, and what it holds now."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class HeadCounters:
    """Of a pipeline's head, since its process began; `num_waiting` and `num_running` are of now.

    `round_trips_s` adds up how long `num_round_trips` steps took through all stages and back; `hops_s` is what of that
    the stages do not explain, less what may have lain unread at a busy one.
    """

    num_waiting: int
    num_running: int
    num_round_trips: int
    round_trips_s: float
    hops_s: float


@dataclass(frozen=True, slots=True)
class TailCounters:
    """Of a pipeline's tail, since it was assembled: tokens of prompts, cached ones among them, and tokens drawn."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int


@dataclass(frozen=True, slots=True)
class StageCounters:
    """Of one stage, since its process began to serve, on its own clock.

    `idle_s` it waited for messages; `prefill_s` are forward passes that held prompt chunks, `decode_s` all others, with
    the tokens of each kind. `num_queued_steps` wait for it now; requests use `num_used_blocks` of its KV blocks, and
    `num_cached_blocks` rest.
    """

    uptime_s: float
    idle_s: float
    num_steps: int
    num_prefill_tokens: int
    num_decode_tokens: int
    prefill_s: float
    decode_s: float
    plan_s: float
    sample_s: float
    codec_s: float
    num_queued_steps: int
    num_used_blocks: int
    num_cached_blocks: int
    head: HeadCounters | None
    tail: TailCounters | None

    @property
    def is_sound(self) -> bool:
        """Finite and not negative throughout, so that whoever shows it may divide and draw."""
        parts = [part for part in (self, self.head, self.tail) if part is not None]
        values = [getattr(part, field.name) for part in parts for field in fields(part)]
        numbers = [value for value in values if isinstance(value, int | float)]
        return all(math.isfinite(number) and number >= 0 for number in numbers)
