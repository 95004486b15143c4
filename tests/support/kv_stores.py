"""Small stores of blocks whose bytes say what was written."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stagewire.stage.kv.store import KvStore


def ids(num_tokens: int, first: int = 0) -> NDArray[np.int32]:
    return np.arange(first, first + num_tokens, dtype=np.int32)


def new_store(num_blocks: int = 8, block_size: int = 4, **options: int) -> KvStore:
    store = KvStore(num_blocks, block_size, block_bytes=40)
    limits = {"num_blocks": num_blocks, "max_cached_blocks": num_blocks} | options
    store.begin_epoch("n", limits["num_blocks"], limits["max_cached_blocks"], bool(limits.get("is_row_exact", 1)))
    store.begin_step(1)
    return store


def run(store: KvStore, token_ids: NDArray[np.int32], step_id: int = 1) -> None:
    """A sequence that is computed and released."""
    store.begin_step(step_id)
    store.append(999, 0, token_ids)
    store.release(999)
