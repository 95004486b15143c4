"""Every error code has words for people, in the command, in the chat and in the documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stagewire.cli.chat.core.chat_core import ChatCore
from stagewire.cli.chat.core.choices import Choices
from stagewire.cli.chat.core.events import Failed, Line
from stagewire.cli.chat.core.instructions import Tell
from stagewire.cli.error_words import ERROR_WORDS
from stagewire.cli.failure import MissingExtra, report
from stagewire.wire.errors import RETRYABLE, ErrorCode, StagewireError

Capture = pytest.CaptureFixture[str]
PAGE = Path(__file__).parents[2] / "docs/errors.md"


def test_the_table_is_complete_and_no_two_codes_mean_the_same() -> None:
    assert [*ERROR_WORDS] == [*ErrorCode]
    assert all(words.meaning and words.next_step for words in ERROR_WORDS.values())
    assert len({words.meaning for words in ERROR_WORDS.values()}) == len(ErrorCode)


@pytest.mark.parametrize("code", ErrorCode)
def test_a_command_says_what_is_wrong_what_to_do_and_the_code(
    code: ErrorCode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(StagewireError("this and that", code), "generate", as_json=False) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: this and that",
        f"  {ERROR_WORDS[code].next_step} ({code.value})",
    ]


@pytest.mark.parametrize(("package", "extra"), [("torch", "stage"), ("tokenizers", "text"), ("gguf", "native")])
def test_a_package_that_is_missing_is_one_line(package: str, extra: str, capsys: Capture) -> None:
    error = MissingExtra(ModuleNotFoundError("...", name=package))
    assert report(error, "generate", as_json=False) == 1
    expected = f"error: this needs the Python package {package}: pip install 'stagewire[{extra}]'\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("code", ErrorCode)
def test_a_chat_says_what_it_means_first_and_the_code_last(code: ErrorCode) -> None:
    core = ChatCore(None, Choices(None, timings=False), is_interactive=True)
    core.handle(Line("hello"))
    (told,) = core.handle(Failed(code, "this and that"))
    again = "; /retry asks again" if code in RETRYABLE else ""
    assert told == Tell(
        (
            f"error: {ERROR_WORDS[code].meaning}",
            f"  {ERROR_WORDS[code].next_step}{again}",
            f"  ({code.value}: this and that)",
        )
    )


def test_the_page_on_errors_shows_the_table() -> None:
    expected = [
        (code.value, words.meaning, words.next_step, "yes" if code in RETRYABLE else "")
        for code, words in ERROR_WORDS.items()
    ]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| ?(yes|) ?\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == expected
