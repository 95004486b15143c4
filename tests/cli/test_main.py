"""The command line itself: help, usage errors, exit codes, and what is not imported."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stagewire.cli import models
from stagewire.cli.generate import timing_table
from stagewire.cli.main import COMMANDS, build_parser, main, parsed
from stagewire.cli.plan import planned_cluster
from stagewire.client.result import Timings
from stagewire.cluster.spec import StageLimits
from stagewire.wire.errors import ErrorCode, StagewireError

Capture = pytest.CaptureFixture[str]


def imported_by(code: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter holds after `code`."""
    code += "\nprint('MODULES', *{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", "import sys\n" + code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.rpartition("MODULES")[2].split())


HELP = """
from stagewire.cli.main import main
try:
    main({arguments})
except SystemExit as end:
    assert end.code == 0
"""


def test_help_imports_nothing_slow() -> None:
    """So that `stagewire --help` answers at once."""
    slow = {"torch", "numpy", "zmq", "msgpack", "rich", "asyncio", "importlib.metadata"}
    assert not imported_by(HELP.format(arguments=["--help"])) & slow


def test_a_broker_never_imports_torch() -> None:
    modules = imported_by("import stagewire.broker.loop\n" + HELP.format(arguments=["broker", "--help"]))
    assert "zmq" in modules
    assert not modules & {"torch", "tokenizers", "jinja2", "gguf", "rich"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert f"stagewire {command}" in text.partition("examples:")[2]


def test_the_memory_flags_of_up_reach_every_stage() -> None:
    """A directory is absolute: the stages may run elsewhere."""
    flags = ["--stages", "2", "--kv-tokens", "512", "--cache-tokens", "256", "--disk-directory", "kv"]
    options = build_parser("up").parse_args(["up", *flags])
    (pipeline,) = planned_cluster(options, lambda _line: None).spec.pipelines
    disk = str(Path("kv").absolute())
    assert [stage.limits for stage in pipeline] == [
        StageLimits(kv_tokens=512, cache_tokens=256, disk_directory=disk)
    ] * 2


@pytest.mark.parametrize(
    "flags",
    [
        ["--kv-tokens", "5"], ["--threads", "0"], ["--threads", "1,0"], ["--cache-tokens", "-1"],
        ["--max-sequences", "0"], ["--frontend-port", "99999"], ["--snapshot-expiry-s", "0"],
        ["--log-dir", "/dev/null/logs"],
    ],
)  # fmt: skip
def test_up_checks_its_flags_before_it_starts_anything(flags: list[str], capsys: Capture) -> None:
    """The setting is named, and no process had to be started to find out."""
    begun = time.monotonic()
    port = [] if "--frontend-port" in flags else ["--frontend-port", "0"]  # nobody else's cluster is in the way
    assert main(["up", *port, *flags]) == 2
    assert time.monotonic() - begun < 20
    told = capsys.readouterr().err
    assert flags[0].removeprefix("--").replace("-", "_") in told
    assert "ready" not in told


def test_options_may_stand_between_the_words_of_a_command() -> None:
    arguments = ["snapshot", "save", "--client-id", "c", "rules", "--json", "a prompt", "--system"]
    options = parsed(arguments, "snapshot")
    assert (options.action, options.name, options.value) == ("save", "rules", "a prompt")
    assert (options.client_id, options.json, options.system) == ("c", True, True)


def test_an_answer_that_was_ended_at_the_client_has_its_two_times() -> None:
    timings = Timings(0.1, 0.2, 0.25, 0.5, ())
    assert timing_table(timings) == [
        "first token        250.00 ms  50%",
        "total              500.00 ms 100%",
        "no parts: the answer was ended here, not by the pipeline",
    ]


def test_help_names_every_command_and_the_exit_codes(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)
    assert "exit codes: 0 done, 1 failed, 2 wrong usage, 130" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "COMMAND"),
        (["sing"], "invalid choice: 'sing'"),
        (["models", "--fast"], "unrecognized arguments: --fast"),
        (["stage", "--layers", "12"], "layers='12': expected START:END"),
        (["stage", "--layers", "12:4"], "layers 12:4: a stage needs at least one layer"),
        (["stage", "--threads", "0"], "threads=0: must be between 1"),
        (["stage", "--threads", "two"], "invalid int value: 'two'"),
        (["stage", "--hop-condition", "delay=fast"], "wire condition 'delay=fast'"),
        (["broker", "--max-queued", "0"], "max_queued=0: must be between 1"),
        (["broker", "--frontend-endpoint", "tcp://0.0.0.0:7070"], "without keys"),
        (["broker", "--parent-pipe", "987"], "parent_pipe=987"),
        (["chat", "--seed", "-1"], "seed=-1 is not an integer in"),
        (["up", "--split", "0:12,14:30"], "layers 12:14 belong to no stage"),
        (["up", "--split", "0:12", "--stages", "2"], "not allowed with argument"),
        (["up", "--stages", "0"], "stages=0"),
        (["up", "--threads", "two"], "threads=two: expected a number"),
        (["snapshot", "free", "x", "--all"], "--all goes with list, not with free"),
        (["snapshot", "list", "--all-of", "c"], "--all-of goes with free, not with list"),
        (["snapshot", "rename", "x", "y", "--of", "c"], "--of goes with list, describe, free"),
        (["snapshot", "free", "x", "--all-of", "c"], "expected: stagewire snapshot free"),
        (["snapshot", "free", "--of", "c"], "expected: stagewire snapshot free NAME"),
        (["snapshot", "free", "--all-of", ""], "--all-of needs the name of a client"),
        (["snapshot", "list", "--all", "--of", "c"], "not allowed with argument"),
        (["up", "--wire-condition", "hop"], "expected LINK=CONDITION"),
        (["up", "--wire-condition", "bridge=delay=1ms"], "the links are hop, feed, return"),
        (["generate", "hi", "--max-tokens", "many"], "max_tokens=many: expected a number from 0 to"),
        (["chat", "--max-tokens", "1.5"], "max_tokens=1.5: expected a number"),
        (["generate", "hi", "--max-tokens", "-1"], "max_tokens=-1: expected a number"),
        (["demo", "--max-tokens", str(1 << 70)], "expected a number from 0 to"),
        (["generate", "hi", "--greedy", "--temperature", "0.5"], "--greedy is temperature 0"),
        (["generate", "hi", "--raw", "--system", "Be short."], "--raw and --system"),
        (["generate", "hi", "--top-p", "0"], "top_p=0.0 is not a number in (0, 1]"),
        (["chat", "--top-p", "2"], "top_p=2.0 is not a number in (0, 1]"),
    ],
)
def test_wrong_usage_is_one_line_a_hint_and_exit_code_2(arguments: list[str], words: str, capsys: Capture) -> None:
    has_port = arguments[:1] != ["up"] or "--frontend-port" in arguments
    assert main(arguments if has_port else [*arguments, "--frontend-port", "0"]) == 2
    captured = capsys.readouterr()
    error, hint = captured.err.splitlines()
    assert error.startswith("error: ")
    assert words in error
    assert "--help` shows the options" in hint or hint.strip() == "see `stagewire --help`"
    assert captured.out == ""


