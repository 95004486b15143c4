"""Which KV blocks a sequence holds: reference counts and block lists, no memory and no arithmetic.

A sequence is a list of references to blocks of one pool; a block is free when nobody refers to it. Which block a
sequence gets is a pure function of the calls before, so stages that saw the same steps hold the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class OutOfBlocks:
    """The pool has fewer free blocks than were asked for; nothing was changed."""

    num_needed: int
    num_free: int


@dataclass(frozen=True, slots=True)
class Behind:
    """The sequence holds only `length` tokens, fewer than the position to write at; nothing was changed."""

    length: int


class BlockPool:
    """Reference counts of `num_blocks` blocks; the block freed last is taken first."""

    def __init__(self, num_blocks: int) -> None:
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A free block, with one reference; the caller has looked at `num_free`."""
        block = self._free.pop()
        self._references[block] = 1
        return block

    def drop(self, block: int) -> None:
        """Give up one reference."""
        assert self._references[block] > 0, block
        self._references[block] -= 1
        if self._references[block] == 0:
            self._free.append(block)

    def check_invariants(self, block_lists: list[list[int]]) -> None:
        """Raise AssertionError unless exactly these lists refer to the blocks that are taken."""
        counts = [0] * len(self._references)
        for block in (block for blocks in block_lists for block in blocks):
            counts[block] += 1
        assert counts == self._references
        assert sorted(self._free) == [block for block, count in enumerate(counts) if count == 0]


@dataclass(slots=True)
class _Sequence:
    blocks: list[int] = field(default_factory=list)
    length: int = 0


class BlockTables:
    """The block lists of all sequences of one stage."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._pool = BlockPool(num_blocks)
        self._block_size = block_size
        self._sequences: dict[int, _Sequence] = {}

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds."""
        return self._pool.num_free

    def length(self, seq_id: int) -> int:
        """Tokens that the sequence holds, 0 if it is unknown."""
        sequence = self._sequences.get(seq_id)
        return sequence.length if sequence else 0

    def append(self, seq_id: int, pos_start: int, num_tokens: int) -> OutOfBlocks | Behind | None:
        """Make room for tokens `[pos_start, pos_start + num_tokens)`; what lay at or after `pos_start` is dropped.

        Returns:
            None when done; else why not, and nothing has changed.
        """
        sequence = self._sequences.get(seq_id) or _Sequence()
        if sequence.length < pos_start:
            return Behind(sequence.length)
        kept, needed = self._blocks_for(pos_start), self._blocks_for(pos_start + num_tokens)
        num_returned = len(sequence.blocks) - kept
        if needed - kept > self._pool.num_free + num_returned:
            return OutOfBlocks(needed - kept, self._pool.num_free + num_returned)
        self._sequences[seq_id] = sequence
        # A rewound sequence writes over its own blocks: those that it needs again stay where they are.
        self._truncate(sequence, max(kept, min(needed, len(sequence.blocks))))
        sequence.blocks += [self._pool.take() for _ in range(needed - len(sequence.blocks))]
        sequence.length = pos_start + num_tokens
        return None

    def block_table(self, seq_id: int) -> NDArray[np.int32]:
        """The sequence's blocks in order of position, int32."""
        return np.array(self._sequences[seq_id].blocks, dtype=np.int32)

    def release(self, seq_id: int) -> None:
        """Give up all blocks of a sequence; unknown ones are ignored."""
        sequence = self._sequences.pop(seq_id, None)
        if sequence is not None:
            self._truncate(sequence, 0)

    def check_invariants(self) -> None:
        """Raise AssertionError if a block is lost, held twice, or a list has the wrong length."""
        self._pool.check_invariants([sequence.blocks for sequence in self._sequences.values()])
        for sequence in self._sequences.values():
            assert len(sequence.blocks) == self._blocks_for(sequence.length)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _truncate(self, sequence: _Sequence, num_blocks: int) -> None:
        while len(sequence.blocks) > num_blocks:
            self._pool.drop(sequence.blocks.pop())
