"""A stage's part in file orders: the jobs that they mean here, and what was read until a restore takes it."""

from __future__ import annotations

from stagewire.stage.files.jobs import FetchBlocks, FileJob, JobDone, ReadPart, Staged, WritePart
from stagewire.stage.files.snapshot_file import part_prefix
from stagewire.stage.kv.prefix_index import TOKEN_BYTES
from stagewire.stage.kv.store import KvStore
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.file_orders import FileAction, FileDone, FileOrder

MAX_STAGED = 8
"""As many sequences have files read for them at a time."""
_MOST_HEADER_BYTES = 8 << 20
"""Of a part: its tokens, and what tells where they lie."""


class StageFiles:
    """Of one pipeline epoch. What was read for at most eight sequences waits; the oldest goes first."""

    def __init__(self, epoch: Epoch, stage_index: int, num_stages: int, store: KvStore) -> None:
        self._epoch, self._stage_index, self._num_stages, self._store = epoch, stage_index, num_stages, store
        self._expected: set[int] = set()
        self._staged: dict[int, Staged] = {}

    @property
    def num_staged(self) -> int:
        """Sequences for which something was read that no restore has taken yet."""
        return len(self._staged)

    def job(self, order: FileOrder) -> FileJob:
        """What this stage has to do."""
        store, epoch, seq_id = self._store, self._epoch, order.seq_id
        numerics = store.cache.numerics
        prefix = part_prefix(order.file, self._stage_index, self._num_stages)
        index = self._stage_index
        digest = order.digests[index] if index < len(order.digests) else ""
        if order.action is FileAction.EXPORT:
            blocks = tuple(store.block_table(seq_id).tolist())
            return WritePart(epoch, seq_id, prefix, digest, numerics, store.token_bytes(seq_id), blocks)
        self._expected.add(seq_id)
        if order.action is FileAction.IMPORT:
            max_bytes = store.capacity * store.block_bytes + _MOST_HEADER_BYTES
            return ReadPart(epoch, seq_id, prefix, digest, numerics, max_bytes)
        token_ids = order.token_ids.to_numpy()
        before, depth = store.cache.chain(token_ids)
        token_bytes = token_ids[depth * store.block_size :].tobytes()
        return FetchBlocks(epoch, seq_id, numerics, before, depth, token_bytes, store.block_size * TOKEN_BYTES)

    def finish(self, done: JobDone) -> FileDone:
        """A job is through: keep what was read for a sequence that still waits for it, and tell the head."""
        seq_id, staged, code, detail = done.job.seq_id, done.staged, done.code, done.detail
        num_blocks = -(-len(staged.token_bytes) // (self._store.block_size * TOKEN_BYTES))
        is_whole = all(len(content) == self._store.block_bytes for content in staged.contents)
        if not is_whole or len(staged.contents) != num_blocks:
            staged, code, detail = Staged(), ErrorCode.SNAPSHOT_FILE, "its blocks have another size or number"
        if staged.contents and seq_id in self._expected:
            while len(self._staged) >= MAX_STAGED:
                del self._staged[next(iter(self._staged))]
            self._staged[seq_id] = staged
        self._expected.discard(seq_id)
        num_tokens = staged.depth * self._store.block_size + len(staged.token_bytes) // TOKEN_BYTES
        return FileDone(seq_id, self._stage_index, num_tokens, done.digest, code, detail)

    def take(self, seq_id: int) -> Staged | None:
        """What was read for a sequence, once."""
        return self._staged.pop(seq_id, None)

    def forget(self, seq_id: int) -> None:
        """The sequence needs nothing any more."""
        self._expected.discard(seq_id)
        self._staged.pop(seq_id, None)
