"""A stage's books for one step: which KV blocks its rows take, what is restored or missing, what goes on from here.

`plan` comes before the forward pass, `forward` after it. The pass itself and the clock are the worker's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stagewire.stage.compute.operators import Batch, Operators, SequenceRows
from stagewire.stage.files.jobs import FileJob, Staged
from stagewire.stage.files.stage_files import StageFiles
from stagewire.stage.kv.blocks import Behind, Copy, OutOfBlocks
from stagewire.stage.kv.prefix_index import TOKEN_BYTES
from stagewire.stage.kv.store import KvStore
from stagewire.wire.errors import ErrorCode, StagewireError
from stagewire.wire.request import NO_STATISTICS, StageTiming
from stagewire.wire.ring import RESTORES, Miss, Phase, Slice, Step
from stagewire.wire.tensor import DType, Tensor

TokenArray = npt.NDArray[np.int32]


class StepFailed(StagewireError):
    """A step could not be computed; the epoch ends with `code`."""

    default_code = ErrorCode.DECODE_FAILED


@dataclass(frozen=True, slots=True)
class Write:
    """Block `block` gets this content, which was read from a file."""

    block: int
    content: bytes


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

    def lookup(self, token_ids: Sequence[int], limit: int, num_elsewhere: int | None) -> int:
        """For the head of this very stage: how many of the first `limit` tokens a restore would give now."""
        return self._store.lookup(np.array(token_ids, dtype=np.int32), limit, num_elsewhere)

    def plan(self, step: Step) -> Plan:
        """Release, restore, append, look for misses.

        Raises:
            StepFailed: the step contradicts itself or the pool; the epoch must end.
        """
        self._check_sizes(step)
        self.begin(step.step_id, step.releases)
        pieces = list(self._pieces(step))
        writes: list[Write] = []
        slices = [self._restore(piece, token_ids, writes) for piece, token_ids in pieces]
        copies: list[Copy] = []
        slices = [self._append(piece, ids, copies) for piece, (_, ids) in zip(slices, pieces, strict=True)]
        slices = [self._keep(piece) if piece.keep else piece for piece in slices]
        misses = [
            Miss(step.step_id, new.seq_id, self._store.length(new.seq_id))
            for new, (old, _) in zip(slices, pieces, strict=True)
            if new.missed and not old.missed
        ]
        batch = self._batch(slices, [ids for _, ids in pieces])
        planned = self._planned(step, tuple(slices))
        hidden_states = self._input(step, slices, bool(misses))
        jobs = tuple(self.files.job(order) for order in step.orders)
        return Plan(planned, batch, hidden_states, tuple(misses), tuple(copies), tuple(writes), jobs)

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
        for piece in step.slices:
            yield piece, token_ids[offset : offset + piece.num_tokens]
            offset += piece.num_tokens

    def _planned(self, step: Step, slices: tuple[Slice, ...]) -> Step:
        """The step with what became of its slices, and of the cache; most steps change neither."""
        recent, bit = self._store.take_statistics(), 1 << self._stage_index
        if recent is NO_STATISTICS and slices == step.slices:
            return step
        seen = replace(recent, hit_stages=bit if recent.hits else 0, miss_stages=bit if recent.misses else 0)
        return replace(step, slices=slices, cache=step.cache.plus(seen))

    # --- restoring ---

    def _restore(self, piece: Slice, token_ids: TokenArray, writes: list[Write]) -> Slice:
        """Take what the cache holds of a restore's prefix; all of it, or else the wish shrinks for who comes next.

        A restore-and-decode that has shrunk is missed: of what it would compute nothing goes on from here.
        """
        if piece.phase not in RESTORES or not piece.num_restored:
            return piece
        if piece.phase is Phase.RESUME:
            is_held = piece.source is not None and self._store.resume(piece.source, piece.seq_id, token_ids)
            return piece if is_held else replace(piece, num_restored=0, missed=True)
        fetched, held = 0, self._store.restore(piece.seq_id, token_ids, piece.num_restored)
        if held < piece.num_restored and (staged := self.files.take(piece.seq_id)):
            fetched = self._unstage(piece, token_ids, held, staged, writes) - held
        found = held + fetched
        self._store.cache.count_lookup(found, piece.num_restored)
        self._store.cache.count_tokens(held, fetched, piece.num_restored - found)
        is_short = piece.phase is Phase.TRY_RESTORE_DECODE and found < piece.num_tokens - 1
        return replace(piece, num_restored=found, missed=piece.missed or is_short)

    def _unstage(self, piece: Slice, token_ids: TokenArray, held: int, staged: Staged, writes: list[Write]) -> int:
        """Put what was read behind the `held` tokens into blocks of the sequence; returns how many it holds then."""
        size = self._store.block_size
        first = held // size
        skipped = (first - staged.depth) * size * TOKEN_BYTES
        end = min(piece.num_restored, staged.depth * size + len(staged.token_bytes) // TOKEN_BYTES)
        wanted = token_ids[first * size : end]
        if skipped < 0 or end <= held or staged.token_bytes[skipped : skipped + wanted.nbytes] != wanted.tobytes():
            return held
        self._take(self._store.append(piece.seq_id, first * size, wanted, is_prompt=False), piece)
        blocks = self._store.block_table(piece.seq_id)[first:].tolist()
        contents = staged.contents[first - staged.depth :]
        writes += [Write(block, content) for block, content in zip(blocks, contents, strict=False)]
        self._store.cache.count_restored(end - held, num_fetched=end - held)
        return end

    # --- appending ---

    def _append(self, piece: Slice, token_ids: TokenArray, copies: list[Copy]) -> Slice:
        """Make room for a slice's rows, or mark it as missed."""
        if not piece.num_rows:
            return piece
        rows, is_prompt = piece, piece.phase is not Phase.DECODE
        if piece.phase is Phase.TRY_RESTORE_DECODE:
            rows, token_ids = piece.as_decode(), token_ids[-1:]
        is_decode = rows.phase is Phase.DECODE
        made = self._store.append(rows.seq_id, rows.pos_start, token_ids, is_decode=is_decode, is_prompt=is_prompt)
        made = self._take(made, piece)
        if isinstance(made, Behind):
            return replace(piece, missed=True)
        if made is not None:
            copies.append(made)
        return piece

    @staticmethod
    def _take(made: OutOfBlocks | Behind | Copy | None, piece: Slice) -> Behind | Copy | None:
        """The head accounts for every block: a missing one is a bug of ours, or a lost message. Never guess."""
        if isinstance(made, OutOfBlocks):
            raise StepFailed(f"no KV block left for sequence {piece.seq_id}")
        return made

    def _keep(self, piece: Slice) -> Slice:
        keep = piece.keep
        is_kept = keep and not piece.missed and self._store.keep(piece.seq_id, keep.seq_id, keep.num_tokens)
        return piece if is_kept else replace(piece, keep=None)

    def _batch(self, slices: Sequence[Slice], token_ids: Sequence[TokenArray]) -> Batch | None:
        parts: list[SequenceRows] = []
        row_ids: list[TokenArray] = []
        logit_rows: list[int] = []
        num_rows = 0
        for piece, ids in zip(slices, token_ids, strict=True):
            if new := piece.num_rows:
                pos_start = piece.pos_start + piece.num_tokens - new
                parts.append(SequenceRows(num_rows, new, pos_start, self._store.block_table(piece.seq_id)))
                row_ids.append(ids[-new:])
                num_rows += new
                if piece.has_logits:
                    logit_rows.append(num_rows - 1)
        return Batch.of(np.concatenate(row_ids), parts, logit_rows) if parts else None

    def _check_sizes(self, step: Step) -> None:
        num_tokens = sum([piece.num_tokens for piece in step.slices])
        if len(step.token_ids) != num_tokens or any(piece.num_tokens < 1 for piece in step.slices):
            raise StepFailed(f"step {step.step_id}: {len(step.token_ids)} token ids for {num_tokens} tokens")
        for piece in step.slices:
            if piece.phase in RESTORES:
                self._check_restore(piece)
        num_rows = 0 if self._is_first else sum([piece.num_rows for piece in step.slices])
        if not num_rows:
            return
        hidden = step.hidden_states
        shape, dtype = (hidden.shape, hidden.dtype) if hidden else ((), DType.F32)
        if shape != (num_rows, self._hidden_size) or dtype is not DType.F32:
            expected = f"{DType.F32.value}{(num_rows, self._hidden_size)}"
            raise StepFailed(f"step {step.step_id}: hidden states {dtype.value}{shape} for {expected}")

    @staticmethod
    def _check_restore(piece: Slice) -> None:
        """A restore begins at position 0; with a decode it names both a prefix and the token to continue from."""
        num_prefix = piece.num_tokens - (piece.phase is Phase.TRY_RESTORE_DECODE)
        if piece.pos_start or num_prefix < 1 or piece.num_restored > num_prefix:
            detail = f"{piece.phase.value} of sequence {piece.seq_id}: needs a prefix from position 0"
            if piece.phase is Phase.TRY_RESTORE_DECODE:
                detail += " and behind it the token to continue from"
            raise StepFailed(detail, ErrorCode.RESTORE_INCOMPLETE)

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
