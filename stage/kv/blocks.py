"""Who refers to which KV block of one pool: reference counts, no memory, no arithmetic, and no token.

A block without references is free, or, where it is keyed, it rests: its content stays and can be referred to again
until the pool needs the block. Which block is taken next is a pure function of the calls before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stagewire.stage.kv.prefix_index import TOKEN_BYTES, Entry, PrefixIndex


@dataclass(frozen=True, slots=True)
class OutOfBlocks:
    """The pool has fewer blocks left than were asked for; the sequence holds what it held."""

    num_needed: int
    num_free: int


@dataclass(frozen=True, slots=True)
class MissingTokens:
    """The sequence holds only `length` tokens, fewer than the position to write at; nothing was changed."""

    length: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Room was made, and block `source` is to be copied to `target` before anything is written."""

    source: int
    target: int


@dataclass(slots=True)
class HeldSequence:
    """`entries` are the keyed ones of its leading full blocks.

    `prompt_end` is where its last prefill ended, until that is published; rows from `decoded_from` on were
    computed by decode. `is_cut`: the last block goes on behind the end, in a sequence that keys it as a full one.
    """

    blocks: list[int] = field(default_factory=list)
    token_bytes: bytearray = field(default_factory=bytearray)
    entries: list[Entry] = field(default_factory=list)
    prompt_end: int = 0
    decoded_from: int | None = None
    is_cut: bool = False

    @property
    def length(self) -> int:
        return len(self.token_bytes) // TOKEN_BYTES


class BlockPool:
    """Blocks `[0, num_blocks)`, of which at most `capacity` are in use or resting at a time.

    The capacity is the pipeline's smallest pool, so that its stages run out of blocks at the same step.
    """

    def __init__(self, num_blocks: int, index: PrefixIndex) -> None:
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._index = index
        self._num_used = 0
        self.capacity = self._max_evictable = num_blocks
        self.num_evicted = self.num_evicted_tokens = 0

    @property
    def num_free(self) -> int:
        """Blocks that nobody refers to, resting ones included."""
        return self.capacity - self._num_used

    def limit(self, capacity: int, max_evictable: int) -> None:
        """Change the limits; what rests beyond them is given up."""
        self.capacity, self._max_evictable = capacity, max_evictable
        while self._index.num_evictable > min(max_evictable, self.num_free):
            self._evict()

    def take(self) -> int:
        """A block with one reference, the one freed last, or else the oldest of those that rest.

        The caller has looked at `num_free`.
        """
        if not self._free or self._num_used + self._index.num_evictable >= self.capacity:
            self._evict()
        block = self._free.pop()
        self._references[block] = 1
        self._num_used += 1
        return block

    def share(self, block: int) -> None:
        """One more reference to a block that is in use or rests."""
        if not self._references[block]:
            self._index.wake(block)
            self._num_used += 1
        self._references[block] += 1

    def drop(self, block: int) -> None:
        """Give up one reference; the last one leaves a keyed block at rest."""
        assert self._references[block] > 0, block
        self._references[block] -= 1
        if self._references[block]:
            return
        self._num_used -= 1
        if self._index.of_block(block) is None:
            self._free.append(block)
            return
        self._index.rest(block)
        if self._index.num_evictable > self._max_evictable:
            self._evict()

    def has_one_owner(self, block: int) -> bool:
        return self._references[block] == 1

    def evict_all(self) -> None:
        """Forget all that rests."""
        while self._index.num_evictable:
            self._evict()

    def _evict(self) -> None:
        entry: Entry = self._index.oldest()
        self._index.remove(entry)
        self._free.append(entry.block)
        self.num_evicted += 1
        self.num_evicted_tokens += entry.num_tokens

    def check_invariants(self, block_lists: list[list[int]]) -> None:
        """Raise AssertionError unless exactly these lists refer to the blocks that are in use."""
        counts = [0] * len(self._references)
        for block in (block for blocks in block_lists for block in blocks):
            counts[block] += 1
        assert counts == self._references
        resting = self._index.evictable_blocks()
        assert sorted([*self._free, *resting]) == [block for block, count in enumerate(counts) if count == 0]
        assert self._num_used == sum(count > 0 for count in counts)
        assert self._num_used + len(resting) <= self.capacity
        assert len(resting) <= self._max_evictable
