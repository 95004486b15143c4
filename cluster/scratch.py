"""The temporary folder of one cluster, and the folders of those that were killed, which the next one removes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

from stagewire.wire.errors import ClusterError

_LOCK = "owner.lock"


class ScratchFolder:
    """A new folder under the system's temporary one, held as long as this process lives and removed by `close`.

    The system frees the lock in it however its process ends, SIGKILL included. `close` it.

    Raises:
        ClusterError: there is no folder to make it in, or no room; nothing is left of it.
    """

    def __init__(self) -> None:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix=_prefix())
        except OSError as error:
            raise _unusable(error) from None
        self.path = Path(self._folder.name)
        try:
            self._lock = _lock_file(self.path)
        except OSError as error:
            self._folder.cleanup()
            raise _unusable(error) from None

    def close(self) -> None:
        """Removes the folder and all in it. Doing it again is harmless."""
        self._folder.cleanup()
        self._lock.close()


def remove_abandoned(temporary: Path | None = None) -> list[Path]:
    """Removes this user's scratch folders whose process is gone, and returns them.

    A folder without a lock in it is left alone: it may be in the making.
    """
    removed = []
    for folder in (temporary or Path(tempfile.gettempdir())).glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError):  # somebody else was quicker
            if _is_our_folder(folder) and _remove_if_free(folder):
                removed.append(folder)
    return removed


def _unusable(error: OSError) -> ClusterError:
    where = error.filename or tempfile.gettempdir()
    return ClusterError(f"no temporary folder can be made: {where}: {error.strerror}; set TMPDIR to one with room")


def _prefix() -> str:
    return f"stagewire-up-{os.getuid()}-"


def _lock_file(folder: Path) -> BinaryIO:
    """The held lock; it gets its name once it is held, so that nobody takes it for one that is free."""
    nameless = folder / f"{_LOCK}.new"
    file = nameless.open("wb")
    # On a file system without locks it stays nameless, and the folder is not removed by others.
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        nameless.rename(folder / _LOCK)
    return file


def _is_our_folder(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _remove_if_free(folder: Path) -> bool:
    with (folder / _LOCK).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
