"""Steps for one stage's executor, and what its plans hold, as lists that can be compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stagewire.stage.compute.operators import Batch
from stagewire.stage.executor import Plan
from stagewire.wire.ring import Phase, Slice, Step
from stagewire.wire.tensor import DType, Tensor, TokenIds


def prefill(seq_id: int, num_tokens: int, pos_start: int = 0, sample: bool = True) -> Slice:
    return Slice(seq_id, Phase.PREFILL, pos_start, num_tokens, sample)


def decode(seq_id: int, position: int) -> Slice:
    return Slice(seq_id, Phase.DECODE, position, 1, True)


def step(
    *slices: Slice,
    step_id: int = 2,
    token_ids: Sequence[int] | None = None,
    releases: tuple[int, ...] = (),
    hidden_states: Tensor | None = None,
) -> Step:
    """Unless they are given, its token ids are each slice's positions."""
    positions = [at for span in slices for at in range(span.pos_start, span.pos_start + span.num_tokens)]
    packed = TokenIds.of(positions if token_ids is None else token_ids)
    return Step(step_id, releases, (), slices, (), (), packed, hidden_states)


def activations(num_rows: int, width: int = 2, dtype: DType = DType.F32) -> Tensor:
    values = np.arange(num_rows * width).reshape(num_rows, width)
    return Tensor.from_numpy(values.astype(np.float32 if dtype is DType.F32 else np.uint16), dtype)


def rows_of(batch: Batch | None) -> list[tuple[list[int], int, list[int]]]:
    """Of each sequence in a batch: its token ids, the position of the first, its blocks."""
    assert batch is not None
    return [
        (batch.token_ids[part.row_start :][: part.num_rows].tolist(), part.pos_start, part.block_table.tolist())
        for part in batch.slices
    ]


def taken(plan: Plan) -> list[list[float]] | None:
    return None if plan.hidden_states is None else plan.hidden_states.tolist()
