"""When a sequence's blocks become public: once a later step or the release has shown that their tokens are right."""

from __future__ import annotations

from stagewire.stage.kv.blocks import BlockPool, HeldSequence
from stagewire.stage.kv.prefix_cache import PrefixCache
from stagewire.stage.kv.prefix_index import ROOT, TOKEN_BYTES, chain_hash


class PrefixInserter:
    """Keys the blocks of sequences of one stage. `is_row_exact`: rows that decode computes may be published too."""

    def __init__(self, cache: PrefixCache, pool: BlockPool, block_size: int) -> None:
        self._cache, self._pool, self._block_size = cache, pool, block_size
        self.is_row_exact = True

    def insert(self, sequence: HeldSequence, num_tokens: int, is_prompt_done: bool) -> None:
        """The first `num_tokens` are right: key their full blocks, and the partial one of a finished prompt."""
        if not self._cache.is_enabled:
            return
        num_tokens = self._num_publishable(sequence, num_tokens)
        while len(sequence.entries) < num_tokens // self._block_size:
            if not self._insert_full(sequence, len(sequence.entries)):
                return
        if is_prompt_done and 0 < sequence.prompt_end <= num_tokens:
            self._insert_partial(sequence)
            sequence.prompt_end = 0

    def _num_publishable(self, sequence: HeldSequence, num_tokens: int) -> int:
        is_limited = sequence.decoded_from is not None and not self.is_row_exact
        return min(num_tokens, sequence.decoded_from or 0) if is_limited else num_tokens

    def num_new(self, sequence: HeldSequence) -> int:
        """Tokens whose blocks `insert` of all of a finished sequence would key; it changes nothing."""
        num_tokens = self._num_publishable(sequence, sequence.length)
        size, depth, num_full = self._block_size, len(sequence.entries), num_tokens // self._block_size
        has_end = 0 < sequence.prompt_end <= num_tokens
        if not self._cache.is_enabled or (depth >= num_full and not has_end):
            return 0
        chain, token_bytes, num_new = (sequence.entries[-1].chain if depth else ROOT), sequence.token_bytes, 0
        for start in range(depth * size, num_full * size, size):
            part = bytes(token_bytes[start * TOKEN_BYTES : (start + size) * TOKEN_BYTES])
            chain = chain_hash(chain, part)
            num_new += 0 if self._cache.has(chain, part) else size
        num_end = sequence.prompt_end - num_full * size
        if has_end and num_end > 0 and not self._cache.is_keyed(sequence.blocks[num_full]):
            part = bytes(token_bytes[num_full * size * TOKEN_BYTES : sequence.prompt_end * TOKEN_BYTES])
            num_new += 0 if self._cache.has(chain_hash(chain, part), part) else num_end
        return num_new

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
