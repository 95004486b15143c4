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

    `block_table` (int32) lists the sequence's KV blocks from position 0 and reaches at least
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
    """The rows of one step; every array int32 and one-dimensional.

    `slices` cover the rows in order, each sequence once. `logit_rows` are the rows whose logits the last stage
    returns, in that order; other stages ignore them.
    """

    token_ids: NDArray[np.int32]
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
        """Builds a batch, and checks it."""
        batch = cls(np.asarray(token_ids, np.int32), tuple(slices), np.array(logit_rows, np.int32))
        batch.check()
        return batch

    def check(self) -> None:
        """Raises ValueError unless the fields are as they promise: a wrong row would be computed silently."""
        row = 0
        for part in self.slices:
            if part.row_start != row or part.num_rows < 1 or part.pos_start < 0:
                raise ValueError(f"rows that do not follow each other: {part}")
            table = part.block_table
            if table.dtype != np.int32 or len(table) * BLOCK_SIZE < part.pos_start + part.num_rows:
                raise ValueError(f"a block table that ends early, or is not of int32: {part}")
            row += part.num_rows
        if row != self.num_rows:
            raise ValueError(f"{self.num_rows} token ids for {row} rows")
        logit_rows = self.logit_rows.tolist()
        if logit_rows and not 0 <= min(logit_rows) <= max(logit_rows) < row:
            raise ValueError(f"logits of a row outside the batch: {logit_rows} of {row}")


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
