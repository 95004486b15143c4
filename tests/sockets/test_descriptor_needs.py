"""How many descriptors are needed, and what is said where there are fewer."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from stagewire.sockets.descriptor_needs import (
    Need,
    broker_need,
    check_limit,
    cluster_needs,
    stage_need,
)
from stagewire.sockets.open_files import highest_open_file_limit, open_file_limit
from stagewire.wire.errors import SettingsError


def test_each_stage_pipeline_and_client_costs_the_broker_what_it_opens() -> None:
    assert broker_need(1, 1).of(0) + 2 == broker_need(2, 1).of(0)
    assert broker_need(2, 1).of(0) + 2 == broker_need(2, 2).of(0)
    assert broker_need(2, 2).of(100) == broker_need(2, 2).of(0) + 100
    assert [need.process for need in cluster_needs((2, 3))] == ["the broker", "a stage"]
    assert cluster_needs((2, 3))[0] == broker_need(5, 2)


@pytest.mark.parametrize("limit", [0, 24, 32, 64, 256, 1024, 1 << 20])
def test_what_fits_into_a_limit_is_what_it_is_needed_for(limit: int) -> None:
    for need in (broker_need(2, 1), stage_need()):
        num_clients = need.clients_within(limit)
        assert num_clients == 0 or need.of(num_clients) <= limit < need.of(num_clients + 1)


@pytest.mark.parametrize(
    ("need", "num_clients", "limit", "words"),
    [
        (Need("the broker", 40, 1), 8, 47, "the broker needs 48 file descriptors for 8 clients, and may open 47"),
        (Need("a stage", 36, 4), 1, 24, "a stage needs 40 file descriptors for 1 client, and may open 24"),
        (Need("a client", 32, 0), 1, 31, "a client needs 32 file descriptors, and may open 31"),
    ],
)
def test_a_limit_that_is_too_low_is_named_with_what_to_do(need: Need, num_clients: int, limit: int, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_limit(need, num_clients, limit)
    assert caught.value.detail.startswith(words)
    advised = int(caught.value.detail.partition("`ulimit -n ")[2].rstrip("`"))
    check_limit(need, num_clients, advised)
    check_limit(need, num_clients, need.of(num_clients))


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    """And left there where it is the hard one already."""
    code = (
        "import resource\n"
        "from stagewire.sockets.open_files import *\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "assert open_file_limit() == 64 < highest_open_file_limit()\n"
        "print(raise_open_file_limit() == raise_open_file_limit() == min(hard, 1 << 20) == open_file_limit())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
    assert open_file_limit() <= highest_open_file_limit() <= resource.getrlimit(resource.RLIMIT_NOFILE)[1]
