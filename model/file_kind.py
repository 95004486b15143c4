"""What kind of thing a path leads to, where only a regular file will do."""

from __future__ import annotations

import os
import stat

from stagewire.wire.errors import ModelError

_KINDS = {
    stat.S_IFDIR: "a directory; give the path of a .gguf file",
    stat.S_IFIFO: "a FIFO; several processes map a model, so that it must be a regular file",
    stat.S_IFSOCK: "a socket; give the path of a .gguf file",
    stat.S_IFCHR: "a device; give the path of a .gguf file",
    stat.S_IFBLK: "a device; give the path of a .gguf file",
}


def refuse_irregular(path: os.PathLike[str], mode: int) -> None:
    """Checks the mode of what lies at `path`.

    Raises:
        ModelError: MODEL_FILE_INVALID, it is no regular file; the message says what it is.
    """
    kind = _KINDS.get(stat.S_IFMT(mode))
    if kind is not None:
        raise ModelError(f"{path} is {kind}")
