"""Reads files that are regular, and not longer than expected. Any other would hang the reader, or fill its memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_regular(path: Path, max_bytes: int) -> bytes:
    """All bytes of a file.

    Raises:
        OSError: it is not there, is no regular file (a pipe would never end), or is longer than `max_bytes`.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path.name} is no regular file")
        if found.st_size > max_bytes:
            raise OSError(f"{path.name} has {found.st_size} bytes, and not {max_bytes} at most")
        return file.read(max_bytes + 1)
