"""Between a stage's KV store, its operators' memory and the disk tier: blocks that get public are written to files.

A few are copied between two steps, in each turn of the loop. It knows what could be read back; a request reads it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from stagewire.stage.compute.operators import Operators
from stagewire.stage.files.block_file import StoredBlock, block_name
from stagewire.stage.files.disk_tier import DiskTier
from stagewire.stage.kv.prefix_index import TOKEN_BYTES, Entry, chain_hash
from stagewire.stage.kv.store import KvStore
from stagewire.wire.cache_reports import DiskCounts

_BLOCKS_PER_TURN = 8
_CLOSE_S = 5.0
_MAX_WAITING = 65_536


class DiskCache:
    """One stage's use of a `DiskTier`."""

    def __init__(self, store: KvStore, operators: Operators, tier: DiskTier) -> None:
        self._store, self._operators, self.tier = store, operators, tier
        self._waiting: deque[tuple[bytes, Entry]] = deque(maxlen=_MAX_WAITING)
        store.cache.is_recording = True

    @property
    def has_work(self) -> bool:
        return bool(self._waiting) and self.tier.has_room

    def counts(self) -> DiskCounts:
        """What has happened to files since the start."""
        tier = self.tier
        return DiskCounts(tier.num_written, tier.num_dropped, tier.num_failed, tier.num_read, tier.num_set_aside)

    def file_lookup(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """How many of these tokens, in full blocks, the memory holds, and how many with the files behind them."""
        store, tokens = self._store, np.array(token_ids, np.int32)
        chain, num_held = store.cache.chain(tokens)
        size, num_blocks = store.block_size, num_held
        token_bytes, block_bytes = tokens.tobytes(), size * TOKEN_BYTES
        while (num_blocks + 1) * size <= len(tokens):
            before, part = chain, token_bytes[num_blocks * block_bytes : (num_blocks + 1) * block_bytes]
            chain = chain_hash(before, part)
            if not self.tier.has(block_name(store.cache.numerics, before, chain)):
                break
            num_blocks += 1
        return num_held * size, num_blocks * size

    def pump(self) -> None:
        """Hand a few of the blocks that got public to the writer; those that are gone again are left out."""
        self._waiting.extend(self._store.cache.take_recorded())
        for _ in range(_BLOCKS_PER_TURN):
            if not self.has_work:
                return
            before, entry = self._waiting.popleft()
            if self._store.cache.is_inserted(entry):
                # Nobody writes to a keyed block, so what is read now is what was computed then.
                content = self._operators.read_block(entry.block)
                stored = StoredBlock(entry.numerics, before, entry.chain, entry.depth, entry.token_bytes, content)
                self.tier.put(stored)

    def close(self) -> None:
        """Write what waits, in bounded time."""
        until = time.monotonic() + _CLOSE_S
        while self.has_work and time.monotonic() < until:
            self.pump()
        self.tier.close()
