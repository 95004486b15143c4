"""KV blocks by the tokens that led to them: their keys, and in which order resting ones are given up.

A key is a chain hash of all token ids from position 0 through the block, next to a digest of the arithmetic that
computed it. The tokens of the block are kept and compared, so equal hashes are never enough.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from hashlib import blake2b

TOKEN_BYTES = 4
_CHAIN_BYTES = 16
ROOT = bytes(_CHAIN_BYTES)
"""The chain hash before the first block."""
_MIN_STALE = 64


def chain_hash(before: bytes, token_bytes: bytes) -> bytes:
    """The chain hash through a block, from that through the block before and this one's int32 token ids."""
    return blake2b(before + token_bytes, digest_size=_CHAIN_BYTES).digest()


@dataclass(slots=True, eq=False)
class Entry:
    """A keyed block. `depth` is its index in its sequence; `last_use` the step in which its last reference went."""

    numerics: bytes
    chain: bytes
    token_bytes: bytes
    block: int
    depth: int
    last_use: int = 0
    is_evictable: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.token_bytes) // TOKEN_BYTES

    @property
    def rank(self) -> tuple[int, int, bytes]:
        """The lowest goes first: longest unused, then deepest, so that no chain ever loses its middle.

        The rest of the order must be the same on all stages, so it cannot be the block's number.
        """
        return self.last_use, -self.depth, self.chain


class PrefixIndex:
    """All keyed blocks of a pool, in use or resting."""

    def __init__(self) -> None:
        self._entries: dict[bytes, Entry] = {}
        self._by_block: dict[int, Entry] = {}
        self._queue: list[tuple[tuple[int, int, bytes], int]] = []
        self.num_evictable = 0
        self.num_errors = 0
        self.step = 0
        """What `last_use` is set to; the caller counts it up."""

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, numerics: bytes, chain: bytes, token_bytes: bytes) -> Entry | None:
        """The block of this key, if its tokens are these."""
        entry = self._entries.get(numerics + chain)
        if entry is not None and entry.token_bytes != token_bytes:
            self.num_errors += 1
            return None
        return entry

    def add(self, entry: Entry) -> bool:
        """Key a block; False if the key is taken."""
        assert entry.block not in self._by_block, entry
        if self._entries.setdefault(entry.numerics + entry.chain, entry) is not entry:
            return False
        self._by_block[entry.block] = entry
        return True

    def of_block(self, block: int) -> Entry | None:
        return self._by_block.get(block)

    def remove(self, entry: Entry) -> None:
        """Forget a block's key."""
        if entry.is_evictable:
            self._leave_evictable(entry)
        del self._entries[entry.numerics + entry.chain]
        del self._by_block[entry.block]

    # --- at rest ---

    def rest(self, block: int) -> None:
        """The last reference to a keyed block has gone."""
        entry = self._by_block[block]
        entry.is_evictable, entry.last_use = True, self.step
        self.num_evictable += 1
        if len(self._queue) > 2 * self.num_evictable + _MIN_STALE:
            # What was woken stays in the queue until it is met; here all of that goes at once.
            live = [e for e in self._by_block.values() if e.is_evictable and e is not entry]
            self._queue = [(e.rank, e.block) for e in live]
            heapq.heapify(self._queue)
        heapq.heappush(self._queue, (entry.rank, block))

    def wake(self, block: int) -> None:
        """A resting block is referred to again."""
        self._leave_evictable(self._by_block[block])

    def oldest(self) -> Entry:
        """The resting block to give up first; there is one."""
        while True:
            rank, block = self._queue[0]
            entry = self._by_block.get(block)
            if entry is not None and entry.is_evictable and entry.rank == rank:
                return entry
            heapq.heappop(self._queue)

    def evictable_blocks(self) -> list[int]:
        return [entry.block for entry in self._by_block.values() if entry.is_evictable]

    def chains(self, numerics: bytes) -> set[bytes]:
        """Chain hashes of all blocks keyed with `numerics`: which prefixes are held."""
        return {entry.chain for entry in self._entries.values() if entry.numerics == numerics}

    def _leave_evictable(self, entry: Entry) -> None:
        entry.is_evictable = False
        self.num_evictable -= 1
