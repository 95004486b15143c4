"""What `up` and its like are given to serve: refused by the command, in one line, before any process is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import psutil
import pytest
from support.model_files import METADATA, small_tensors, write_metadata, write_model
from support.native_files import write_native_model
from support.short_form import short

from stagewire.cli.main import build_parser, main
from stagewire.cli.plan import planned_cluster
from stagewire.cluster.command import stage_command
from stagewire.cluster.plan import LayerRange
from stagewire.cluster.spec import StageSpec
from stagewire.model.shipped import TINY_MODEL, tiny_model_path
from stagewire.wire.cache_folder import cache_folder
from stagewire.wire.errors import StagewireError


def write_split(folder: Path) -> Path:
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=10)
    write_metadata(writer, METADATA)
    for name, tensor in small_tensors().items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "m-00002-of-00002.gguf"


def joined(folder: Path) -> Path:
    write_split(folder)
    path = folder / "joined.gguf"
    path.write_bytes(b"".join(part.read_bytes() for part in sorted(folder.glob("m-*"))))
    return path


def cut(folder: Path) -> Path:
    path = write_model(folder / "m.gguf")
    path.write_bytes(path.read_bytes()[:-5000])
    return path


def page(folder: Path) -> Path:
    (folder / "m.gguf").write_text("<!DOCTYPE html><title>Sign in</title>")
    return folder / "m.gguf"


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "m.gguf")
    return folder / "m.gguf"


def one_layer_short(folder: Path) -> Path:
    tensors = small_tensors()
    del tensors["blk.1.ffn_up.weight"]
    return write_model(folder / "m.gguf", tensors=tensors)


def odd_last_norm(folder: Path) -> Path:
    return write_model(folder / "m.gguf", tensors=small_tensors() | {"output_norm.weight": np.ones(64, np.float32)})


def control_characters(folder: Path) -> Path:
    return folder / "\x1b]0;title\x07\x1b[2J.gguf"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (write_split, "part 2 of 2 of a split model"),
        (joined, "two GGUF files joined"),
        (cut, "truncated or damaged; fetch it again"),
        (page, "an HTML page"),
        (fifo, "is a FIFO"),
        (one_layer_short, "the tensor 'blk.1.ffn_up.weight' is missing"),
        (odd_last_norm, "'output_norm.weight' has shape (64,), expected (32,)"),
        (control_characters, r"\x1b]0;title\x07\x1b[2J.gguf: there is no such file"),
        (lambda _: Path("/dev/null"), "/dev/null is a device"),
    ],
)
@pytest.mark.parametrize("command", short(["up", "demo"], keep=1))
def test_what_cannot_be_served_is_refused_before_anything_starts(
    command: str, make: Callable[[Path], Path], words: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    port = ["--frontend-port", "0"] if command == "up" else []  # so that nobody else's cluster is in the way
    run = [sys.executable, "-m", "stagewire", command, *port, f"--model={path}", "--log-dir", str(tmp_path / "logs")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    line, advice = done.stderr.splitlines()
    assert advice.startswith("  ")
    assert line.startswith("error: ")
    assert words in line
    assert line.isprintable()
    assert done.stdout == ""
    assert not (tmp_path / "logs").exists(), "no process had a log"


@pytest.mark.parametrize("command", ["up", "demo", "stage"])
@pytest.mark.parametrize("model", ["org/name", "https://hub.example/m.gguf", "smolm2-135m", "./absent.gguf"])
def test_each_command_that_takes_a_model_says_what_to_give_instead(
    command: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    port = ["--frontend-port", "0"] if command == "up" else []
    assert main([command, *port, f"--model={model}"]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"error: {model}") or "Did you mean smollm2-135m?" in told


def plan(*flags: str) -> list[str]:
    """What `up` says while it plans, the error last."""
    told: list[str] = []
    try:
        planned_cluster(build_parser("up").parse_args(["up", *flags]), told.append)
    except StagewireError as error:
        told.append(error.detail)
    return told


@pytest.mark.parametrize(
    ("make", "flags", "words"),
    [
        (
            write_model,
            ["--precision", "stored"],
            "precision='stored' needs the native kernels, but head",
        ),
        (
            lambda path: write_native_model(path, "F32"),
            [],
            (
                "(this file holds floats, which PyTorch multiplies faster), which is missing: "
                "pip install 'stagewire[stage]'; "
                "or --precision stored, which goes without"
            ),
        ),
        (write_native_model, ["--precision", "bf16"], "this takes PyTorch, which is missing"),
        (
            lambda path: write_native_model(path, {"": "Q4_1", "blk.1.ffn_up.weight": "TQ2_0"}),
            ["--precision", "stored", "--split", "0:1,1:2"],
            "precision='stored' needs the native kernels, but the tensor blk.1.ffn_up.weight has type TQ2_0",
        ),
        (write_native_model, ["--precision", "int4", "--device", "cuda:0"], "on the CPU only"),
    ],
)
def test_what_nothing_here_can_compute_is_said_before_anything_starts(
    make: Callable[[Path], Path], flags: Sequence[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here as if PyTorch were not installed."""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert words in plan(f"--model={make(tmp_path / 'm.gguf')}", *flags)[-1]


