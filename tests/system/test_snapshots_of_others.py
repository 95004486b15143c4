"""Snapshots that nobody can free by name any more, on a real cluster: seen, freed, and gone by themselves."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from stagewire.client import Client, ClientSettings
from stagewire.cluster.local import LocalCluster
from stagewire.cluster.spec import BrokerSpec

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
PROMPT = list(range(500, 564))
EXPIRY_S = 4.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two stages and a broker that frees what the gone have left after a few seconds."""
    broker = BrokerSpec(snapshot_expiry_s=EXPIRY_S, client_silence_s=1.5)
    with LocalCluster(split="0:29,29:30", broker=broker) as running:
        yield running


def snapshot(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stagewire", "snapshot", *words, "--endpoint", cluster.endpoint]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def save(cluster: LocalCluster, client_id: str | None, prompt: list[int]) -> str:
    """One run of a script that keeps a prompt and ends; returns its client's name."""
    named = ClientSettings(endpoint=cluster.endpoint) if client_id is None else None
    settings = named or ClientSettings(endpoint=cluster.endpoint, client_id=client_id or "")
    with Client(settings=settings) as client:
        assert client.session().snapshot("rules", prompt_token_ids=prompt) == len(prompt)
    return settings.client_id


def used_blocks(client: Client) -> list[int]:
    return [stage.num_used_blocks for stage in client.caches().stages]


def wait_until(is_so: Callable[[], bool], within_s: float) -> float:
    begun = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun < within_s
        time.sleep(0.1)
    return time.monotonic() - begun


def test_what_scripts_leave_takes_the_room_of_one_is_shown_and_goes(cluster: LocalCluster) -> None:
    """Not before its time; what belongs to a name stays, until an operator frees it."""
    owners = [save(cluster, None, PROMPT) for _ in range(6)]
    save(cluster, "me", PROMPT)
    with cluster.client() as client:
        assert used_blocks(client) == [4, 4], "64 tokens, seven times"
        shown = snapshot(cluster, "list", "--all")
        assert shown.returncode == 0, shown.stderr
        lines = shown.stdout.splitlines()
        assert [line.split()[0] for line in lines] == sorted([*owners, "me"])
        assert all("64 tokens in 4 blocks, 0 of them its own" in line for line in lines)
        assert [("client gone, freed in" in line) for line in lines] == [True] * 6 + [False]
        freed = snapshot(cluster, "free", "--all-of", owners[0], "--json")
        assert (freed.returncode, json.loads(freed.stdout)["num_freed"]) == (0, 1)
        wait_until(lambda: len(client.all_snapshots().items) == 1, 20)
        assert [one.client_id for one in client.all_snapshots().items] == ["me"]
        assert used_blocks(client) == [4, 4]
        described = snapshot(cluster, "describe", "rules", "--of", "me")
        assert "rules: 64 tokens in 4 blocks, decodes at once" in described.stdout
        assert snapshot(cluster, "free", "rules", "--of", "me").stdout == "no snapshots\n"
        client.session().generate(prompt_token_ids=[7], max_tokens=1).wait(20)
        assert used_blocks(client) == [0, 0]


@pytest.mark.slow
def test_the_time_begins_when_the_client_has_gone(cluster: LocalCluster) -> None:
    """However long it was there, and however it left."""
    settings = ClientSettings(endpoint=cluster.endpoint)
    with cluster.client() as watcher:
        with Client(settings=settings) as client:
            client.session().snapshot("long", prompt_token_ids=PROMPT[:20])
            time.sleep(EXPIRY_S + 1.0)
            assert [one.name for one in watcher.snapshots(owner=settings.client_id).items] == ["long"]
        waited_s = wait_until(lambda: not watcher.all_snapshots().items, 20)
        assert waited_s >= EXPIRY_S - 0.5


@pytest.mark.slow
def test_a_new_broker_frees_what_was_left_before_it(cluster: LocalCluster) -> None:
    """It asks the head, and waits as long as the old one would have."""
    owner = save(cluster, None, PROMPT[:33])
    save(cluster, "me", PROMPT[:33])
    cluster.kill_broker()
    cluster.restart_broker()
    cluster.wait_until_serving()
    with cluster.client() as client:
        assert {one.client_id for one in client.all_snapshots().items} == {owner, "me"}
        wait_until(lambda: [one.client_id for one in client.all_snapshots().items] == ["me"], 20)
        client.free_all_snapshots(owner="me")


@pytest.mark.parametrize("length", [5, 16, 41])
def test_an_answer_of_one_token_tells_what_it_leaves_in_the_caches(cluster: LocalCluster, length: int) -> None:
    """On all stages, in tokens and bytes; given again, nothing is new."""
    prompt = list(range(9000 + length, 9000 + 2 * length))
    with cluster.client() as client:
        first, again = (client.session().generate(prompt_token_ids=prompt, max_tokens=1).wait(20) for _ in range(2))
        block_bytes = sum(stage.block_bytes for stage in client.caches().stages)
    assert (first.cache.recorded_tokens, first.cache.recorded_bytes) == (2 * length, length * block_bytes // 16)
    assert again.usage.cached_tokens == length - 1


@pytest.mark.parametrize("words", [("free", "nope"), ("free", "--all-of", "nobody"), ("free", "x", "--of", "nobody")])
def test_freeing_what_is_not_there_fails(cluster: LocalCluster, words: tuple[str, ...]) -> None:
    """And says of whom there is none."""
    done = snapshot(cluster, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: there ")
    assert ("'nobody'" in done.stderr) or ("'nope' of client 'stagewire-cli'" in done.stderr)
