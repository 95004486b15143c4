"""What a stage has published and what others may restore of it: matching prompts, keying blocks, counting both.

A prompt's held tokens are its leading full blocks as far as they are keyed, and then the longest partial block that
is keyed behind them. Who refers to the blocks is `kv_blocks`' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from stagewire.stage.kv.prefix_index import ROOT, TOKEN_BYTES, Entry, PrefixIndex, chain_hash
from stagewire.wire.request import NO_STATISTICS, CacheStatistics

TokenArray = npt.NDArray[np.int32]


class PrefixCache:
    """The keyed blocks of one stage, for one arithmetic at a time."""

    def __init__(self, index: PrefixIndex, block_size: int, block_bytes: int) -> None:
        self._index = index
        self._block_size, self._block_bytes = block_size, block_bytes
        self.counted = NO_STATISTICS
        """Since the last `take_counted`."""
        self.num_missed_tokens = self.num_held_tokens = self.num_fetched_tokens = 0
        """Tokens that were asked for: not to be had; held in memory; read from files for whoever asked."""
        self.numerics = b""
        self.is_enabled = True
        self.is_recording = False
        self._recorded: list[tuple[bytes, Entry]] = []

    def use(self, numerics: str) -> None:
        """From now on only blocks of this arithmetic are found, and only such are keyed."""
        self.numerics = blake2b(numerics.encode(), digest_size=16).digest()

    def match(self, token_ids: TokenArray, limit: int) -> tuple[list[Entry], int]:
        """The keyed blocks that hold the first tokens, and how many of the first `limit` those are.

        `token_ids` may go on beyond `limit`: a block is found by all of its tokens, and its end left out then.
        """
        size, chain, entries = self._block_size, ROOT, list[Entry]()
        while len(entries) * size < limit and self.is_enabled:
            token_bytes = token_ids[len(entries) * size : (len(entries) + 1) * size].tobytes()
            entry = self._find_longest(chain, token_bytes)
            if entry is None:
                break
            entries.append(entry)
            chain = entry.chain
            num_tokens = len(entry.token_bytes) // TOKEN_BYTES
            if num_tokens < size:
                return entries, min(limit, (len(entries) - 1) * size + num_tokens)
        return entries, min(limit, len(entries) * size)

    def _find_longest(self, chain: bytes, token_bytes: bytes) -> Entry | None:
        for num_bytes in range(len(token_bytes), 0, -TOKEN_BYTES):
            part = token_bytes[:num_bytes]
            entry = self._index.find(self.numerics, chain_hash(chain, part), part)
            if entry is not None:
                return entry
        return None

    def key(self, before: Sequence[Entry], token_bytes: bytes, block: int) -> Entry | None:
        """The entry of these tokens behind `before`: the one that is there, or a new one of `block`.

        None if the key belongs to other tokens.
        """
        chain = chain_hash(before[-1].chain if before else ROOT, token_bytes)
        found = self._index.find(self.numerics, chain, token_bytes)
        if found is not None:
            return found
        entry = Entry(self.numerics, chain, token_bytes, block, len(before))
        if not self._index.add(entry):
            return None
        if self.is_recording:
            self._recorded.append((before[-1].chain if before else ROOT, entry))
        num_tokens = len(token_bytes) // TOKEN_BYTES
        self._count(CacheStatistics(recorded_tokens=num_tokens, recorded_bytes=self._num_bytes(num_tokens)))
        return entry

    def take_recorded(self) -> list[tuple[bytes, Entry]]:
        """If `is_recording`, what got public since the last call, each with the chain hash before it."""
        recorded, self._recorded = self._recorded, []
        return recorded

    def has(self, chain: bytes, token_bytes: bytes) -> bool:
        """Whether these tokens are keyed behind those of the chain."""
        return self._index.find(self.numerics, chain, token_bytes) is not None

    def is_keyed(self, block: int) -> bool:
        return self._index.of_block(block) is not None

    def is_inserted(self, entry: Entry) -> bool:
        """Whether its block still holds what it is keyed as."""
        return self._index.of_block(entry.block) is entry

    def chain(self, token_ids: TokenArray) -> tuple[bytes, int]:
        """The chain hash through the last full block that is keyed with these tokens, and how many those are."""
        entries, _ = self.match(token_ids, len(token_ids))
        full = [entry for entry in entries if len(entry.token_bytes) == self._block_size * TOKEN_BYTES]
        return (full[-1].chain if full else ROOT), len(full)

    # --- counting ---

    def count_lookup(self, length: int, limit: int) -> None:
        """`length` of `limit` tokens that were asked for are held."""
        is_hit = length >= limit
        self._count(CacheStatistics(lookups=1, hits=int(is_hit), misses=int(not is_hit)))

    def count_tokens(self, num_held: int = 0, num_fetched: int = 0, num_missed: int = 0) -> None:
        """Tokens that were asked for: held in memory, read from files for this, and neither."""
        self.num_held_tokens += num_held
        self.num_fetched_tokens += num_fetched
        self.num_missed_tokens += num_missed

    def count_restored(self, num_tokens: int, num_fetched: int = 0) -> None:
        """`num_fetched` of them came from files."""
        self._count(
            CacheStatistics(
                restored_tokens=num_tokens, restored_bytes=self._num_bytes(num_tokens), fetched_tokens=num_fetched
            )
        )

    def _count(self, more: CacheStatistics) -> None:
        self.counted = self.counted.plus(more)

    def _num_bytes(self, num_tokens: int) -> int:
        return num_tokens * self._block_bytes // self._block_size

    def take_counted(self) -> CacheStatistics:
        """What has been counted since the last call; it begins anew."""
        counted, self.counted = self.counted, NO_STATISTICS
        return counted
