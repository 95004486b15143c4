"""The child's side of 'no process outlives its cluster': it ends this process when the parent is gone."""

from __future__ import annotations

import os
import signal
import threading

from stagewire.wire.errors import SettingsError


def end_with_parent(pipe_fd: int) -> None:
    """Ends this process, at once, when the other end of the inherited pipe `pipe_fd` closes.

    The parent alone holds that end and never writes, so the system closes it however the parent ends, SIGKILL
    included. (Linux's parent-death signal would fire when the *thread* that started us ends.)

    Raises:
        SettingsError: `pipe_fd` is not an open descriptor; nothing is watched.
    """
    try:
        os.fstat(pipe_fd)
    except OSError:
        raise SettingsError(f"parent_pipe={pipe_fd}: no such descriptor was inherited") from None
    threading.Thread(target=_watch, args=(pipe_fd,), name="parent-watchdog", daemon=True).start()


def _watch(pipe_fd: int) -> None:
    if hasattr(signal, "pthread_sigmask"):
        # A signal that the system gave to this thread would not wake the main thread, which must handle it.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.read(pipe_fd, 1)
    # Not a clean stop: the main thread may be loading for minutes, and nobody is left to tell goodbye.
    os._exit(1)
