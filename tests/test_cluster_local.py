"""The cluster of real processes with a real model: serving, hurt on purpose, and nothing left behind."""

from __future__ import annotations

import time

import psutil
import pytest

from stagewire.cluster.local import LocalCluster
from stagewire.cluster.spec import StageLimits
from stagewire.wire.sampling import SamplingParams

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

GREEDY = SamplingParams(temperature=0.0)
PROMPT = list(range(100, 120))
LIMITS = StageLimits(kv_tokens=2048)


def complete(cluster: LocalCluster, max_tokens: int = 8) -> tuple[int, ...]:
    with cluster.client() as client:
        generation = client.session().generate(
            prompt_token_ids=PROMPT, sampling=GREEDY, max_tokens=max_tokens, ignore_eos=True
        )
        for _event in generation:
            pass
        return tuple(generation.result.token_ids)


def wait_until_gone(pids: list[int], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        assert time.monotonic() < deadline, "a process was left behind"
        time.sleep(0.05)
