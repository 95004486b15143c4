"""Few descriptors: refused before anything starts, with a number; with that number it really serves."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.native_files import write_native_model

from stagewire import Client
from stagewire.sockets.descriptor_needs import FEW_CLIENTS, broker_need, stage_need, starter_need
from stagewire.wire.errors import ErrorCode, StagewireError
from stagewire.wire.sampling import SamplingParams

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
STAGEWIRE = [sys.executable, "-m", "stagewire"]
BROKER = ["broker", "--frontend-endpoint", "127.0.0.1:*", "--control-endpoint", "127.0.0.1:*"]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_native_model(path)
    return str(path)


def limited(limit: int, *arguments: str, soft: int | None = None) -> subprocess.Popen[str]:
    """The command with so many descriptors, which it cannot raise."""
    shell = f'ulimit -S -n {soft or limit} && ulimit -H -n {limit} && exec "$@"'
    return subprocess.Popen(
        ["bash", "-c", shell, "bash", *STAGEWIRE, *arguments], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@contextmanager
def running(process: subprocess.Popen[str], until: str) -> Iterator[str]:
    """What it has said up to the line with `until`."""
    assert process.stdout is not None
    said = ""
    try:
        while until not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        yield said
        process.terminate()
        rest = process.communicate(timeout=20)[0]
        assert process.returncode == 0, rest
        assert "Traceback" not in said + rest
    finally:
        process.kill()
        process.wait(5)
        process.stdout.close()


def answers(client: Client) -> int:
    generation = client.session().generate(
        prompt_token_ids=[3, 4, 5], sampling=SamplingParams(temperature=0), max_tokens=3, ignore_eos=True
    )
    return len(generation.wait(timeout_s=30).token_ids)


@pytest.mark.parametrize("limit", [24, 32, 48, 64])
def test_up_refuses_to_start_below_what_it_needs(limit: int, tiny_model: str) -> None:
    begun = time.monotonic()
    process = limited(limit, "up", "--frontend-port", "0", "--model", tiny_model, "--stages", "2")
    said = process.communicate(timeout=30)[0]
    assert process.returncode == 2, said
    needed = stage_need().of(FEW_CLIENTS)
    assert f"a stage needs {needed} file descriptors for 8 clients, and may open {limit}: raise it" in said
    assert re.search(r"`ulimit -n \d+`", said) and "serving" not in said
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("limit", [16, 20, 24])
@pytest.mark.parametrize("command", [BROKER, ["stage", "--control-endpoint", "9"], ["status", "--endpoint", "9"]])
def test_each_process_refuses_by_itself(command: list[str], limit: int) -> None:
    """No abort of a library, no traceback, and no word of serving."""
    said = (process := limited(limit, *command)).communicate(timeout=30)[0]
    assert process.returncode == 2, said
    assert re.search(rf"needs \d+ more open files, and \d+ of {limit} are left", said), said
    assert "Traceback" not in said and "event=ready" not in said


@pytest.mark.slow
def test_with_what_it_says_it_needs_it_serves_so_many_clients(tiny_model: str) -> None:
    """And a soft limit that is lower is raised by every process."""
    limit = max(need.of(FEW_CLIENTS) for need in (broker_need(2, 1), stage_need(), starter_need(3)))
    process = limited(
        limit, "up", "--frontend-port", "0", "--model", tiny_model, "--stages", "2", "--kv-tokens", "1024", soft=24
    )
    with running(process, until="Ctrl-C stops it") as said, ExitStack() as clients:
        match = re.search(r"tcp://127\.0\.0\.1:\d+", said)
        assert match
        for _ in range(FEW_CLIENTS):
            assert answers(clients.enter_context(Client(match[0]))) == 3


def test_a_broker_with_few_refuses_the_client_that_is_too_many() -> None:
    """Those that it has are served on, and when one leaves another may come."""
    with running(limited(64, *BROKER), until="event=ready") as said, ExitStack() as clients:
        assert "event=few_descriptors limit=64" in said
        match = re.search(r"max_clients=(\d+).*frontend=(\S+)", said, re.DOTALL)
        assert match
        num_clients, endpoint = int(match[1]), match[2]
        assert num_clients >= FEW_CLIENTS
        welcome = [clients.enter_context(Client(endpoint)) for _ in range(num_clients)]
        for client in welcome:
            client.connect()
        with Client(endpoint) as too_many, pytest.raises(StagewireError) as refused:
            too_many.connect()
        assert refused.value.code is ErrorCode.CLIENT_LIMIT
        assert welcome[0].status().num_clients == num_clients - 1
        welcome.pop().close()
        with Client(endpoint) as next_one:
            next_one.connect()


@pytest.mark.slow
def test_a_broker_whose_descriptors_strangers_hold_lives_on(tiny_model: str) -> None:
    """The pipeline that it cannot feed is given up, and stands once they have left."""
    with running(limited(64, *BROKER), until="event=ready") as said:
        match = re.search(r"frontend=tcp://(\S+) control=(\S+)", said)
        assert match
        host, _, port = match[1].rpartition(":")
        with ExitStack() as strangers:
            for _ in range(80):
                strangers.enter_context(socket.create_connection((host, int(port)), timeout=5))
            stage = subprocess.Popen(
                [*STAGEWIRE, "stage", "--model", tiny_model, "--control-endpoint", match[2], "--kv-tokens", "256"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            time.sleep(4)
        try:
            assert stage.poll() is None
            with Client(f"{host}:{port}") as client:
                deadline = time.monotonic() + 30
                while not any(one.state == "serving" for one in client.status().pipelines):
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
                assert answers(client) == 3
        finally:
            stage.terminate()
            stage.wait(10)


def test_the_models_file_is_not_looked_for_in_vain(tmp_path: Path) -> None:
    """A process that is refused has read nothing: the file need not exist."""
    process = limited(24, "stage", "--model", str(tmp_path / "none.gguf"), "--control-endpoint", "9")
    assert "more open files" in process.communicate(timeout=30)[0]
