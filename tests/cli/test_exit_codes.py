"""What a command that a signal ends leaves with: 130 at Ctrl-C whatever it does; 0 at SIGTERM where it serves."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from support.native_files import write_native_model

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
STAGEWIRE = [sys.executable, "-m", "stagewire"]
FREE = "127.0.0.1:*"


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_native_model(path)
    return str(path)


@pytest.fixture
def deaf() -> Iterator[str]:
    """Where connections are accepted and nothing is said, so that a command waits."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield str(server.getsockname()[1])


def ended_by(
    number: signal.Signals, arguments: list[str], begun: str | float, again_s: float | None = None
) -> tuple[int, str]:
    """The exit code and all output of a command that gets the signal once it says `begun`, or after so long.

    After `again_s` it gets the same once more.
    """
    process = subprocess.Popen(
        [*STAGEWIRE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    said = ""
    try:
        if isinstance(begun, str):
            while begun not in said:
                line = process.stdout.readline()
                assert line, said
                said += line
        else:
            time.sleep(begun)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        if again_s is not None:
            time.sleep(again_s)
            process.send_signal(number)
        rest, _ = process.communicate(timeout=30)
        assert psutil.wait_procs(children, timeout=10)[1] == []
        return process.returncode, said + rest
    finally:
        process.kill()
        process.wait(5)


@pytest.mark.parametrize(
    "words", [["status"], ["top"], ["generate", "hi"], ["chat"], ["cache", "stats"], ["snapshot", "list"]]
)
def test_a_question_that_waits_is_interrupted_with_130(words: list[str], deaf: str) -> None:
    code, said = ended_by(signal.SIGINT, [*words, "--endpoint", deaf], begun=1.2)
    assert (code, said) == (130, "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_what_serves_ends_in_order(number: signal.Signals, code: int, tiny_model: str) -> None:
    """Ctrl-C is still an interruption; SIGTERM is how a service manager ends it."""
    broker = ["broker", "--frontend-endpoint", FREE, "--control-endpoint", FREE]
    assert ended_by(number, broker, begun="event=ready")[0] == code
    up = ["up", "--frontend-port", "0", "--model", tiny_model, "--stages", "1", "--kv-tokens", "256"]
    ended, said = ended_by(number, up, begun="Ctrl-C stops it")
    assert ended == code and said.endswith("stopping\n")


@pytest.mark.parametrize("again_s", [0.0, 0.005, 0.05])
def test_a_second_sigterm_changes_nothing(again_s: float, tiny_model: str) -> None:
    """`timeout` and process groups send it twice: what stops in order goes on with that."""
    broker = ["broker", "--frontend-endpoint", FREE, "--control-endpoint", FREE]
    assert ended_by(signal.SIGTERM, broker, begun="event=ready", again_s=again_s)[0] == 0
    up = ["up", "--frontend-port", "0", "--model", tiny_model, "--stages", "1", "--kv-tokens", "256"]
    ended, said = ended_by(signal.SIGTERM, up, begun="Ctrl-C stops it", again_s=again_s)
    assert (ended, said.count("stopping\n"), "Traceback" in said) == (0, 1, False)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_stage_that_has_no_broker_yet_is_ended_at_once(number: signal.Signals, code: int, tiny_model: str) -> None:
    stage = ["stage", "--model", tiny_model, "--control-endpoint", "9"]
    ended, said = ended_by(number, stage, begun="event=registering")
    assert ended == code
    assert "event=no_broker" in said and "nothing listens there; this stage waits for a broker" in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_has_not_got_its_answer_says_which_signal_it_was(
    number: signal.Signals, code: int, deaf: str, tiny_model: str
) -> None:
    assert ended_by(number, ["generate", "hi", "--endpoint", deaf], begun=1.2) == (code, "")
    demo = ["demo", "--model", tiny_model, "--stages", "1", "--kv-tokens", "256"]
    ended, said = ended_by(number, demo, begun="loading layers")
    assert ended == code and "Traceback" not in said
