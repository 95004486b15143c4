"""Does what file jobs say, in whatever thread calls it: snapshot files in one directory, blocks of the disk tier."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from stagewire.stage.disk_tier import DiskTier
from stagewire.stage.file_jobs import (
    FetchBlocks,
    FileJob,
    JobDone,
    ReadManifest,
    ReadPart,
    Staged,
    WriteManifest,
    WritePart,
)
from stagewire.stage.snapshot_file import (
    PART_SUFFIX,
    SnapshotFileError,
    decode_manifest,
    decode_part,
    digest_of,
    encode_manifest,
    encode_part,
    is_inside,
    manifest_name,
    part_name,
)
from stagewire.wire.errors import ErrorCode, SettingsError, StagewireError

_MAX_PARTS = 4
log = logging.getLogger("stagewire.stage")


class FileRunner:
    """`directory` is that of snapshots, up to `budget_bytes`; `tier` that of blocks; what is None is switched off.

    Raises:
        SettingsError: the directory cannot be made.
    """

    def __init__(self, directory: Path | None, tier: DiskTier | None, budget_bytes: int = 1 << 34) -> None:
        self._directory, self._tier, self._budget_bytes = directory, tier, budget_bytes
        try:
            if directory is not None:
                directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            detail = f"snapshot_directory={directory}: {error.strerror}; choose a directory that can be written"
            raise SettingsError(detail, ErrorCode.INVALID_SETTING) from error

    def run(self, job: FileJob, contents: Sequence[bytes] = ()) -> JobDone:
        """Do one job, whatever happens; `contents` are those of the blocks to write."""
        try:
            return self._run(job, contents)
        except StagewireError as error:
            return JobDone(job, code=error.code, detail=error.detail)
        except OSError as error:
            log.warning("event=file_job_failed job=%s detail=%r", type(job).__name__, str(error))
            return JobDone(job, code=ErrorCode.SNAPSHOT_FILE, detail=f"a file failed: {error.strerror or error}")
        except Exception as error:
            log.exception("event=file_job_failed job=%s", type(job).__name__)
            return JobDone(job, code=ErrorCode.INTERNAL, detail=f"{type(error).__name__}: {error}")

    def _run(self, job: FileJob, contents: Sequence[bytes]) -> JobDone:
        match job:
            case WritePart():
                return JobDone(job, digest=self._write_part(job, contents))
            case ReadPart():
                path = self._path(part_name(job.prefix, job.digest))
                token_bytes, blocks = decode_part(path.read_bytes(), job.digest, job.numerics)
                return JobDone(job, Staged(0, token_bytes, blocks))
            case FetchBlocks():
                return JobDone(job, self._fetch(job))
            case ReadManifest():
                path = self._path(manifest_name(job.name))
                return JobDone(job, manifest=decode_manifest(path.read_bytes()) if path.exists() else None)
            case WriteManifest():
                self._write(manifest_name(job.name), encode_manifest(job.manifest))
                return JobDone(job)

    def _fetch(self, job: FetchBlocks) -> Staged:
        if self._tier is None:
            return Staged(job.depth)
        return self._tier.fetch(job.numerics, job.before, job.depth, job.token_bytes, job.block_bytes)

    def _write_part(self, job: WritePart, contents: Sequence[bytes]) -> str:
        """Returns its digest. Of parts that no manifest may name any more the last few stay, and the others go."""
        data = encode_part(job.numerics, job.token_bytes, contents)
        digest = digest_of(data)
        path = self._path(part_name(job.prefix, digest))
        num_bytes = sum(other.stat().st_size for other in path.parent.iterdir() if other != path)
        if num_bytes + len(data) > self._budget_bytes:
            detail = f"the snapshot directory holds {num_bytes} of {self._budget_bytes} bytes; delete some of its files"
            raise SnapshotFileError(detail, ErrorCode.SNAPSHOT_LIMIT)
        self._write(path.name, data)
        parts = sorted(path.parent.glob(f"{job.prefix}.*{PART_SUFFIX}"), key=lambda part: -part.stat().st_mtime_ns)
        for old in parts[_MAX_PARTS:]:
            old.unlink(missing_ok=True)
        return digest

    def _path(self, name: str) -> Path:
        if self._directory is None:
            raise SnapshotFileError("this stage has no snapshot directory; start it with --snapshot-directory")
        if not is_inside(name):
            raise SnapshotFileError(f"{name!r:.120} is no file name for a snapshot")
        return self._directory / name

    def _write(self, name: str, data: bytes) -> None:
        """Aside, then renamed: a file is whole or not there."""
        path = self._path(name)
        aside = path.with_name(f".{name}.{os.getpid()}")
        try:
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
