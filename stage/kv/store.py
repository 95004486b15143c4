"""A stage's KV state: which blocks each sequence holds, for which tokens, and when they become public.

All of it is references; restoring copies nothing. The store outlives pipeline epochs, its sequences do not. What is
published, restored and evicted is a pure function of the steps, so stages that saw the same steps hold the same blocks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stagewire.stage.kv.blocks import BlockPool, Copy, HeldSequence, MissingTokens, OutOfBlocks
from stagewire.stage.kv.inserter import PrefixInserter
from stagewire.stage.kv.prefix_cache import PrefixCache, TokenArray
from stagewire.stage.kv.prefix_index import TOKEN_BYTES, PrefixIndex
from stagewire.wire.request import NO_STATISTICS, CacheStatistics


class KvStore:
    """Blocks of `block_size` tokens and `block_bytes` bytes each; the bytes themselves are the operators'."""

    def __init__(self, num_blocks: int, block_size: int, block_bytes: int = 0) -> None:
        self._index = PrefixIndex()
        self._pool = BlockPool(num_blocks, self._index)
        self.cache = PrefixCache(self._index, block_size, block_bytes)
        self.block_size, self.block_bytes = block_size, block_bytes
        self._sequences: dict[int, HeldSequence] = {}
        self._kept: list[int] = []
        self._inserter = PrefixInserter(self.cache, self._pool, block_size)
        self._step_id: int | None = None
        self.statistics = NO_STATISTICS
        """What has happened since the start, as far as `take_statistics` has told it."""

    # --- epochs and steps ---

    def begin_epoch(self, numerics: str, num_blocks: int, max_cached_blocks: int, is_row_exact: bool) -> None:
        """No sequence of the last epoch lives on; what was published does.

        Args:
            numerics: a digest of all that a block's bits depend on besides its tokens.
            num_blocks: the smallest pool of the pipeline, in blocks.
            max_cached_blocks: as many blocks may rest; 0 switches the cache off.
            is_row_exact: whether a row computed by decode has the bits that prefill would give it.
        """
        for seq_id in [*self._sequences]:
            self._truncate(self._sequences.pop(seq_id), 0)
        self._kept.clear()
        self.cache.use(numerics)
        self.cache.is_enabled, self._inserter.is_row_exact = max_cached_blocks > 0, is_row_exact
        self._pool.limit(num_blocks, max_cached_blocks)
        self._step_id = None

    def begin_step(self, step_id: int) -> None:
        """Later calls belong to this step; calling it again for the same one changes nothing."""
        if step_id != self._step_id:
            self._step_id = step_id
            self._index.step += 1
            self._insert_kept()

    def take_statistics(self) -> CacheStatistics:
        """What has happened since the last call."""
        num_errors = self._index.num_errors - self.statistics.errors
        num_evicted = self._pool.num_evicted - self.statistics.evicted_blocks
        if self.cache.counted is NO_STATISTICS and not num_errors and not num_evicted:
            return NO_STATISTICS
        recent = replace(self.cache.take_counted(), errors=num_errors, evicted_blocks=num_evicted)
        self.statistics = self.statistics.plus(recent)
        return recent

    # --- what is held ---

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds."""
        return self._pool.num_free

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold."""
        return self._pool.capacity - self._pool.num_free

    @property
    def capacity(self) -> int:
        """Blocks that may be in use or at rest: the smallest pool of the pipeline."""
        return self._pool.capacity

    @property
    def num_evicted(self) -> tuple[int, int]:
        """Blocks that have been given up since the start, and the tokens that they held."""
        return self._pool.num_evicted, self._pool.num_evicted_tokens

    @property
    def num_cached(self) -> int:
        """Blocks that rest in the cache."""
        return self._index.num_evictable

    def prefixes(self) -> set[bytes]:
        """What this epoch can restore, in the same words on every stage."""
        return self._index.chains(self.cache.numerics)

    def length(self, seq_id: int) -> int:
        """Tokens that the sequence holds, 0 if it is unknown."""
        sequence = self._sequences.get(seq_id)
        return sequence.length if sequence else 0

    def block_table(self, seq_id: int) -> TokenArray:
        """The sequence's blocks in order of position, int32."""
        return np.array(self._sequences[seq_id].blocks, dtype=np.int32)

    # --- looking up and restoring ---

    def lookup(self, token_ids: TokenArray, limit: int) -> int:
        """How many of the first `limit` tokens a restore would give; nothing is counted."""
        return self.cache.match(token_ids, limit)[1]

    def restore(self, seq_id: int, token_ids: TokenArray, limit: int) -> int:
        """Begin a sequence with as many of the first `limit` tokens as are held, and return their number."""
        self.release(seq_id)
        entries, length = self.cache.match(token_ids, limit)
        if length:
            self.cache.count_restored(length)
            for entry in entries:
                self._pool.share(entry.block)
            blocks, full = [entry.block for entry in entries], entries[: length // self.block_size]
            self._sequences[seq_id] = HeldSequence(blocks, bytearray(token_ids[:length].tobytes()), full)
        return length

    def token_bytes(self, seq_id: int) -> bytes:
        """The tokens that a sequence holds, as int32."""
        sequence = self._sequences.get(seq_id)
        return bytes(sequence.token_bytes) if sequence else b""

    # --- writing ---

    def append(
        self, seq_id: int, pos_start: int, token_ids: TokenArray, *, is_decode: bool = False, is_prompt: bool = True
    ) -> OutOfBlocks | MissingTokens | Copy | None:
        """Make room for these tokens at `pos_start`; what lay at or after it is dropped, what lay before is right.

        So that becomes public now. Blocks that are keyed or shared are never written to: they are replaced, and
        the one that `pos_start` lies within is copied.

        Args:
            seq_id: the sequence; an unknown one is empty.
            pos_start: position of the first token.
            token_ids: int32 [T].
            is_decode: how the rows are computed.
            is_prompt: they belong to a prompt, whose last, partial block is kept under its own key.

        Returns:
            None or `Copy` when done; else why not.
        """
        sequence = self._sequences.get(seq_id) or HeldSequence()
        if sequence.length < pos_start:
            return MissingTokens(sequence.length)
        if len(sequence.entries) < pos_start // self.block_size or (is_decode and sequence.prompt_end):
            self._inserter.insert(sequence, pos_start, is_prompt_done=is_decode)
        made = self._make_room(sequence, pos_start, len(token_ids))
        if isinstance(made, OutOfBlocks):
            return made
        self._sequences[seq_id] = sequence
        sequence.token_bytes += token_ids.tobytes()
        sequence.is_cut = False
        if is_prompt:
            sequence.prompt_end = sequence.length
        if sequence.decoded_from is not None and sequence.decoded_from >= pos_start:
            sequence.decoded_from = None
        if is_decode and sequence.decoded_from is None:
            sequence.decoded_from = pos_start
        return made

    def _make_room(self, sequence: HeldSequence, pos_start: int, num_tokens: int) -> OutOfBlocks | Copy | None:
        pool, kept = self._pool, self._blocks_for(pos_start)
        num_needed = self._blocks_for(pos_start + num_tokens) - kept
        if not num_needed and pos_start == sequence.length and self._is_private(sequence.blocks[-1]):
            return None  # so are most decodes
        room = pool.num_free + sum(pool.has_one_owner(block) for block in sequence.blocks[kept:])
        source = sequence.blocks[kept - 1] if pos_start % self.block_size else None
        if source is not None and self._may_write(source, is_last_resort=num_needed == room):
            source = None
        num_needed += source is not None
        if num_needed > room:
            return OutOfBlocks(num_needed, room)
        self._truncate(sequence, pos_start)
        # The copy's target comes first, while the source is still held and cannot be given away.
        fresh = [pool.take() for _ in range(num_needed)]
        if source is None:
            sequence.blocks += fresh
            return None
        sequence.blocks[-1:] = fresh
        pool.drop(source)
        return Copy(source, fresh[0])

    def _may_write(self, block: int, is_last_resort: bool) -> bool:
        """Whether a block may be written to. One of the sequence's own loses its key if no other block is left."""
        entry = self._index.of_block(block)
        if entry is not None and is_last_resort and self._pool.has_one_owner(block):
            self._index.remove(entry)
        return self._is_private(block)

    def _is_private(self, block: int) -> bool:
        return self._pool.has_one_owner(block) and self._index.of_block(block) is None

    def keep(self, source: int, target: int, num_tokens: int) -> bool:
        """Hold the first `num_tokens` of a sequence under another id too; False if it has not as many.

        They become public with the next step, when those of this one are known to be there.
        """
        sequence = self._sequences.get(source)
        if sequence is None or sequence.length < num_tokens:
            return False
        self.release(target)
        blocks = sequence.blocks[: self._blocks_for(num_tokens)]
        for block in blocks:
            self._pool.share(block)
        token_bytes = sequence.token_bytes[: num_tokens * TOKEN_BYTES]
        entries = sequence.entries[: num_tokens // self.block_size]
        is_cut = sequence.is_cut or num_tokens < sequence.length
        prompt_end = 0 if is_cut else num_tokens
        self._sequences[target] = HeldSequence(blocks, token_bytes, entries, prompt_end, sequence.decoded_from, is_cut)
        self._kept.append(target)
        return True

    def resume(self, source: int, target: int, token_ids: TokenArray) -> bool:
        """Begin a sequence with all that another one holds; False if that is not exactly these tokens."""
        sequence = self._sequences.get(source)
        is_held = sequence is not None and sequence.token_bytes == token_ids.tobytes()
        if not is_held or not self.keep(source, target, len(token_ids)):
            return False
        self.cache.count_restored(len(token_ids))
        return True

    def _insert_kept(self) -> None:
        for seq_id in self._kept:
            sequence = self._sequences.get(seq_id)
            if sequence is not None:
                self._inserter.insert(sequence, sequence.length, is_prompt_done=True)
        self._kept.clear()

    def release(self, seq_id: int) -> None:
        """Give up all blocks of a sequence, whose tokens were right to the last; unknown ones are ignored."""
        sequence = self._sequences.pop(seq_id, None)
        if sequence is not None:
            self._inserter.insert(sequence, sequence.length, is_prompt_done=True)
            self._truncate(sequence, 0)

    def num_unrecorded(self, seq_id: int) -> int:
        """Tokens that would become public if the sequence were released now."""
        sequence = self._sequences.get(seq_id)
        if sequence is None or not (sequence.prompt_end or sequence.length // self.block_size > len(sequence.entries)):
            return 0  # as with most decodes
        return self._inserter.num_new(sequence)

    def num_bytes(self, num_tokens: int) -> int:
        """Of the keys and values of so many tokens."""
        return num_tokens * self.block_bytes // self.block_size

    def clear(self) -> int:
        """Forget all that no sequence holds; returns how many blocks that were."""
        num_before = self._pool.num_evicted
        self._pool.evict_all()
        return self._pool.num_evicted - num_before

    # --- block lists ---

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _truncate(self, sequence: HeldSequence, num_tokens: int) -> None:
        del sequence.token_bytes[num_tokens * TOKEN_BYTES :]
        del sequence.entries[num_tokens // self.block_size :]
        sequence.prompt_end = min(sequence.prompt_end, num_tokens)
        while len(sequence.blocks) > self._blocks_for(num_tokens):
            self._pool.drop(sequence.blocks.pop())

    def check_invariants(self) -> None:
        """Raise AssertionError if a block is lost, a list has the wrong length, or a keyed chain has a hole."""
        sequences = self._sequences.values()
        self._pool.check_invariants([sequence.blocks for sequence in sequences])
        for sequence in sequences:
            assert len(sequence.blocks) == self._blocks_for(sequence.length)
            assert [entry.block for entry in sequence.entries] == sequence.blocks[: len(sequence.entries)]
            assert all(self._index.of_block(entry.block) is entry for entry in sequence.entries)
