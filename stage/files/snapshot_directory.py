"""The directory that exported snapshots lie in: whole files under plain names, within a budget."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from stagewire.stage.files.regular_file import read_regular
from stagewire.stage.files.snapshot_file import (
    MAX_MANIFEST_BYTES,
    PART_SUFFIX,
    Manifest,
    SnapshotFileError,
    decode_manifest,
    digest_of,
    encode_manifest,
    is_inside,
    manifest_name,
    part_name,
)
from stagewire.wire.errors import ErrorCode, SettingsError

_OLD_S = 300.0
"""No export takes so long: what nobody names by then, nobody will."""
_DIGEST_PART = re.compile(r"[0-9a-f]{16}")


class SnapshotDirectory:
    """Several stages, and processes, may share one. What a killed process has left aside goes.

    Raises:
        SettingsError: it cannot be made.
    """

    def __init__(self, directory: Path, budget_bytes: int) -> None:
        self._directory, self._budget_bytes = directory, budget_bytes
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            detail = f"snapshot_directory={directory}: {error.strerror}; choose a directory that can be written"
            raise SettingsError(detail, ErrorCode.INVALID_SETTING) from error
        self._remove_old(entry for entry in self._entries() if entry.name.startswith("."))

    # --- manifests ---

    def manifest(self, name: str) -> Manifest | None:
        """What was exported under this name; None if nothing was.

        Raises:
            SnapshotFileError: its manifest is none.
            OSError: it cannot be read.
        """
        try:
            return decode_manifest(read_regular(self._path(manifest_name(name)), MAX_MANIFEST_BYTES))
        except FileNotFoundError:
            return None

    def commit(self, name: str, manifest: Manifest, replaces: Manifest | None) -> None:
        """Have this manifest in place of the other one.

        Raises:
            SnapshotFileError: somebody has put another one there meanwhile.
            OSError: it cannot be written.
        """
        if self.manifest(name) != replaces:
            raise SnapshotFileError(f"{name!r:.80} was exported by somebody else meanwhile; choose another name")
        self._write(manifest_name(name), encode_manifest(manifest), is_new=replaces is None)

    # --- parts ---

    def read_part(self, prefix: str, digest: str, max_bytes: int) -> bytes:
        """Raises OSError: it is not there, or is no such file."""
        return read_regular(self._path(part_name(prefix, digest)), max_bytes)

    def write_part(self, prefix: str, data: bytes, kept: str) -> str:
        """Returns its digest. Old parts of this prefix go, except that with the digest `kept`.

        Raises:
            SnapshotFileError: SNAPSHOT_LIMIT, the directory is full.
            OSError: it cannot be written.
        """
        digest = digest_of(data)
        name, kept_name = part_name(prefix, digest), part_name(prefix, kept)
        self._remove_old(
            entry for entry in self._entries() if _is_part(entry.name, prefix) and entry.name not in (name, kept_name)
        )
        num_bytes = sum(_size(entry) for entry in self._entries() if entry.name != name)
        if num_bytes + len(data) > self._budget_bytes:
            detail = f"the snapshot directory holds {num_bytes} of {self._budget_bytes} bytes; delete some of its files"
            raise SnapshotFileError(detail, ErrorCode.SNAPSHOT_LIMIT)
        self._write(name, data)
        return digest

    # --- files ---

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        with contextlib.suppress(OSError), os.scandir(self._directory) as entries:
            yield from entries

    def _remove_old(self, entries: Iterator[os.DirEntry[str]]) -> None:
        for entry in entries:
            with contextlib.suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > _OLD_S:
                    (self._directory / entry.name).unlink()

    def _path(self, name: str) -> Path:
        if not is_inside(name):
            raise SnapshotFileError(f"{name!r:.120} is no file name for a snapshot")
        return self._directory / name

    def _write(self, name: str, data: bytes, is_new: bool = False) -> None:
        """Aside, then renamed, so that a file is whole or not there; a new one never takes another's place."""
        path = self._path(name)
        aside = path.with_name(f".{name}.{os.getpid()}")
        try:
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                os.link(aside, path)
            else:
                aside.replace(path)
        except FileExistsError:
            raise SnapshotFileError(f"{name} was written by somebody else meanwhile; choose another name") from None
        finally:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)


def _is_part(name: str, prefix: str) -> bool:
    middle = name[len(prefix) + 1 : -len(PART_SUFFIX)]
    return name == f"{prefix}.{middle}{PART_SUFFIX}" and _DIGEST_PART.fullmatch(middle) is not None


def _size(entry: os.DirEntry[str]) -> int:
    """0 of what has vanished, or is nothing that takes room here."""
    with contextlib.suppress(OSError):
        return entry.stat(follow_symlinks=False).st_size
    return 0
