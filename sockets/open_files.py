"""The system's limit of open files of this process: read, and raised as far as it may be."""

from __future__ import annotations

import contextlib
import resource

_MOST = 1 << 20
"""Beyond it nothing is won, and some systems refuse."""


def open_file_limit() -> int:
    """How many descriptors this process may have open now."""
    return _bounded(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def highest_open_file_limit() -> int:
    """How many it, and what it starts, may raise that to."""
    return max(open_file_limit(), _bounded(resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def raise_open_file_limit() -> int:
    """Raises the soft limit to the hard one, where the system lets it; returns what holds now."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if open_file_limit() < _bounded(hard):
        with contextlib.suppress(ValueError, OSError):  # macOS names a hard limit that it does not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (_bounded(hard), hard))
    return open_file_limit()


def _bounded(limit: int) -> int:
    return _MOST if limit == resource.RLIM_INFINITY else min(limit, _MOST)
