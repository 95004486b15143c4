"""Between a stage's KV store, its operators' memory and the files: blocks that get public go to disk, and come back.

All of it happens between steps: a few blocks are copied in each turn of the loop, files are read when a pipeline is
assembled.
"""

from __future__ import annotations

import logging
import time
from collections import deque

from stagewire.stage.block_file import StoredBlock
from stagewire.stage.disk_tier import DiskTier
from stagewire.stage.kv_store import KvStore
from stagewire.stage.operators import Operators
from stagewire.stage.prefix_index import Entry
from stagewire.wire.caches import DiskCounts

log = logging.getLogger("stagewire.stage")

_BLOCKS_PER_TURN = 8
_MAX_LOAD_S = 2.0
_CLOSE_S = 5.0
_MAX_WAITING = 65_536


class DiskCache:
    """One stage's use of a `DiskTier`."""

    def __init__(self, store: KvStore, operators: Operators, tier: DiskTier) -> None:
        self._store, self._operators, self.tier = store, operators, tier
        self._waiting: deque[tuple[bytes, Entry]] = deque(maxlen=_MAX_WAITING)
        self._num_loaded = 0
        store.cache.is_recording = True

    @property
    def has_work(self) -> bool:
        return bool(self._waiting) and self.tier.has_room

    def counts(self) -> DiskCounts:
        """What has happened to files since the start."""
        tier = self.tier
        return DiskCounts(tier.num_written, tier.num_dropped, tier.num_failed, self._num_loaded, tier.num_set_aside)

    def load(self) -> int:
        """Bring back what the files hold for the epoch that has just begun; returns the number of blocks."""
        numerics, known = self._store.cache.numerics, self._store.prefixes()
        blocks = self.tier.load(numerics, known, self._store.num_adoptable, _MAX_LOAD_S)
        num_loaded = sum(self._adopt(block) for block in blocks)
        self._num_loaded += num_loaded
        if blocks:
            log.info("event=disk_tier_loaded blocks=%d of=%d", num_loaded, len(blocks))
        return num_loaded

    def _adopt(self, block: StoredBlock) -> bool:
        if len(block.content) != self._operators.block_bytes:
            return False
        target = self._store.adopt(block.before, block.chain, block.token_bytes, block.depth)
        if target is None:
            return False
        self._operators.write_block(target, block.content)
        return True

    def pump(self) -> None:
        """Hand a few of the blocks that got public to the writer; those that are gone again are left out."""
        self._waiting.extend(self._store.cache.take_recorded())
        for _ in range(_BLOCKS_PER_TURN):
            if not self.has_work:
                return
            before, entry = self._waiting.popleft()
            if self._store.cache.is_published(entry):
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
