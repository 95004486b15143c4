"""A stage's file thread: jobs in, what became of them out. Nothing that it does delays a step."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable

from stagewire.stage.files.jobs import FileJob, JobDone, WritePart
from stagewire.stage.files.runner import FileRunner
from stagewire.wire.errors import ErrorCode

_MAX_JOBS = 64
_BLOCKS_PER_TURN = 8
_CLOSE_S = 5.0
_Work = tuple[FileJob, tuple[bytes, ...]]


class FileWorker:
    """One thread for all jobs, in order. `wake` can be read from when something is done.

    What is to be written is copied by `read_block` in the caller's thread, a few blocks with each `pump`.
    """

    def __init__(self, runner: FileRunner, read_block: Callable[[int], bytes]) -> None:
        self._runner, self._read_block = runner, read_block
        self.copying: deque[tuple[WritePart, list[bytes]]] = deque()
        """What `pump` has to do."""
        self._jobs: queue.Queue[_Work | None] = queue.Queue(_MAX_JOBS)
        self._done: queue.SimpleQueue[JobDone] = queue.SimpleQueue()
        self.wake, self._waker = socket.socketpair()
        self.wake.setblocking(False)
        self._waker.setblocking(False)
        self._thread = threading.Thread(target=self._run_all, name="files", daemon=True)
        self._thread.start()

    def submit(self, job: FileJob) -> None:
        """Have it done some time; one too many fails at once."""
        if isinstance(job, WritePart) and len(self.copying) < _MAX_JOBS:
            self.copying.append((job, []))
        elif isinstance(job, WritePart):
            self._refuse(job)
        else:
            self._put(job, ())

    def pump(self) -> None:
        """Copy a few blocks that are to be written; there are some."""
        job, contents = self.copying[0]
        for block in job.blocks[len(contents) : len(contents) + _BLOCKS_PER_TURN]:
            contents.append(self._read_block(block))
        if len(contents) == len(job.blocks):
            self.copying.popleft()
            self._put(job, tuple(contents))

    def _put(self, job: FileJob, contents: tuple[bytes, ...]) -> None:
        try:
            self._jobs.put_nowait((job, contents))
        except queue.Full:
            self._refuse(job)

    def _refuse(self, job: FileJob) -> None:
        self._finish(JobDone(job, code=ErrorCode.QUEUE_FULL, detail="too many file jobs wait; try again"))

    def _finish(self, done: JobDone) -> None:
        self._done.put(done)
        with contextlib.suppress(OSError):  # full: it is awake
            self._waker.send(b"x")

    def _run_all(self) -> None:
        while (work := self._jobs.get()) is not None:
            self._finish(self._runner.run(*work))

    def take_done(self) -> list[JobDone]:
        """What has become of jobs since the last call."""
        with contextlib.suppress(OSError):
            self.wake.recv(4096)
        # Only this thread takes, so what is there stays there.
        return [self._done.get_nowait() for _ in range(self._done.qsize())]

    def close(self) -> None:
        """Finish what the thread has been given, in bounded time; what is still being copied is dropped."""
        with contextlib.suppress(queue.Full):
            self._jobs.put(None, timeout=_CLOSE_S)
        self._thread.join(_CLOSE_S)
        self.wake.close()
        self._waker.close()
