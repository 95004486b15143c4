"""KV blocks in files of one directory, which several stages and processes may share. It knows no sequence and no pool.

Writing is a thread's: aside, then renamed, so a file is whole or not there. A disk that fails costs a warning and the
files, never a request.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from stagewire.stage.files.block_file import (
    BlockFile,
    BlockFileError,
    StoredBlock,
    block_name,
    decode_block,
    encode_block,
    is_block_name,
    newest_chains,
)
from stagewire.stage.files.jobs import Staged
from stagewire.stage.files.regular_file import read_regular
from stagewire.stage.kv.prefix_index import TOKEN_BYTES, chain_hash
from stagewire.wire.errors import ErrorCode, SettingsError

log = logging.getLogger("stagewire.stage")

_MAX_QUEUED = 256
_PAUSE_S = 30.0
_DRAIN_S = 2.0
_SHRINK_TO = 0.9
_MOST_BLOCK_BYTES = 256 << 20
_MAX_SET_ASIDE = 16


class DiskTier:
    """At most `budget_bytes` in `directory`; the chains written longest ago go first, from their ends.

    Raises:
        SettingsError: the directory cannot be made.
    """

    def __init__(self, directory: Path, budget_bytes: int) -> None:
        self._directory, self._budget_bytes = directory, budget_bytes
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            detail = f"disk_directory={directory}: {error.strerror}; choose a directory that can be written"
            raise SettingsError(detail, ErrorCode.INVALID_SETTING) from error
        self._queue: queue.Queue[StoredBlock | None] = queue.Queue(_MAX_QUEUED)
        self._forget_leftovers()
        files = list(self._files())
        self._names = {file.name for file in files}
        self._num_bytes = sum(file.num_bytes for file in files)
        self._paused_until = 0.0
        self.num_written = self.num_dropped = self.num_failed = self.num_read = self.num_set_aside = 0
        self._thread = threading.Thread(target=self._write_all, name="disk-tier", daemon=True)
        self._thread.start()

    # --- writing ---

    @property
    def num_bytes(self) -> int:
        """Of the files, as far as this process knows."""
        return self._num_bytes

    @property
    def has_room(self) -> bool:
        """Whether `put` would take one more now."""
        return self._queue.qsize() < _MAX_QUEUED

    def put(self, block: StoredBlock) -> None:
        """Have it written some time; dropped and counted if the thread is far behind."""
        try:
            self._queue.put_nowait(block)
        except queue.Full:
            self.num_dropped += 1

    def _write_all(self) -> None:
        while (block := self._queue.get()) is not None:
            self._try_to_write(block)
            self._queue.task_done()

    def _try_to_write(self, block: StoredBlock) -> None:
        if time.monotonic() < self._paused_until:
            self.num_dropped += 1
            return
        try:
            self._write(block.name, encode_block(block))
        except OSError as error:
            self.num_failed += 1
            self._paused_until = time.monotonic() + _PAUSE_S
            log.warning("event=disk_tier_failed pause_s=%g detail=%r", _PAUSE_S, str(error))

    def _write(self, name: str, data: bytes) -> None:
        path = self._directory / name
        if path.exists():
            os.utime(path)
            self._names.add(name)
            return
        aside = self._directory / f".{name}.{os.getpid()}"
        try:
            aside.write_bytes(data)
            aside.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
        self.num_written += 1
        self._names.add(name)
        self._num_bytes += len(data)
        if self._num_bytes > self._budget_bytes:
            self._shrink()

    def _shrink(self) -> None:
        """Others write here too: look at what is really there, and leave some room for what comes next."""
        files = newest_chains(self._files())
        self._num_bytes = sum(file.num_bytes for file in files)
        while files and self._num_bytes > self._budget_bytes * _SHRINK_TO:
            file = files.pop()
            with contextlib.suppress(OSError):
                (self._directory / file.name).unlink()
            self._names.discard(file.name)
            self._num_bytes -= file.num_bytes

    def _files(self) -> Iterator[BlockFile]:
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._directory):
                with contextlib.suppress(OSError):
                    if is_block_name(entry.name):
                        stat = entry.stat()
                        yield BlockFile(entry.name, stat.st_mtime_ns, stat.st_size)

    def _forget_leftovers(self) -> None:
        """Files that a killed process was writing, and damaged ones beyond the last few."""
        with contextlib.suppress(OSError):
            old = [path for path in self._directory.glob(".*.kv.*") if time.time() - path.stat().st_mtime > _PAUSE_S]
            damaged = sorted(self._directory.glob("*.bad"), key=lambda path: path.stat().st_mtime)
            for path in [*old, *damaged[:-_MAX_SET_ASIDE]]:
                path.unlink(missing_ok=True)

    # --- reading ---

    def has(self, name: str) -> bool:
        """Whether a file of this name was there at the last look; it costs no look."""
        return name in self._names

    def refresh(self) -> None:
        """Look at what there is: others write to the directory as well."""
        self._names = {file.name for file in self._files()}

    def fetch(self, numerics: bytes, before: bytes, depth: int, token_bytes: bytes, block_bytes: int) -> Staged:
        """The blocks of these tokens from `depth` on, as far as there are files; the last may be a partial one.

        A file that is not what it should be is set aside under another name, and counted.

        Args:
            numerics: of this arithmetic.
            before: chain hash through the block before.
            depth: of the first block in its sequence.
            token_bytes: int32 tokens from there on.
            block_bytes: length of the tokens of a whole block.
        """
        contents: list[bytes] = []
        num_bytes = 0
        while num_bytes < len(token_bytes):
            block = self._fetch_longest(numerics, before, token_bytes[num_bytes : num_bytes + block_bytes])
            if block is None or block.depth != depth + len(contents):
                break
            contents.append(block.content)
            before, num_bytes = block.chain, num_bytes + len(block.token_bytes)
            if len(block.token_bytes) < block_bytes:
                break
        return Staged(depth, token_bytes[:num_bytes], tuple(contents))

    def _fetch_longest(self, numerics: bytes, before: bytes, token_bytes: bytes) -> StoredBlock | None:
        for num_bytes in range(len(token_bytes), 0, -TOKEN_BYTES):
            chain = chain_hash(before, token_bytes[:num_bytes])
            if self.has(name := block_name(numerics, before, chain)):
                block = self._read(self._directory / name)
                if block is not None and block.token_bytes == token_bytes[:num_bytes]:
                    self.num_read += 1
                    return block
        return None

    def _read(self, path: Path) -> StoredBlock | None:
        try:
            return decode_block(read_regular(path, _MOST_BLOCK_BYTES), path.name)
        except BlockFileError as error:
            self.num_set_aside += 1
            log.warning("event=block_file_set_aside detail=%r", error.detail)
            with contextlib.suppress(OSError):
                path.replace(path.with_suffix(".bad"))
        except FileNotFoundError:
            pass  # somebody else has made room
        except OSError as error:
            log.warning("event=block_file_unreadable detail=%r", str(error))
        self._names.discard(path.name)
        return None

    # --- the end ---

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was put has been written; False if that takes longer."""
        until = time.monotonic() + timeout_s
        while self._queue.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.01)
        return not self._queue.unfinished_tasks

    def close(self) -> None:
        """Write what is left, for two seconds at most."""
        self.drain(_DRAIN_S)
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(_DRAIN_S)
