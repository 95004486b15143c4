"""Blocks of each stage that snapshots hold, as the head counts them: what several share counts once.

Two full blocks with the same tokens from position 0 on are one block in the prefix cache, which both hold.
A last, partial block is each snapshot's own.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

_KEY_BYTES = 16


class PinnedBlocks:
    """By snapshot id. `is_shared` is False where stages do not find equal blocks: each snapshot counts in full then."""

    def __init__(self, block_size: int, is_shared: bool) -> None:
        self._block_size, self._is_shared = block_size, is_shared
        self._holders: Counter[bytes] = Counter()
        self._held: dict[int, tuple[int, list[bytes]]] = {}
        self.num_blocks = 0
        """Of all of them."""

    def add(self, seq_id: int, token_ids: Sequence[int]) -> None:
        """A snapshot of these tokens holds its blocks, or will."""
        keys = self._keys(token_ids)
        num_own = self.blocks_for(len(token_ids)) - len(keys)
        self.num_blocks += num_own + self._num_new(keys)
        self._holders.update(keys)
        self._held[seq_id] = num_own, keys

    def remove(self, seq_id: int) -> None:
        """It holds them no longer."""
        self.num_blocks -= self.num_freed(seq_id)
        _, keys = self._held.pop(seq_id)
        for key in keys:
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]

    def num_freed(self, seq_id: int) -> int:
        """Blocks that nobody else holds: so many come free with this one."""
        num_own, keys = self._held[seq_id]
        return num_own + sum(self._holders[key] == 1 for key in keys)

    def num_with(self, token_ids: Sequence[int]) -> int:
        """Blocks of all of them, once one of these tokens is there too."""
        keys = self._keys(token_ids)
        return self.num_blocks + self.blocks_for(len(token_ids)) - len(keys) + self._num_new(keys)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-num_tokens // self._block_size)

    def _num_new(self, keys: list[bytes]) -> int:
        return sum(key not in self._holders for key in keys)

    def _keys(self, token_ids: Sequence[int]) -> list[bytes]:
        """One for each full block: a digest of all tokens through it."""
        keys, digest, size = list[bytes](), blake2b(digest_size=_KEY_BYTES), self._block_size
        for end in range(size, len(token_ids) + 1 if self._is_shared else 0, size):
            digest.update(array("i", token_ids[end - size : end]).tobytes())
            keys.append(digest.digest())
        return keys

    def check_invariants(self) -> None:
        """Raise AssertionError if the sum or the holders do not add up."""
        holders = Counter(key for _, keys in self._held.values() for key in keys)
        assert holders == self._holders
        assert self.num_blocks == len(holders) + sum(num_own for num_own, _ in self._held.values())
