"""`stagewire doctor`: what is here as it is, what cannot work with what to do, and the exit code."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.running_broker import FAST, RunningBroker

from stagewire.cli import checkup as module
from stagewire.cli.checkup import Broker, Checkup, Descriptors, Extra, Kernels, Memory, Models, Port
from stagewire.cli.doctor import describe, problems
from stagewire.cli.main import main
from stagewire.stage.native.kernel import runnable_variants

pytestmark = pytest.mark.timeout(60)
Capture = pytest.CaptureFixture[str]
WELL = Checkup(
    version="1.2", python="3.11.1", system="Linux x86_64",
    extras=(
        Extra("text", ("tokenizers", "jinja2"), (), "pip install 'stagewire[text]'"),
        Extra("native", ("gguf", "safetensors"), (), "pip install 'stagewire[native]'"),
        Extra("stage", ("torch", "gguf", "safetensors"), ("torch",), "pip install 'stagewire[stage]'"),
        Extra("cli", ("rich",), ("rich",), "pip install 'stagewire[cli]'"),
    ),
    kernels=Kernels(("avx2", "portable"), "avx2"), compiler="g++ 12", torch=None,
    models=Models("/cache", ("a.gguf",), 98_000_000, True),
    ports=(Port(7070, "clients", None), Port(7071, "stages", "another program"), Port(7072, "metrics", None)),
    broker=Broker("tcp://127.0.0.1:7070", "nothing listens there", None),
    descriptors=Descriptors(256, 1024, 247), memory=Memory(16_000_000_000, 8_000_000_000, 1),
)  # fmt: skip


def test_all_facts_are_told() -> None:
    stage, cli = (f"{name}: pip install 'stagewire[{name}]'" for name in ("stage", "cli"))
    assert describe(WELL) == [
        "stagewire 1.2, Python 3.11.1, Linux x86_64",
        f"  extras    text, native; not here are {stage}, {cli}",
        "  kernels   avx2, of avx2, portable",
        "  compiler  g++ 12",
        "  PyTorch   not installed",
        "  models    1 model, 98 MB in /cache",
        "  ports     7071 (stages) is taken by another program; 7070, 7072 free",
        "  broker    tcp://127.0.0.1:7070: nothing listens there",
        "  files     1024 may be open; a stage serves 247 clients with them",
        "  memory    8.0 of 16.0 GB available, 1 processor",
    ]
    assert problems(WELL) == []


def without(name: str, *packages: str) -> Checkup:
    extras = tuple(replace(one, missing=packages) if one.name == name else one for one in WELL.extras)
    return replace(WELL, extras=extras)


@pytest.mark.parametrize(
    ("checkup", "words"),
    [
        (without("native", "safetensors"), "native: safetensors is missing: pip install 'stagewire[native]'"),
        (without("text", "jinja2"), "text: jinja2 is missing: pip install 'stagewire[text]'"),
        (replace(WELL, kernels=Kernels((), None)), "nothing can compute layers: install again"),
        (replace(WELL, kernels=Kernels(("avx2",), None, "STAGEWIRE_KERNEL='x'")), "kernels: STAGEWIRE_KERNEL='x'"),
        (replace(WELL, models=replace(WELL.models, is_writable=False)), "models: /cache cannot be written"),
        (replace(WELL, broker=Broker("", "", "STAGEWIRE_ENDPOINT=x: no")), "broker: STAGEWIRE_ENDPOINT=x: no"),
        (replace(WELL, descriptors=Descriptors(24, 24, 0)), "files: a stage cannot work with 24 open files"),
    ],
)
def test_what_cannot_work_is_a_problem_with_what_to_do(checkup: Checkup, words: str) -> None:
    (problem,) = problems(checkup)
    assert problem.startswith(words)


def test_what_is_wholly_absent_is_none() -> None:
    """Who only asks needs neither kernels nor their files."""
    client = without("native", "gguf", "safetensors")
    assert problems(replace(client, kernels=Kernels((), None))) == []
    assert problems(without("text", "tokenizers")) == [], "PyTorch brings jinja2"


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stagewire", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


def test_it_says_what_this_machine_has() -> None:
    done = doctor("--json", STAGEWIRE_KERNEL="")
    told = json.loads(done.stdout)
    assert (done.returncode, told["problems"]) == (0, []), done.stderr
    assert tuple(told["kernels"]["runnable"]) == tuple(runnable_variants())
    assert told["kernels"]["chosen"] == runnable_variants()[0]
    assert {one["name"]: one["missing"] for one in told["extras"]} == {"text": [], "native": [], "stage": [], "cli": []}
    assert told["torch"] and told["memory"]["total_bytes"] > 1e8 and told["descriptors"]["num_clients"] > 0
    assert [port["port"] for port in told["ports"]] == [7070, 7071, 7072]


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"STAGEWIRE_KERNEL": "neon"}, "problem: kernels: STAGEWIRE_KERNEL='neon': to be had here are"),
        ({"STAGEWIRE_ENDPOINT": "localhost"}, "problem: broker: STAGEWIRE_ENDPOINT=localhost: the port is missing"),
        ({"STAGEWIRE_CACHE": "/dev/null/models"}, "problem: models: /dev/null/models cannot be written"),
    ],
)
def test_a_problem_is_exit_code_1(environment: dict[str, str], words: str) -> None:
    done = doctor(**environment)
    assert done.returncode == 1 and words in done.stdout, done.stdout + done.stderr


def test_it_sees_a_broker_and_who_holds_the_ports(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    broker = RunningBroker(FAST)
    port = int(broker.endpoints.frontend.rpartition(":")[2])
    try:
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = other.getsockname()[1]
            monkeypatch.setattr(module, "_PORTS", ((port, "clients"), (taken, "stages")))
            monkeypatch.setenv("STAGEWIRE_ENDPOINT", str(port))
            assert main(["doctor"]) == 0
    finally:
        broker.stop()
    told = capsys.readouterr().out
    assert f"{port} (clients) is taken by a Stagewire broker; {taken} (stages) is taken by another program" in told
    assert f"tcp://127.0.0.1:{port}: a broker is there" in told


def test_the_cache_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """It need not be there yet."""
    monkeypatch.setenv("STAGEWIRE_CACHE", str(tmp_path / "none/yet"))
    main(["doctor"])
    assert f"0 models, 0 MB in {tmp_path / 'none/yet'}" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
    (tmp_path / "models").mkdir()
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / "models" / name).write_bytes(bytes(1_500_000))
    monkeypatch.setenv("STAGEWIRE_CACHE", str(tmp_path))
    main(["doctor"])
    assert f"2 models, 3 MB in {tmp_path}" in capsys.readouterr().out
