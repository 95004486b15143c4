"""Gives memory back to the system after loading."""

from __future__ import annotations

import ctypes
import sys


def return_freed_memory() -> None:
    """Gives what loading has freed back to the system; glibc's allocator keeps it otherwise."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
