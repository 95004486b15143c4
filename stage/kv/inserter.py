"""When a sequence's blocks become public: once a later step or the release has shown that their tokens are right."""

from __future__ import annotations

from stagewire.stage.kv.blocks import BlockPool, HeldSequence
from stagewire.stage.kv.prefix_cache import PrefixCache
from stagewire.stage.kv.prefix_index import TOKEN_BYTES


class PrefixInserter:
    """Keys the blocks of sequences of one stage. `is_row_exact`: rows that decode computes may be published too."""

    def __init__(self, cache: PrefixCache, pool: BlockPool, block_size: int) -> None:
        self._cache, self._pool, self._block_size = cache, pool, block_size
        self.is_row_exact = True

    def insert(self, sequence: HeldSequence, num_tokens: int, is_prompt_done: bool) -> None:
        """The first `num_tokens` are right: key their full blocks, and the partial one of a finished prompt."""
        if not self._cache.is_enabled:
            return
        if sequence.decoded_from is not None and not self.is_row_exact:
            num_tokens = min(num_tokens, sequence.decoded_from)
        while len(sequence.entries) < num_tokens // self._block_size:
            if not self._insert_full(sequence, len(sequence.entries)):
                return
        if is_prompt_done and 0 < sequence.prompt_end <= num_tokens:
            self._insert_partial(sequence)
            sequence.prompt_end = 0

    def _insert_full(self, sequence: HeldSequence, depth: int) -> bool:
        block, size = sequence.blocks[depth], self._block_size * TOKEN_BYTES
        token_bytes = bytes(sequence.token_bytes[depth * size : (depth + 1) * size])
        entry = self._cache.key(sequence.entries, token_bytes, block)
        if entry is None:
            return False
        if entry.block != block:
            # Somebody else computed the same: hold theirs, so that whoever holds a block holds all before it.
            self._pool.share(entry.block)
            self._pool.drop(block)
            sequence.blocks[depth] = entry.block
        sequence.entries.append(entry)
        return True

    def _insert_partial(self, sequence: HeldSequence) -> None:
        depth, size = sequence.prompt_end // self._block_size, self._block_size * TOKEN_BYTES
        token_bytes = bytes(sequence.token_bytes[depth * size : sequence.prompt_end * TOKEN_BYTES])
        if token_bytes and depth == len(sequence.entries) and not self._cache.is_keyed(sequence.blocks[depth]):
            self._cache.key(sequence.entries, token_bytes, sequence.blocks[depth])
