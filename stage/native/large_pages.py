"""Memory for what is read from end to end at every step: large pages where the system has them.

With ordinary pages a core that streams weights spends a third of its time on looking addresses up.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
from numpy.typing import NDArray

from stagewire.wire.errors import SettingsError

_LARGE_PAGE = 2 << 20
_CHUNK_BYTES = 32 << 20
_ALIGNMENT = 64


class LargePages:
    """Hands out zeroed buffers that begin at multiples of 64 bytes, and keeps them as long as any is alive."""

    def __init__(self) -> None:
        self._rest: NDArray[np.uint8] = np.empty(0, np.uint8)

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """A new buffer, uint8 [num_bytes]."""
        size = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        if size > len(self._rest):
            self._rest = _map(max(size, _CHUNK_BYTES))
        buffer, self._rest = self._rest[:num_bytes], self._rest[size:]
        return buffer


def large_zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[np.generic]:
    """Zeros on large pages; memory is taken only where it is written."""
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return _map(num_bytes)[:num_bytes].view(dtype).reshape(shape)


def _map(num_bytes: int) -> NDArray[np.uint8]:
    """Fresh pages from the start of a large one on; the array keeps the mapping."""
    # Private: mappings that processes could share get no large pages on most systems.
    try:
        mapping = mmap.mmap(-1, num_bytes + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        wanted = f"{num_bytes / 1e6:.0f} MB of memory"
        raise SettingsError(f"{wanted} cannot be had ({error}): hold fewer layers, or lower kv_tokens") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system that knows no large pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
    buffer = np.frombuffer(mapping, np.uint8)
    start = -buffer.ctypes.data % _LARGE_PAGE
    return buffer[start : start + num_bytes]
