"""Addresses as people give them to commands, stage and broker: every form works, every mistake is named within 4 s."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from support.native_files import write_native_model
from support.running_broker import FAST, RunningBroker

from stagewire import Client
from stagewire.cluster.local import LocalCluster
from stagewire.cluster.spec import BrokerSpec, StageLimits
from stagewire.wire.errors import SettingsError
from stagewire.wire.sampling import SamplingParams

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
STAGEWIRE = [sys.executable, "-m", "stagewire"]
NO_NAME = "no-such-host.invalid:7070"


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    running = RunningBroker(FAST)
    yield running
    running.stop()


def run(*arguments: str, **environment: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """A command and how long it took."""
    begun = time.monotonic()
    done = subprocess.run(
        [*STAGEWIRE, *arguments], capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | environment, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done, time.monotonic() - begun


def port_of(endpoint: str) -> str:
    return endpoint.rpartition(":")[2]


def test_a_command_takes_an_address_in_every_form(broker: RunningBroker) -> None:
    endpoint = broker.endpoints.frontend
    for form in (endpoint, port_of(endpoint), f"localhost:{port_of(endpoint)}", f"127.0.0.1:{port_of(endpoint)}"):
        done, _ = run("status", "--endpoint", form)
        assert done.returncode == 0 and "broker up" in done.stdout, (form, done.stderr)


def test_the_environment_names_the_broker_for_commands_and_programs(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flag or an argument counts more; a wrong value is named by the variable."""
    port = port_of(broker.endpoints.frontend)
    done, _ = run("status", STAGEWIRE_ENDPOINT=port)
    assert done.returncode == 0, done.stderr
    done, _ = run("status", "--endpoint", port, STAGEWIRE_ENDPOINT="9")
    assert done.returncode == 0, done.stderr
    done, _ = run("status", STAGEWIRE_ENDPOINT="localhost")
    assert done.returncode == 2 and "error: STAGEWIRE_ENDPOINT=localhost: the port is missing" in done.stderr
    done, _ = run("status", "--endpoint", "", STAGEWIRE_ENDPOINT=port)
    assert done.returncode == 2 and "error: endpoint=: the port is missing" in done.stderr
    monkeypatch.setenv("STAGEWIRE_ENDPOINT", port)
    with Client() as client:
        assert client.status().uptime_s >= 0
    monkeypatch.setenv("STAGEWIRE_ENDPOINT", "7070x")
    with pytest.raises(SettingsError, match="STAGEWIRE_ENDPOINT=7070x"):
        Client()


@pytest.mark.alone
@pytest.mark.parametrize("command", [["status"], ["top", "--once"], ["generate", "hi"], ["cache", "stats"]])
def test_commands_say_within_four_seconds_what_is_wrong(command: list[str], broker: RunningBroker) -> None:
    """Usage is wrong, not the cluster: exit code 2, and no word of starting one."""
    ends = broker.endpoints
    frontend, frontend_port = ends.frontend, port_of(ends.frontend)
    for address, words in (
        (NO_NAME, "the name no-such-host.invalid does not resolve"),
        (ends.metrics, f"is the broker's metrics port; clients use 127.0.0.1:{frontend_port}"),
        (ends.control, f"this is the broker's control port, for stages; clients use {frontend}"),
    ):
        done, took_s = run(*command, "--endpoint", address)
        assert words in done.stderr, (address, done.stderr)
        assert done.returncode == 2
        assert took_s < 4 and "stagewire up" not in done.stderr


def test_where_nothing_listens_a_cluster_is_to_be_started() -> None:
    """After three seconds: a broker may be about to start."""
    done, took_s = run("status", "--endpoint", "9")
    assert done.returncode == 1 and 3 < took_s < 8
    assert "within 3 s: nothing listens there" in done.stderr and "`stagewire up`" in done.stderr


@pytest.mark.alone
def test_a_client_says_it_before_its_time_is_up() -> None:
    """Ten seconds are the default; a request without a question before it hears it as well."""
    begun = time.monotonic()
    with Client(NO_NAME) as client:
        with pytest.raises(SettingsError, match="does not resolve"):
            client.models()
        generation = client.session().generate(prompt_token_ids=[1], sampling=SamplingParams(), max_tokens=1)
        with pytest.raises(Exception, match="does not resolve"):
            list(generation)
    assert time.monotonic() - begun < 6


@pytest.mark.alone
def test_a_stage_says_what_is_wrong_before_it_loads(broker: RunningBroker) -> None:
    """Also where the broker is there, and the port is another of its ports."""
    ends = broker.endpoints
    for address, words in (
        (NO_NAME, "the name no-such-host.invalid does not resolve"),
        (ends.metrics, f"is the broker's metrics port; stages use {ends.control.removeprefix('tcp://')}"),
        (ends.frontend, f"this is the broker's frontend port, for clients; stages use {ends.control}"),
        ("localhost", "the port is missing"),
    ):
        done, took_s = run("stage", "--model", "never-read.gguf", "--control-endpoint", address)
        assert f"error: control_endpoint={address if address == 'localhost' else ''}" in done.stderr
        assert words in done.stderr, (address, done.stderr)
        assert done.returncode == 2 and took_s < 4


@pytest.mark.parametrize(
    ("flag", "address", "words"),
    [
        ("--frontend-endpoint", NO_NAME, "no-such-host.invalid is a name"),
        ("--control-endpoint", "10.0.0.1:7071", "without keys the broker serves this machine only"),
        ("--frontend-endpoint", "[::]:7070", "without keys the broker serves this machine only"),
        ("--frontend-endpoint", "::1:7070", "in brackets"),
        ("--frontend-endpoint", "7070 7071", "expected PORT"),
    ],
)
def test_a_broker_says_what_is_wrong_with_where_it_shall_listen(flag: str, address: str, words: str) -> None:
    done, took_s = run("broker", flag, address)
    assert done.returncode == 2 and took_s < 4
    assert words in done.stderr and "another port" not in done.stderr


@pytest.mark.slow
def test_everything_works_over_ipv6_loopback(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Broker, stages among themselves, and the client's own return link."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_native_model(path)
    broker = BrokerSpec(frontend_endpoint="[::1]:*", control_endpoint="tcp://[::1]:0", grace_s=0.2)
    with LocalCluster(str(path), stages=2, limits=StageLimits(kv_tokens=256), broker=broker) as cluster:
        assert cluster.endpoint.startswith("tcp://[::1]:")
        done, _ = run("status", "--endpoint", cluster.endpoint)
        assert done.returncode == 0, done.stderr
        with cluster.client() as client:
            generation = client.session().generate(
                prompt_token_ids=[3, 4, 5], sampling=SamplingParams(temperature=0), max_tokens=3, ignore_eos=True
            )
            assert len(generation.wait(timeout_s=30).token_ids) == 3
