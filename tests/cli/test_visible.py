"""Foreign text is shown, not obeyed: in answers, errors and reports."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.counters import START
from support.statuses import report as status_report
from support.statuses import stage

from stagewire.cli.failure import report
from stagewire.cli.status import describe
from stagewire.cli.terminal import progress_lines
from stagewire.cli.top import _coloured
from stagewire.cli.top_view import frame
from stagewire.cli.visible import print_lines, visible, visible_line
from stagewire.wire.errors import ErrorCode, StagewireError

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b]52;c;ZXZpbA==\x1b\\", "\\x1b]52;c;ZXZpbA==\\x1b\\"),
        ("over\rwrite", "over\\x0dwrite"),
        ("back\b\b", "back\\x08\\x08"),
        ("\x7f\x00\x0b\x0c", "\\x7f\\x00\\x0b\\x0c"),
        ("\x9b2J\x85\x90", "\\x9b2J\\x85\\x90"),
        ("a\u202egnp.exe\u202c", "a\\u202egnp.exe\\u202c"),
        ("\u2066x\u2069 \u2028\u2029", "\\u2066x\\u2069 \\u2028\\u2029"),
        ("half \udcff", "half \\udcff"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_by_number(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize("text", ["two\nlines\tand a tab", "é ü 你好 ひ", "שלום\u200f!", "👩\u200d🚀 e\u0301", "\\x1b"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_of_all_characters_no_control_is_left() -> None:
    shown = visible("".join(map(chr, range(0x110000))))
    left = {character for character in shown if unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}}
    assert left == {"\n", "\t"}
    overriding = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not {character for character in shown if unicodedata.bidirectional(character) in overriding}


@given(st.lists(st.text(st.sampled_from("\x1b[3m\x9b\r\n\u202ea"), max_size=4)))
def test_it_does_not_matter_how_a_text_falls_into_pieces(pieces: list[str]) -> None:
    assert "".join(visible(piece) for piece in pieces) == visible("".join(pieces))


@pytest.mark.parametrize(("name", "shown"), [("a\nb", "a\\nb"), ("\tx\x1b[1m", "\\tx\\x1b[1m"), ("ünï", "ünï")])
def test_a_name_stays_on_its_line(name: str, shown: str) -> None:
    assert visible_line(name) == shown


EVIL = "\x1b[2J\nstage \u202e\x9b"


def assert_harmless(text: str) -> None:
    assert "\\x1b[2J\\nstage \\u202e\\x9b" in text
    assert not any(character in text for character in "\x1b\x9b\u202e")


def test_reports_show_a_stage_with_an_evil_name_in_one_line(capsys: Capture) -> None:
    lines = describe(status_report(stage(EVIL, 0, 12, None), pipelines=(), waiting_for=EVIL))
    print_lines(lines)
    shown = capsys.readouterr().out
    assert_harmless(shown)
    assert len(shown.splitlines()) == len(lines)


def test_the_live_view_shows_it_so_too() -> None:
    told = replace(stage(EVIL, 0, 12, None), counters=START)
    lines = frame(status_report(pipelines=(), waiting_for=""), status_report(told, pipelines=(), waiting_for=""))
    text = _coloured(lines).plain
    assert_harmless(text)
    assert len(text.splitlines()) == len(lines)


def test_errors_and_progress_show_it_so_too(capsys: Capture) -> None:
    report(StagewireError(f"lost {visible_line(EVIL)}\x1b[31m", ErrorCode.STAGE_LOST), "generate", as_json=False)
    shown = capsys.readouterr().err
    assert_harmless(shown)
    assert "\\x1b[31m" in shown
    with progress_lines() as progress:
        progress(EVIL)
    assert_harmless(capsys.readouterr().err)
