"""What a stage asks of its arithmetic: one call per step, numpy arrays only; no torch here, nor scheduling.

Dimension letters, here and in the implementations: T tokens (rows) of a step, R rows with logits, D hidden
size, H query heads, K key-value heads, E elements of a head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

BLOCK_SIZE = 16
"""Tokens in a KV block."""


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """Consecutive rows of a batch that are consecutive tokens of one sequence.

    `block_table` (int32, C-contiguous) lists the sequence's KV blocks from position 0 and reaches at least
    through position `pos_start + num_rows - 1`. Keys and values of earlier positions are in them already.
    """

    row_start: int
    num_rows: int
    pos_start: int
    block_table: NDArray[np.int32]

    @property
    def positions(self) -> NDArray[np.int32]:
        return np.arange(self.pos_start, self.pos_start + self.num_rows, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step; every array int32, one-dimensional and C-contiguous, so that its address will do.

    `slices` cover the rows in order, each sequence once. `positions[row]` is the row's place in its sequence.
    `logit_rows` are the rows whose logits the last stage returns, in that order; other stages ignore them.
    """

    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    slices: tuple[SequenceRows, ...]
    logit_rows: NDArray[np.int32]

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @classmethod
    def of(
        cls,
        token_ids: Sequence[int] | NDArray[np.int32],
        slices: Sequence[SequenceRows],
        logit_rows: Sequence[int],
    ) -> Batch:
        """Builds a batch, deriving the positions from `slices`."""
        # From a list: one array for each slice costs more, except in prefill, where it does not matter.
        positions = [part.pos_start + offset for part in slices for offset in range(part.num_rows)]
        batch = cls(
            np.ascontiguousarray(token_ids, dtype=np.int32),
            np.array(positions, dtype=np.int32),
            tuple(slices),
            np.array(logit_rows, dtype=np.int32),
        )
        batch.check()
        return batch

    def check(self) -> None:
        """Asserts what the fields promise: a wrong row would read or write past the end, silently."""
        row = 0
        for part in self.slices:
            table = part.block_table
            assert part.row_start == row, part
            assert min(part.num_rows - 1, part.pos_start) >= 0, part
            assert table.dtype == np.int32, table.dtype
            assert table.flags.c_contiguous, part
            assert len(table) * BLOCK_SIZE >= part.pos_start + part.num_rows, part
            row += part.num_rows
        assert row == len(self.token_ids) == len(self.positions), (row, len(self.token_ids))
        logit_rows = self.logit_rows.tolist()
        assert not logit_rows or 0 <= min(logit_rows) <= max(logit_rows) < row, logit_rows


class Operators(Protocol):
    """The layers `[layer_start, layer_end)` of one model, their weights and their KV pool.

    An implementation is not thread-safe; one thread calls it.
    """

    @property
    def fingerprint(self) -> str:
        """Equal for two implementations only if they compute equal bits."""

    @property
    def is_row_exact(self) -> bool:
        """Proved at start: a row depends only on the tokens of its sequence up to it, not on the batch."""

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV pool."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one KV block: keys and values of its tokens in all layers of this stage."""

    @property
    def file_bytes(self) -> int:
        """Bytes of this stage's own tensors in the model file."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of memory that the same tensors take as they are loaded."""

    def copy_block(self, source: int, target: int) -> None:
        """Copies one block's keys and values, of all layers, to another block."""

    def read_block(self, block: int) -> bytes:
        """Returns one block's keys and values, of all layers: `block_bytes` in an order of the implementation's own."""

    def write_block(self, block: int, content: bytes) -> None:
        """Reverses `read_block`."""

    def forward(self, batch: Batch, hidden_states: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """Runs one step, and stores the keys and values of all its rows in their blocks.

        Args:
            batch: the rows. Block numbers lie in `[0, num_blocks)` and token ids in the vocabulary.
            hidden_states: float32 [T, D] from the previous stage, not modified; None at the first stage,
                which embeds `batch.token_ids`.

        Returns:
            A new array: float32 [T, D] for the next stage, or, from the last, logits float32 [R, V].
        """
