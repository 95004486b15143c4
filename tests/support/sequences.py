"""Sequences, limits and answers of a tail, for tests of scheduling."""

from __future__ import annotations

from stagewire.stage.schedule.limits import SchedulerLimits
from stagewire.stage.schedule.sequence import Sequence
from stagewire.wire.request import FinishReason, Usage
from stagewire.wire.ring import (
    SequenceResult,
    StartRequest,
    Step,
    StepResult,
)
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import TokenIds


def limits(
    num_stages: int = 2,
    num_blocks: int = 100,
    max_sequences: int = 8,
    chunk_tokens: int = 64,
    chunk_target_s: float = 1.0,
) -> SchedulerLimits:
    return SchedulerLimits(
        num_stages=num_stages,
        num_blocks=num_blocks,
        block_size=4,
        max_sequences=max_sequences,
        chunk_tokens=chunk_tokens,
        chunk_target_s=chunk_target_s,
    )


def sequence(seq_id: int, num_prompt: int = 4, max_tokens: int = 5) -> Sequence:
    prompt = list(range(100 * seq_id, 100 * seq_id + num_prompt))
    request = StartRequest(
        f"r{seq_id}", "c", "s", SamplingParams(seed=1), max_tokens, (), False, None, TokenIds.of(prompt)
    )
    return Sequence(seq_id, request, prompt, num_prompt, max_tokens)


def sampled(step: Step, token_id: int = 7, finish: FinishReason | None = None) -> StepResult:
    """What a tail would answer: one token for each slice that samples."""
    usage = Usage(1, 1) if finish else None
    results = [SequenceResult(s.seq_id, (token_id,), finish, None, usage) for s in step.slices if s.sample]
    results += [SequenceResult(f.seq_id, (), f.finish_reason, None, Usage(1, 0)) for f in step.finishes]
    return StepResult(step.step_id, tuple(results), ())
