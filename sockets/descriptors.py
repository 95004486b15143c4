"""How many files and sockets this process may still open.

It is asked before some are: where there are none left, libzmq aborts or waits for ever, and whoever is served already
would suffer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stagewire.sockets.open_files import open_file_limit
from stagewire.wire.errors import ErrorCode, SettingsError

RESERVE = 16
"""Kept for what must always go on: a lost connection that comes again, a log, a file, somebody to be refused."""
_LISTING = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"  # noqa: PTH112  only a name is wanted
_TURN_S = 1.0
_turn = threading.Lock()


def num_free() -> int:
    """How many more it may open now; 0 where there is none to find it out with."""
    try:
        listed = os.listdir(_LISTING)  # noqa: PTH208  names are counted, not paths made
    except FileNotFoundError:
        return open_file_limit()  # a system that does not tell: nothing is refused before it is tried
    except OSError:
        return 0
    # The listing's own descriptor is among those listed, and is gone afterwards.
    return max(0, open_file_limit() - len(listed) + 1)


def has_room(num: int) -> bool:
    """Whether so many can be opened without touching the reserve."""
    return num_free() >= num + RESERVE


def require(num: int, who: str) -> None:
    """Refuse what could not work.

    Raises:
        SettingsError: DESCRIPTOR_LIMIT, fewer than `num` can be opened; nothing was.
    """
    free = num_free()
    if free < num:
        needed = f"{who} needs {num} more open files, and {free} of {open_file_limit()} are left"
        raise SettingsError(f"{needed}: raise the limit (ulimit -n)", ErrorCode.DESCRIPTOR_LIMIT)


@contextmanager
def room_for(num: int, who: str) -> Iterator[None]:
    """As `require`, and until they are open no other thread that comes this way counts them as free."""
    # In bounds: a fork copies the lock as it is, and in the child nobody may be there to release it.
    is_ours = _turn.acquire(timeout=_TURN_S)
    try:
        require(num, who)
        yield
    finally:
        if is_ours:
            _turn.release()
