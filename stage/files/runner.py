"""Does what file jobs say, in whatever thread calls it: exported snapshots, blocks of the disk tier."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from stagewire.stage.files.disk_tier import DiskTier
from stagewire.stage.files.jobs import (
    FetchBlocks,
    FileJob,
    JobDone,
    ReadManifest,
    ReadPart,
    Staged,
    WriteManifest,
    WritePart,
)
from stagewire.stage.files.snapshot_directory import SnapshotDirectory
from stagewire.stage.files.snapshot_file import SnapshotFileError, decode_part, encode_part
from stagewire.wire.errors import ErrorCode, StagewireError

log = logging.getLogger("stagewire.stage")


class FileRunner:
    """What is None is switched off."""

    def __init__(self, snapshots: SnapshotDirectory | None, tier: DiskTier | None) -> None:
        self._snapshots, self._tier = snapshots, tier

    def run(self, job: FileJob, contents: Sequence[bytes] = ()) -> JobDone:
        """Do one job, whatever happens; `contents` are those of the blocks to write."""
        try:
            return self._fetch(job) if isinstance(job, FetchBlocks) else self._run(job, contents)
        except StagewireError as error:
            return JobDone(job, code=error.code, detail=error.detail)
        except OSError as error:
            log.warning("event=file_job_failed job=%s detail=%r", type(job).__name__, str(error))
            return JobDone(job, code=ErrorCode.SNAPSHOT_FILE, detail=f"a file failed: {error.strerror or error}")
        except Exception as error:
            log.exception("event=file_job_failed job=%s", type(job).__name__)
            return JobDone(job, code=ErrorCode.INTERNAL, detail=f"{type(error).__name__}: {error}")

    def _run(self, job: FileJob, contents: Sequence[bytes]) -> JobDone:
        snapshots = self._snapshots
        if snapshots is None:
            raise SnapshotFileError("this stage has no snapshot directory; start it with --snapshot-directory")
        match job:
            case WritePart():
                data = encode_part(job.numerics, job.token_bytes, contents)
                return JobDone(job, digest=snapshots.write_part(job.prefix, data, job.kept))
            case ReadPart():
                data = snapshots.read_part(job.prefix, job.digest, job.max_bytes)
                return JobDone(job, Staged(0, *decode_part(data, job.digest, job.numerics)))
            case ReadManifest():
                return JobDone(job, manifest=snapshots.manifest(job.name))
            case WriteManifest():
                snapshots.commit(job.name, job.manifest, job.replaces)
        return JobDone(job)

    def _fetch(self, job: FetchBlocks) -> JobDone:
        if self._tier is None:
            return JobDone(job, Staged(job.depth))
        found = self._tier.fetch(job.numerics, job.before, job.depth, job.token_bytes, job.block_bytes)
        return JobDone(job, found)
