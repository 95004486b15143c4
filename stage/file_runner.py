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
    SnapshotFileError,
    decode_manifest,
    decode_part,
    digest_of,
    encode_manifest,
    encode_part,
    is_inside,
    manifest_name,
)
from stagewire.wire.errors import ErrorCode, SettingsError, StagewireError

log = logging.getLogger("stagewire.stage")


class FileRunner:
    """`directory` is that of snapshots, `tier` that of blocks; what is None is switched off.

    Raises:
        SettingsError: the directory cannot be made.
    """

    def __init__(self, directory: Path | None, tier: DiskTier | None) -> None:
        self._directory, self._tier = directory, tier
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
                data = encode_part(job.numerics, job.token_bytes, contents)
                self._write(job.name, data)
                return JobDone(job, digest=digest_of(data))
            case ReadPart():
                token_bytes, blocks = decode_part(self._path(job.name).read_bytes(), job.digest, job.numerics)
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
