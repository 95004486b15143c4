"""The chat as scripts have it: a message a line, answers alone on stdout, and an exit code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from stagewire.cluster.local import LocalCluster

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

MORE = "--max-tokens N allows more, --max-tokens off as many as fit"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(stages=2) as made:
        yield made


def chat(cluster: LocalCluster, stdin: bytes, *flags: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "stagewire", "chat", "--endpoint", cluster.endpoint, "--temperature", "0", *flags]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)


def test_each_line_is_a_message_and_answers_are_all_that_is_on_stdout(cluster: LocalCluster) -> None:
    done = chat(
        cluster, b"/set timings on\nTell me about the sea.\n\r\n/help\nTell me about rivers.", "--max-tokens", "4"
    )
    assert done.returncode == 0, done.stderr
    told = done.stderr.decode()
    assert told.count("cut off: after 4 tokens") == told.count("(4 tokens in ") == 2
    assert len(done.stdout.splitlines()) == 2
    assert not any(words in done.stdout for words in (b"> ", b"/help", b"timings", b"\x1b"))


@pytest.mark.parametrize("byte", [0x1B, 0x07, 0x08])
def test_an_answer_goes_into_a_pipe_as_it_is(cluster: LocalCluster, byte: int) -> None:
    with cluster.client() as client:
        tokenizer = client.tokenizer()
        token_id = next(number for number in range(1000) if tokenizer.token_bytes(number) == bytes([byte]))
    done = chat(cluster, b"hi\n", "--max-tokens", "3", "--logit-bias", f"{token_id}=100")
    assert done.stdout == bytes([byte]) * 3 + b"\n"


def test_a_long_answer_is_not_wrapped_in_a_pipe(cluster: LocalCluster) -> None:
    done = chat(cluster, b"Tell me about the sea.\n", "--max-tokens", "60")
    assert max(map(len, done.stdout.splitlines())) > 120


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"/nope", "there is no command /nope"),
        (b"/load /no/such/file", "No such file or directory"),
        (b"caf\xe9", "not valid text"),
        (b"word " * 9000, "context_overflow"),
        (b"/retry", "nothing has been asked yet"),
    ],
)
def test_a_line_that_is_not_answered_is_told_and_the_next_ones_are(
    cluster: LocalCluster, line: bytes, told: str
) -> None:
    done = chat(cluster, line + b"\nName a colour.\n", "--max-tokens", "4")
    assert told in done.stderr.decode()
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("flag", [("--temperature", "900"), ("--top-p", "0"), ("--seed", "-1")])
def test_a_wrong_flag_is_told_before_anything_is_asked(cluster: LocalCluster, flag: tuple[str, str]) -> None:
    done = chat(cluster, b"hi\n", *flag)
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"{flag[0][2:].replace('-', '_')}=" in done.stderr.decode()


def test_what_is_set_goes_before_greedy(cluster: LocalCluster) -> None:
    lines = b"/set\n/set temperature 0.7\nhi\n/set temperature default\nhi\n"
    done = chat(cluster, lines, "--greedy", "--max-tokens", "2")
    told = [line for line in done.stderr.decode().splitlines() if line.startswith("temperature")]
    assert (done.returncode, told) == (0, ["temperature 0.0", "temperature 0.7", "temperature 0.0"])


def test_generate_says_on_stderr_that_an_answer_was_cut(cluster: LocalCluster) -> None:
    """And ends as if it were whole; with --json, `finish_reason` says it, and nothing else does."""
    command = [sys.executable, "-m", "stagewire", "generate", "--endpoint", cluster.endpoint, "Tell me about the sea."]
    for flags, expected in (
        (
            ("--max-tokens", "7"),
            f"cut off: after 7 tokens; {MORE}\n",
        ),
        (
            ("--max-tokens", "1"),
            f"cut off: after 1 token; {MORE}\n",
        ),
        (("--max-tokens", "0"), ""),
        (("--max-tokens", "7", "--json"), ""),
    ):
        done = subprocess.run([*command, *flags], capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stderr.decode()) == (0, expected)
