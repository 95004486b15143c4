"""Bytes into the command and characters out of it, under each kind of locale: one clear line, never a traceback."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import pytest
from support.short_form import short

from stagewire import Client, LocalCluster
from stagewire.cli.characters import PathText, checked_text, path_text
from stagewire.cli.main import main
from stagewire.model.catalogue import CATALOGUE, DEFAULT_MODEL
from stagewire.model.shipped import TINY_MODEL
from stagewire.wire.errors import SettingsError
from stagewire.wire.printable import printable

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

LOCALES = {
    "UTF-8": {"LC_ALL": "C.UTF-8"},
    "C": {"LC_ALL": "C"},
    "ASCII": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "ASCII streams": {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "ascii"},
    "Latin-1 streams": {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "latin-1"},
}
ENTRY = CATALOGUE[DEFAULT_MODEL]
BAD = (b"caf\xe9", b"\xff", b"ok \xc3\x28 no")
BAD_UNDER_LOCALES = [(BAD[number % len(BAD)], locale) for number, locale in enumerate(LOCALES)]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with LocalCluster(TINY_MODEL, stages=2) as cluster:
        yield cluster.endpoint


def stagewire(
    arguments: Sequence[str | bytes], locale: str = "UTF-8", stdin: bytes = b"", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONIO"))}
    command = [sys.executable.encode(), b"-m", b"stagewire", *(os.fsencode(word) for word in arguments)]
    return subprocess.run(
        command, env=kept | LOCALES[locale] | variables, input=stdin, capture_output=True, timeout=60, check=False
    )  # fmt: skip


def assert_refused(done: subprocess.CompletedProcess[bytes], words: str) -> None:
    told = done.stderr.decode("ascii")
    error, hint = told.splitlines()
    assert done.returncode == 2, told
    assert re.match(rf"error: {words}", error)
    assert hint.startswith("  ")


# --- in ---


@pytest.mark.parametrize(("bad", "locale"), short(BAD_UNDER_LOCALES, keep=3, width=2))
def test_an_argument_that_is_not_utf_8_is_refused_by_its_name(bad: bytes, locale: str) -> None:
    assert_refused(stagewire(["generate", bad], locale), r"prompt is not UTF-8 at its character \d+: '")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["generate", "x", "--system", b"\xe9"], "system"),
        (["generate", "x", "--stop", "a", "--stop", b"\xe9"], "stop"),
        (["generate", "x", "--endpoint", b"tcp://\xe9:1"], "endpoint"),
        (["chat", "--system", b"\xe9"], "system"),
        (["status", "--endpoint", b"\xe9"], "endpoint"),
        (["top", "--endpoint", b"\xe9"], "endpoint"),
        (["cache", "stats", "--endpoint", b"\xe9"], "endpoint"),
        (["snapshot", "save", "n", b"\xe9"], "value"),
        (["snapshot", "free", b"\xe9"], "name"),
        (["snapshot", "list", "--client-id", b"\xe9"], "client_id"),
        (["models", "fetch", b"\xe9"], "name"),
        (["demo", "--prompt", b"\xe9"], "prompt"),
        (["stage", "--stage-id", b"\xe9"], "stage_id"),
    ],
)
def test_every_command_refuses_such_a_text_before_it_does_anything(arguments: list[str | bytes], name: str) -> None:
    assert_refused(stagewire(arguments), rf"{name} is not UTF-8 at its character \d+: '.*\\xe9")


@pytest.mark.parametrize(
    "arguments",
    [["models", b"\xe9"], [b"sing\xe9"], ["generate", "x", "--max-tokens", b"\xe9"], [b"--\xe9"]],
)
def test_what_the_parser_quotes_is_escaped(arguments: list[str | bytes]) -> None:
    done = stagewire(arguments)
    assert done.returncode == 2
    told = done.stderr.decode("ascii")
    assert told.startswith("error: ")
    assert len(told.splitlines()) == 2


@pytest.mark.parametrize(("bad", "locale"), short(BAD_UNDER_LOCALES, keep=3, width=2))
def test_standard_input_that_is_not_utf_8_is_refused(bad: bytes, locale: str, endpoint: str) -> None:
    asked = ["--endpoint", endpoint]
    words = r"is not UTF-8 at its character \d+: '"
    assert_refused(stagewire(["generate", "-", *asked], locale, stdin=bad), f"standard input {words}")
    chat = stagewire(["chat", "--max-tokens", "2", *asked], locale, stdin=b"Hello.\n" + bad + b"\nHello.\n")
    assert chat.returncode == 1, "one line of several was not answered"
    assert chat.stderr.count(b"that line is not valid text (UTF-8?); nothing was sent") == 1
    assert b"Traceback" not in chat.stderr and len(chat.stdout.splitlines()) >= 2


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_file_of_another_system_is_named_for_what_it_is(encoding: str) -> None:
    text = "\N{ZERO WIDTH NO-BREAK SPACE}café" if encoding == "utf-16-be" else "café"
    assert_refused(stagewire(["generate", "-"], stdin=text.encode(encoding)), "standard input looks like UTF-16")


@pytest.mark.parametrize("locale", short(LOCALES, keep=2))
def test_text_is_the_same_text_whatever_the_locale(locale: str, endpoint: str) -> None:
    """As an argument and from a pipe, with a mark of its byte order or without: as many tokens as bytes."""
    flags = ["--raw", "--max-tokens", "1", "--json", "--endpoint", endpoint]
    given = ["Grüße, 世界 🎈", *flags]
    piped = ["-", *flags]
    mark = "\N{ZERO WIDTH NO-BREAK SPACE}".encode()
    for arguments, stdin in ((given, b""), (piped, given[0].encode()), (piped, mark + given[0].encode())):
        done = stagewire(["generate", *arguments], locale, stdin)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["usage"]["prompt_tokens"] == len(given[0].encode())


@pytest.mark.parametrize("locale", ["UTF-8", "C", "ASCII"])
def test_a_terminal_that_sends_something_else_is_told(locale: str, endpoint: str) -> None:
    """But for the UTF-8 locale: there the line editor takes no such byte, and shows that it does not."""
    primary, secondary = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONIO"))}
    command = [sys.executable, "-m", "stagewire", "chat", "--endpoint", endpoint, "--max-tokens", "2"]
    environment = kept | LOCALES[locale]
    with subprocess.Popen(command, stdin=secondary, stdout=secondary, stderr=secondary, env=environment) as chat:
        try:
            os.close(secondary)
            read_until(primary, b"> ")
            os.write(primary, "Grüße\n".encode())
            assert b"error" not in read_until(primary, b"> ")
            os.write(primary, b"caf\xe9\n")
            shown = read_until(primary, b"> ")
            assert (b"that line is not valid text" in shown) == (locale != "UTF-8"), shown
            assert b"Traceback" not in shown
            os.write(primary, b"/quit\n")
            assert chat.wait(20) == 0
        finally:
            chat.kill()
    os.close(primary)


def read_until(terminal: int, words: bytes, timeout_s: float = 30) -> bytes:
    shown, deadline = b"", time.monotonic() + timeout_s
    while words not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 4096)
    return shown


# --- out ---


@pytest.mark.parametrize("locale", short(LOCALES, keep=2))
@pytest.mark.parametrize("arguments", [["generate", "x", "--raw"], ["generate", "x", "--timings"], ["chat"]])
def test_an_answer_that_the_terminal_cannot_show_is_replaced(
    arguments: list[str], locale: str, endpoint: str, bytes_ids: str
) -> None:
    """The answer is forced to be the two bytes of ä, and half of them."""
    done = stagewire(
        [*arguments, "--max-tokens", "1", "--logit-bias", bytes_ids, "--endpoint", endpoint], locale, stdin=b"x\n"
    )
    assert done.returncode == 0, done.stderr
    shown = {"UTF-8": "\N{REPLACEMENT CHARACTER}".encode(), "C": "\N{REPLACEMENT CHARACTER}".encode()}
    assert shown.get(locale, b"?") in done.stdout


@pytest.fixture(scope="module")
def bytes_ids(endpoint: str) -> str:
    """Makes the first byte of a character of two the likeliest token."""
    with Client(endpoint) as client:
        (token_id, _second) = client.tokenizer().encode("ä")
    return f"{token_id}=100"


@pytest.mark.slow
@pytest.mark.parametrize("locale", short(LOCALES, keep=2))
@pytest.mark.parametrize(
    "arguments",
    [
        ["status"], ["cache", "stats"], ["cache", "clear"], ["snapshot", "save", "Schlüssel", "ein Text"],
        ["snapshot", "list"], ["snapshot", "free", "Schlüssel"], ["status", "--json"],
    ],
)  # fmt: skip
def test_every_command_that_prints_ends_well(arguments: list[str], locale: str, endpoint: str) -> None:
    done = stagewire([*arguments, "--endpoint", endpoint], locale)
    assert b"Traceback" not in done.stderr
    # What the first locale has freed the others do not find.
    assert done.returncode == int(b"there is no snapshot" in done.stderr), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("locale", "bar"), [("UTF-8", "█▒░"), ("ASCII", "#=."), ("ASCII streams", "#=.")])
def test_the_bars_of_top_can_be_told_apart_where_there_are_no_blocks(locale: str, bar: str, endpoint: str) -> None:
    done = stagewire(["top", "--once", "--endpoint", endpoint], locale)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert "{} computes  {} schedules, samples, reads, writes  {} waits".format(*bar) in text
    assert re.search(rf"stage-0  [{re.escape(bar)}]{{16}}  ", text)


@pytest.mark.parametrize("locale", short(LOCALES, keep=2))
def test_a_folder_that_is_no_text_is_shown_escaped(locale: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """And so are a terminal's own sequences in a file's name."""
    folder = tmp_path_factory.mktemp("cache") / "caf\udce9"
    folder.mkdir()
    wrong = stagewire([b"up", b"--frontend-port=0", b"--model=" + os.fsencode(folder) + b"/\x1b[2Jm.gguf"], locale)
    assert wrong.returncode == 1
    assert wrong.stderr.count(b"\n") == 2, "what is wrong, and what to do"
    assert b"caf\\xe9/\\x1b[2Jm.gguf: there is no such file" in wrong.stderr
    (folder / "models").mkdir()
    fetched = folder / "models" / f"{ENTRY.name}-{ENTRY.sha256[:8]}.gguf"
    with fetched.open("wb") as file:
        file.truncate(ENTRY.size_bytes)
    listed = stagewire(["models"], locale, STAGEWIRE_CACHE=str(folder))
    assert b"/caf\\xe9/models/" in listed.stdout
    told = json.loads(stagewire(["models", "--json"], locale, STAGEWIRE_CACHE=str(folder)).stdout)
    assert os.fsencode(told["models"][0]["path"]) == os.fsencode(fetched)


# --- the parts ---


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ünïcode", "plain text, ünïcode"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("b\udce9", "b\\xe9"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud83d", "\\ud83d"),
        ("\x9b2J\x7f", "\\x9b2J\\x7f"),
    ],
)
def test_what_is_shown_cannot_be_obeyed(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text, keep=text) == text
    assert SettingsError(text).detail == shown


def test_long_inputs_are_quoted_around_the_fault_only() -> None:
    with pytest.raises(SettingsError, match=r"at its character 5001: 'x{20}\\xe9y{20}'; convert"):
        checked_text("x" * 5000 + "\udce9" + "y" * 5000, "the line")


def test_a_path_is_not_a_text() -> None:
    assert isinstance(path_text("\udce9"), PathText)
    assert path_text("~absent-user/x") == "~absent-user/x"


def test_a_value_that_begins_with_a_dash_is_told_how_to_write_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--model", "-m.gguf"]) == 2
    assert "is written behind =, as in --model=-m.gguf" in capsys.readouterr().err
