"""One child process: its start, its readiness, its log and its end; it does not know what the child does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stagewire.cluster.announcement import read_announcement
from stagewire.wire.errors import ClusterError

STOP_TIMEOUT_S = 5.0
_KILL_TIMEOUT_S = 5.0
_POLL_S = 0.02
_NUM_LOG_LINES = 8
_TAIL_BYTES = 16_384

# A process group of its own, so that Ctrl-C reaches only us, but in our session: when we are killed while the
# child is paused, the kernel hangs up its orphaned group, and it ends all the same.
# (Python 3.10 can only give it a session of its own, where a paused child would wait for ever.)
_OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}


class ChildProcess:
    """A command that is started with `--announce FILE --parent-pipe FD` behind its own arguments.

    The child writes FILE when it is ready and ends when FD closes (`watchdog`), so that it never outlives
    this process. Output of every start is appended to `log_path`.
    """

    def __init__(self, name: str, command: Sequence[str], scratch: Path, log_path: Path) -> None:
        self.name, self.log_path = name, log_path
        self.command = tuple(command)
        self._announce_path = scratch / f"{name}.json"
        self._process: subprocess.Popen[bytes] | None = None
        self._parent_pipe: int | None = None

    @property
    def pid(self) -> int | None:
        """Of the running child; None when there is none."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of the last run, negative for the signal that ended it; None while it runs, or before the first."""
        return None if self._process is None else self._process.poll()

    @property
    def announcement(self) -> dict[str, str] | None:
        return read_announcement(self._announce_path)

    def start(self) -> None:
        """Starts the child and returns at once.

        Raises:
            ClusterError: STAGE_START_FAILED, the command cannot be run at all.
        """
        self._announce_path.unlink(missing_ok=True)  # of an earlier run
        # A child imports nothing from the folder that we happen to be in.
        environment = os.environ | {"PYTHONSAFEPATH": "1"}
        child_end, self._parent_pipe = os.pipe()
        arguments = [*self.command, "--announce", str(self._announce_path), "--parent-pipe", str(child_end)]
        try:
            with self.log_path.open("ab") as log:
                self._process = subprocess.Popen(  # noqa: S603  # our own command, no shell
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(child_end,),
                    env=environment,
                    **_OWN_GROUP,
                )
        except OSError as error:
            self._close_pipe()
            raise ClusterError(f"{self.name} cannot be started: {error}") from None
        finally:
            os.close(child_end)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the child and all it started; nothing happens when it has ended."""
        if self._process is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL; the child is gone when this returns.

        Raises:
            ClusterError: the system did not end it in time (a driver that hangs, say); it will be gone later.
        """
        self.signal(signal.SIGKILL)
        self._close_pipe()
        try:
            if self._process is not None:
                self._process.wait(_KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise self.failure(f"(pid {self.pid}) is still there {_KILL_TIMEOUT_S:g} s after SIGKILL") from None

    def failure(self, what: str) -> ClusterError:
        """The error that says what happened to this child, with the last lines of its log."""
        lines = self.last_lines() or ["(its log is empty)"]
        quoted = "".join(f"\n    {line}" for line in lines)
        return ClusterError(f"{self.name} {what}; the last lines of its log:{quoted}")

    def describe_end(self) -> str:
        code = self.exit_code
        if code is None:
            return "has not ended"
        return f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"

    def last_lines(self, num_lines: int = _NUM_LOG_LINES) -> list[str]:
        """The end of the log, without empty lines."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = log.read().decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return []
        return [line for line in lines if line.strip()][-num_lines:]

    def _close_pipe(self) -> None:
        if self._parent_pipe is not None:
            os.close(self._parent_pipe)
            self._parent_pipe = None


def wait_until_ready(
    children: Sequence[ChildProcess],
    timeout_s: float,
    on_ready: Callable[[ChildProcess], None] = lambda _child: None,
) -> None:
    """Returns when every child has announced itself, and tells of each as it does.

    Raises:
        ClusterError: STAGE_START_FAILED, as soon as one has ended, or when the time is up, naming it.
    """
    deadline = time.monotonic() + timeout_s
    waiting = list(children)
    while waiting:
        for child in children:
            if not child.is_running:
                raise child.failure(f"{child.describe_end()} while starting")
        for child in [child for child in waiting if child.announcement is not None]:
            waiting.remove(child)
            on_ready(child)
        if waiting and time.monotonic() > deadline:
            raise waiting[0].failure(f"was not ready within {timeout_s:g} s")
        time.sleep(_POLL_S)


def stop_all(children: Sequence[ChildProcess], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Asks all with SIGTERM, waits for them together, and kills who is left, also after an exception."""
    try:
        for child in children:
            child.signal(signal.SIGCONT)  # a paused one would not hear the next
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and any(child.is_running for child in children):
            time.sleep(_POLL_S)
    finally:
        for child in children:
            child.signal(signal.SIGKILL)
        for child in children:
            child.kill()
