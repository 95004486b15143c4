"""A stage's books for one step: which KV blocks its rows take, what is missing, what goes on to the next stage.

`plan` comes before the forward pass, `forward` after it. The pass itself and the clock are the worker's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stagewire.stage.kv_blocks import BlockTables, OutOfBlocks
from stagewire.stage.operators import Batch, SequenceRows
from stagewire.wire.errors import ErrorCode, StagewireError
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import Miss, Slice, Step
from stagewire.wire.tensor import Tensor


class StepFailed(StagewireError):
    """A step could not be computed; the epoch ends with `code`."""

    default_code = ErrorCode.DECODE_FAILED


@dataclass(frozen=True, slots=True)
class Plan:
    """A step made ready: `step` with its misses marked, the rows to compute (None: nothing), their input."""

    step: Step
    batch: Batch | None
    hidden_states: npt.NDArray[np.float32] | None
    misses: tuple[Miss, ...]


class StepExecutor:
    """Sequences of one pipeline epoch in this stage's KV pool."""

    def __init__(self, tables: BlockTables, hidden_size: int, is_first: bool) -> None:
        self._tables = tables
        self._hidden_size, self._is_first = hidden_size, is_first

    def plan(self, step: Step) -> Plan:
        """Release, append, look for misses.

        Raises:
            StepFailed: the step contradicts itself or the pool; the epoch must end.
        """
        for seq_id in step.releases:
            self._tables.release(seq_id)
        self._check_sizes(step)
        misses: list[Miss] = []
        slices = tuple([piece if piece.missed else self._append(piece, step.step_id, misses) for piece in step.slices])
        kept, logit_rows, rows = [], [], 0
        for piece in slices:
            if not piece.missed:
                table = self._tables.block_table(piece.seq_id)
                kept.append(SequenceRows(rows, piece.num_tokens, piece.pos_start, table))
                rows += piece.num_tokens
                if piece.sample:
                    logit_rows.append(rows - 1)
        token_ids, hidden_states = step.token_ids.to_numpy(), self._sent(step)
        if rows < len(token_ids):
            token_ids, hidden_states = _without_missed(token_ids, hidden_states, step.slices, slices)
        batch = Batch.of(token_ids, kept, logit_rows) if kept else None
        return Plan(replace(step, slices=slices) if misses else step, batch, hidden_states, tuple(misses))

    def _append(self, piece: Slice, step_id: int, misses: list[Miss]) -> Slice:
        held = self._tables.append(piece.seq_id, piece.pos_start, piece.num_tokens)
        if isinstance(held, OutOfBlocks):
            # The head accounts for every block: this is a bug of ours, or a lost message. Never guess.
            raise StepFailed(f"step {step_id}: no KV block left for sequence {piece.seq_id}")
        if held is not None:
            misses.append(Miss(step_id, piece.seq_id, held.length))
            return replace(piece, missed=True)
        return piece

    def _check_sizes(self, step: Step) -> None:
        num_tokens = num_rows = 0
        for piece in step.slices:
            if piece.num_tokens < 1:
                raise StepFailed(f"step {step.step_id}: a slice of {piece.num_tokens} tokens")
            num_tokens += piece.num_tokens
            num_rows += 0 if piece.missed else piece.num_tokens
        if len(step.token_ids) != num_tokens:
            raise StepFailed(f"step {step.step_id}: {len(step.token_ids)} token ids for {num_tokens} tokens")
        if self._is_first or not num_rows:
            return
        shape = step.hidden_states.shape if step.hidden_states else ()
        if shape != (num_rows, self._hidden_size):
            raise StepFailed(f"step {step.step_id}: hidden states {shape} for {(num_rows, self._hidden_size)}")

    def _sent(self, step: Step) -> npt.NDArray[np.float32] | None:
        """The rows that an earlier stage computed."""
        if self._is_first or step.hidden_states is None:
            return None
        return step.hidden_states.to_numpy().astype(np.float32, copy=False)

    @staticmethod
    def forward(plan: Plan, hidden_states: npt.NDArray[np.float32] | None, timing: StageTiming) -> Step:
        """The step as the next stage gets it: float32 [T, D] activations, this stage's time added."""
        step = plan.step
        return Step(
            step_id=step.step_id,
            releases=step.releases,
            starts=step.starts,
            slices=step.slices,
            finishes=step.finishes,
            timings=(*step.timings, timing),
            token_ids=step.token_ids,
            hidden_states=None if hidden_states is None else Tensor.from_numpy(hidden_states),
        )


def _without_missed(
    token_ids: npt.NDArray[np.int32],
    hidden_states: npt.NDArray[np.float32] | None,
    sent: Sequence[Slice],
    kept: Sequence[Slice],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32] | None]:
    """Leave out the rows of missed slices; those that were missed before (`sent`) have no hidden states."""
    num_tokens = [piece.num_tokens for piece in sent]
    is_sent = np.repeat([not piece.missed for piece in sent], num_tokens)
    is_kept = np.repeat([not piece.missed for piece in kept], num_tokens)
    return token_ids[is_kept], None if hidden_states is None else hidden_states[is_kept[is_sent]]
