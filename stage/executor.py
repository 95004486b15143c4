"""A stage's books for one step: which KV blocks its rows take, what is restored or missing, what goes on from here.

`plan` comes before the forward pass, `forward` after it. The pass itself and the clock are the loop's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stagewire.stage.compute.operators import Batch, Operators, SequenceRows
from stagewire.stage.files.jobs import FileJob
from stagewire.stage.files.stage_files import StageFiles
from stagewire.stage.kv.blocks import Copy, MissingTokens, OutOfBlocks
from stagewire.stage.kv.store import KvStore
from stagewire.stage.restorer import Restorer, StepFailed, Write, check_restore, no_block_left
from stagewire.wire.request import NO_STATISTICS, StageTiming, Unrecorded
from stagewire.wire.ring import RESTORES, Miss, Phase, Slice, Step
from stagewire.wire.tensor import DType, Tensor

TokenArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Plan:
    """A step made ready: `step` with its misses marked, the rows to compute (None: nothing), their input.

    `writes` of what was read from files come first, then `copies` of KV blocks, each in their order. `jobs` begin after
    the pass.
    """

    step: Step
    batch: Batch | None
    hidden_states: npt.NDArray[np.float32] | None
    misses: tuple[Miss, ...]
    copies: tuple[Copy, ...]
    writes: tuple[Write, ...] = ()
    jobs: tuple[FileJob, ...] = ()

    def compute(self, operators: Operators) -> npt.NDArray[np.float32] | None:
        """Write and copy what has to be, and run the layers if there are rows for them."""
        for write in self.writes:
            operators.write_block(write.block, write.content)
        for copy in self.copies:
            operators.copy_block(copy.source, copy.target)
        return operators.forward(self.batch, self.hidden_states) if self.batch else None


class StepExecutor:
    """Sequences of one pipeline epoch in this stage's KV store."""

    def __init__(self, store: KvStore, hidden_size: int, stage_index: int, files: StageFiles) -> None:
        self._store, self.files = store, files
        self._hidden_size, self._stage_index = hidden_size, stage_index
        self._is_first = stage_index == 0

    def lookup(self, token_ids: Sequence[int], limit: int) -> int:
        """For the head of this very stage: how many of the first `limit` tokens a restore would give now."""
        return self._store.lookup(np.array(token_ids, dtype=np.int32), limit)

    def plan(self, step: Step) -> Plan:
        """Release, restore, append, look for misses.

        Raises:
            StepFailed: the step contradicts itself or the pool; the epoch must end.
        """
        self._check_sizes(step)
        self.begin(step.step_id, step.releases)
        spans = list(self._pieces(step))
        slices, restorer = [span for span, _ in spans], None
        if step.starts or any(span.phase in RESTORES for span in step.slices):
            restorer = Restorer(self._store, self.files, self._stage_index)
            slices = [restorer.restore(span, ids) if span.phase in RESTORES else span for span, ids in spans]
            restorer.count_asked(step)
        copies: list[Copy] = []
        slices = [self._append(span, ids, copies) for span, (_, ids) in zip(slices, spans, strict=True)]
        slices = [self._keep(span) if span.keep else span for span in slices]
        misses = [
            Miss(step.step_id, new.seq_id, self._store.length(new.seq_id))
            for new, (old, _) in zip(slices, spans, strict=True)
            if new.missed and not old.missed
        ]
        batch = self._batch(slices, [ids for _, ids in spans])
        planned = self._planned(step, tuple(slices), restorer)
        hidden_states = self._input(step, slices, bool(misses))
        writes = tuple(restorer.writes) if restorer else ()
        jobs = tuple(self.files.job(order) for order in step.orders)
        return Plan(planned, batch, hidden_states, tuple(misses), tuple(copies), writes, jobs)

    def begin(self, step_id: int, releases: Sequence[int]) -> None:
        """What comes first in a step: releases. Doing it again for the same step changes nothing."""
        self._store.begin_step(step_id)
        for seq_id in releases:
            self._store.release(seq_id)
            self.files.forget(seq_id)

    @staticmethod
    def _pieces(step: Step) -> Iterator[tuple[Slice, TokenArray]]:
        """Each slice and its tokens."""
        token_ids, offset = step.token_ids.to_numpy(), 0
        for span in step.slices:
            yield span, token_ids[offset : offset + span.num_tokens]
            offset += span.num_tokens

    def _planned(self, step: Step, slices: tuple[Slice, ...], restorer: Restorer | None) -> Step:
        """The step with what became of its slices, and of the cache; most steps change neither."""
        recent, bit = self._store.take_statistics(), 1 << self._stage_index
        unrecorded = self._unrecorded(step, slices)
        if recent is NO_STATISTICS and not unrecorded and slices == step.slices:
            return step
        seen = replace(recent, hit_stages=bit if recent.hits else 0, miss_stages=bit if recent.misses else 0)
        return replace(
            step,
            slices=slices,
            cache=step.cache.plus(seen),
            restored=restorer.restored(step.restored) if restorer else step.restored,
            unrecorded=unrecorded,
        )

    def _unrecorded(self, step: Step, slices: Sequence[Slice]) -> tuple[Unrecorded, ...]:
        """What sequences that may end with this step have left for the caches: their endings tell it."""
        finishing = {finish.seq_id for finish in step.finishes}
        told = {one.seq_id: one for one in step.unrecorded}
        ending = {span.seq_id for span in slices if not span.missed and (span.sample or span.seq_id in finishing)}
        for seq_id in sorted(ending):
            if num_new := self._store.num_unrecorded(seq_id):
                last = told.get(seq_id) or Unrecorded(seq_id, 0, 0)
                num_bytes = last.num_bytes + self._store.num_bytes(num_new)
                told[seq_id] = Unrecorded(seq_id, last.num_tokens + num_new, num_bytes)
        return tuple(told.values())

    # --- appending ---

    def _append(self, span: Slice, token_ids: TokenArray, copies: list[Copy]) -> Slice:
        """Make room for a slice's rows, or mark it as missed."""
        if not span.num_rows:
            return span
        rows, is_prompt = span, span.phase is not Phase.DECODE
        if span.phase is Phase.TRY_RESTORE_DECODE:
            rows, token_ids = span.as_decode(), token_ids[-1:]
        is_decode = rows.phase is Phase.DECODE
        made = self._store.append(rows.seq_id, rows.pos_start, token_ids, is_decode=is_decode, is_prompt=is_prompt)
        made = self._take(made, span)
        if isinstance(made, MissingTokens):
            return replace(span, missed=True)
        if made is not None:
            copies.append(made)
        return span

    @staticmethod
    def _take(made: OutOfBlocks | MissingTokens | Copy | None, span: Slice) -> MissingTokens | Copy | None:
        if isinstance(made, OutOfBlocks):
            raise no_block_left(span)
        return made

    def _keep(self, span: Slice) -> Slice:
        keep = span.keep
        is_kept = keep and not span.missed and self._store.keep(span.seq_id, keep.seq_id, keep.num_tokens)
        return span if is_kept else replace(span, keep=None)

    def _batch(self, slices: Sequence[Slice], token_ids: Sequence[TokenArray]) -> Batch | None:
        parts: list[SequenceRows] = []
        row_ids: list[TokenArray] = []
        logit_rows: list[int] = []
        num_rows = 0
        for span, ids in zip(slices, token_ids, strict=True):
            if new := span.num_rows:
                pos_start = span.pos_start + span.num_tokens - new
                parts.append(SequenceRows(num_rows, new, pos_start, self._store.block_table(span.seq_id)))
                row_ids.append(ids[-new:])
                num_rows += new
                if span.has_logits:
                    logit_rows.append(num_rows - 1)
        return Batch.of(np.concatenate(row_ids), parts, logit_rows) if parts else None

    def _check_sizes(self, step: Step) -> None:
        num_tokens = sum([span.num_tokens for span in step.slices])
        if len(step.token_ids) != num_tokens or any(span.num_tokens < 1 for span in step.slices):
            raise StepFailed(f"step {step.step_id}: {len(step.token_ids)} token ids for {num_tokens} tokens")
        for span in step.slices:
            if span.phase in RESTORES:
                check_restore(span)
        num_rows = 0 if self._is_first else sum([span.num_rows for span in step.slices])
        if not num_rows:
            return
        hidden = step.hidden_states
        shape, dtype = (hidden.shape, hidden.dtype) if hidden else ((), DType.F32)
        if shape != (num_rows, self._hidden_size) or dtype is not DType.F32:
            expected = f"{DType.F32.value}{(num_rows, self._hidden_size)}"
            raise StepFailed(f"step {step.step_id}: hidden states {dtype.value}{shape} for {expected}")

    def _input(self, step: Step, slices: Sequence[Slice], has_misses: bool) -> npt.NDArray[np.float32] | None:
        """The rows that an earlier stage sent, less those that this one misses."""
        if self._is_first or step.hidden_states is None:
            return None
        hidden_states: npt.NDArray[np.float32] = step.hidden_states.to_numpy().view(np.float32)
        if not has_misses:
            return hidden_states
        taken = [np.full(old.num_rows, not new.missed) for old, new in zip(step.slices, slices, strict=True)]
        return np.ascontiguousarray(hidden_states[np.concatenate(taken)])

    @staticmethod
    def forward(plan: Plan, hidden_states: npt.NDArray[np.float32] | None, timing: StageTiming) -> Step:
        """The step as the next stage gets it: float32 [T, D] activations, this stage's time added."""
        tensor = None if hidden_states is None else Tensor.from_numpy(hidden_states)
        return replace(plan.step, hidden_states=tensor, timings=(*plan.step.timings, timing))