# --- names and homes ---


@pytest.mark.processes
@pytest.mark.parametrize("name", short(["-m.gguf", "b\udce9d.gguf", "tab\there.GGUF", "snapshots"], keep=1))
def test_a_model_with_an_odd_name_is_served_under_a_printable_one(name: str, tmp_path: Path) -> None:
    """By each stage as well: what the command takes, they take."""
    (tmp_path / name).symlink_to(tiny_model_path())
    run = [sys.executable, "-m", "stagewire", "up", f"--model={name}", "--frontend-port", "0", "--stages", "2"]
    with subprocess.Popen(run, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        children = psutil.Process(process.pid).children() if process.poll() is None else []
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130, process.stderr.read()
        process.stdout.read()
        process.stderr.read()
    shown = {"b\udce9d.gguf": "b_d", "tab\there.GGUF": "tab_here"}.get(name, name.removesuffix(".gguf"))
    assert first.startswith(f"serving {shown} at tcp://")
    assert not psutil.wait_procs(children, timeout=10)[1]


def test_every_path_flag_expands_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No shell expands `--flag=~/x`. That no path flag is left out is seen by their names."""
    monkeypatch.setenv("HOME", str(tmp_path))
    num_flags = 0
    for command in ("up", "demo", "stage", "broker"):
        parser = build_parser(command)
        commands = next(action for action in parser._actions if action.dest == "==SUPPRESS==" or action.choices)
        assert isinstance(commands.choices, dict)
        for action in commands.choices[command]._actions:
            is_path = action.dest == "model" or action.metavar in ("DIR", "DIRECTORY", "FILE")
            if not is_path:
                continue
            flag = action.option_strings[0]
            options = parser.parse_args([command, f"{flag}=~/x"])
            assert str(getattr(options, action.dest)) == str(tmp_path / "x"), f"{command} {flag}"
            options = parser.parse_args([command, f"{flag}=~no-such-user-here/x"])
            assert str(getattr(options, action.dest)) == "~no-such-user-here/x", f"{command} {flag}"
            num_flags += 1
    assert num_flags > 10


@pytest.mark.parametrize(
    ("value", "folder"), [("~/c", "/users/a/c"), ("~", "/users/a"), ("~no-such-user-here", "./~no-such-user-here")]
)
def test_the_cache_may_be_in_the_home(value: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/users/a")
    assert cache_folder({"STAGEWIRE_CACHE": value}) == Path(folder).absolute()


def test_a_stage_is_given_its_values_so_that_none_is_taken_for_a_flag() -> None:
    command = stage_command("-m.gguf", "-s", "tcp://127.0.0.1:1", StageSpec(layers=LayerRange(0, 1)))
    assert {"--model=-m.gguf", "--stage-id=-s"} <= set(command)
    options = build_parser("stage").parse_args(command[3:])
    assert (options.model, options.stage_id) == ("-m.gguf", "-s")
    assert not plan(f"--model={TINY_MODEL}")
