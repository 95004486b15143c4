"""Pipelines of toy stages, and what their answers say about restoring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.in_process import InProcessPipeline, request
from support.toy_operators import VOCAB_SIZE, ToyOperators, expected_tokens

from stagewire.wire.request import FinishReason, StageTiming, Usage
from stagewire.wire.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
CUTS = [(0, 2), (2, 3), (3, 6)]
TIMING = StageTiming(0, 1, 0.0, 0.0, 0.0)


def toy_pipeline(num_blocks: int = 600, cuts: Sequence[tuple[int, int]] = CUTS, **options: Any) -> InProcessPipeline:
    operators = [ToyOperators(*cut, cuts[-1][1], num_blocks) for cut in cuts]
    return InProcessPipeline(operators, 2, VOCAB_SIZE, **options)


def restored_tokens(pipeline: InProcessPipeline) -> list[int]:
    return [store.statistics.restored_tokens for store in pipeline.stores]


def ask(pipeline: InProcessPipeline, name: str, prompt: Sequence[int], max_tokens: int = 3) -> Usage:
    """Run one request to its end; returns its usage, after looking at its tokens."""
    pipeline.start(request(name, prompt, max_tokens, GREEDY))
    output = pipeline.run()[name]
    assert output.ending is not None and output.ending.finish_reason is FinishReason.LENGTH
    assert output.token_ids == expected_tokens(list(prompt), max_tokens, CUTS[-1][1])
    return output.ending.usage