def test_a_failure_is_exit_code_1_and_says_what_to_do(capsys: Capture) -> None:
    assert main(["models", "fetch", "gpt-17"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: there is no model 'gpt-17'")
    assert "`stagewire models` lists" in hint


def test_with_json_an_error_is_an_object_on_stdout(capsys: Capture) -> None:
    assert main(["models", "fetch", "gpt-17", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "unknown_model"
    assert error["message"].startswith("there is no model")
    assert error["retryable"] is False
    assert main(["models", "--json", "--fast"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "invalid_setting"


def raising(error: BaseException) -> Callable[[object], int]:
    def run(_options: object) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, ""),
        (StagewireError("nobody answers", ErrorCode.UNREACHABLE), 1, "stagewire up"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 1, "pip install 'stagewire[stage]'"),
        (ModuleNotFoundError("...", name="tokenizers.models"), 1, "pip install 'stagewire[text]'"),
        (ModuleNotFoundError("...", name="safetensors.numpy"), 1, "pip install 'stagewire[native]'"),
    ],
)
def test_how_a_command_ends_is_its_exit_code(
    error: BaseException, code: int, words: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "run", raising(error))
    assert main(["models"]) == code
    assert words in capsys.readouterr().err


def test_our_own_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "run", raising(ModuleNotFoundError("...", name="stagewire.mistyped")))
    with pytest.raises(ModuleNotFoundError):
        main(["models"])


def test_a_reader_that_leaves_early_makes_no_noise() -> None:
    command = [sys.executable, "-m", "stagewire", "models"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 1
