"""Whether the machine is quiet: the share of its processors that is in use while we do nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

_LOOK_S = 0.5


def busy_share(look_s: float = _LOOK_S) -> float:
    """Of all processors together, over `look_s` seconds; time that a hypervisor took away counts as busy."""
    return float(psutil.cpu_percent(interval=look_s)) / 100


def quiet_gate(max_share: float, patience_s: float, progress: Callable[[str], None]) -> Callable[[], float]:
    """A function that waits until less than `max_share` is busy, at most `patience_s`, and returns what still is."""

    def wait() -> float:
        deadline = time.monotonic() + patience_s
        share = busy_share()
        while share > max_share and time.monotonic() < deadline:
            progress(f"waiting for a quiet machine: {100 * share:.0f}% busy")
            time.sleep(_LOOK_S)
            share = busy_share()
        return share

    return wait
