"""Turns of the workers of pytest-xdist: tests run beside each other, but for those that measure."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Wait until no test runs that must be alone, or, with `alone`, until none runs at all; then hold that."""
    with (folder / "queue.lock").open("a") as queue, (folder / "running.lock").open("a") as running:
        # Whoever waits keeps the queue, so that no stream of short tests can keep a lone one waiting.
        fcntl.flock(queue, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(queue, fcntl.LOCK_UN)
        yield
