"""Word wrap of a text that comes in pieces: no word is broken that fits, and no line is too wide."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagewire.cli.chat.core.cells import cells, width
from stagewire.cli.chat.core.wrap import WordWrap


def wrapped(text: str, columns: int, size: int = 1) -> str:
    wrap = WordWrap()
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    return "".join(wrap.push(piece, columns) for piece in pieces) + wrap.finish(columns)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("the quick brown fox", ["the quick", "brown fox"]),
        ("1234567890 1", ["1234567890", "1"]),
        ("one\n\n  two three", ["one", "", "  two", "three"]),
        ("a  b   cdefgh", ["a  b", "cdefgh"]),
        ("a\tb\tc", ["a\tb", "c"]),
        ("    indented_name x", ["    indented_name x"]),
        ("see https://example.org/x/y now", ["see", "https://example.org/x/y now"]),
        ("日本語の文章です。はい", ["日本語の文", "章です。は", "い"]),
        ("日本語の文。「章」", ["日本語の", "文。「章」"]),
        ("ab 日本語 cd", ["ab 日本語", "cd"]),
        ("cafe\u0301 cafe\u0301", ["cafe\u0301 cafe\u0301"]),
        ("🙂🙂 🙂🙂🙂", ["🙂🙂 🙂🙂", "🙂"]),
        ("한국어 문장입니다", ["한국어 문", "장입니다"]),
        ("trailing  ", ["trailing"]),
        ("", [""]),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_lines_break_where_words_would_not_fit(text: str, lines: list[str], size: int) -> None:
    """At 10 columns, whatever pieces the text comes in."""
    assert wrapped(text, 10, size) == "\n".join(lines)


@pytest.mark.parametrize(
    ("character", "expected"),
    [
        ("a", 1), ("é", 1), ("\u0301", 0), ("\u200d", 0), ("\u200f", 0), ("你", 2), ("\uff21", 2), ("ｱ", 1), ("한", 2),
        ("\u1161", 0), ("🙂", 2), ("\u20dd", 0), ("ก", 1), ("\u0e34", 0), ("…", 1), ("\ufe0f", 1), ("\u00ad", 1),
    ],
)  # fmt: skip
def test_how_many_columns_a_character_takes(character: str, expected: int) -> None:
    assert cells(character) == expected


def test_a_word_is_shown_when_it_is_whole_and_a_long_one_before_that() -> None:
    wrap = WordWrap()
    assert wrap.push("hel", 10) == ""
    assert wrap.push("lo ", 10) == "hello"
    assert wrap.push("12345678901", 10) == "\n12345678901"
    assert wrap.push("2", 10) == "2"
    assert wrap.push(" x", 10) == ""
    assert wrap.finish(10) == " x"


def test_a_wide_character_does_not_wait_for_a_blank() -> None:
    wrap = WordWrap()
    assert wrap.push("日本", 10) == "日"
    assert wrap.push("語", 10) == "本"


def test_the_terminal_may_become_narrower_meanwhile() -> None:
    wrap = WordWrap()
    assert wrap.push("aaaa bbbb ", 20) == "aaaa bbbb"
    assert wrap.push("cccc dd ", 8) == "\ncccc dd"


WORDS = st.text(st.sampled_from("ab é你日🙂\u0301\u200d(。)\t\n-"), max_size=80)


@given(text=WORDS, columns=st.integers(1, 30), size=st.integers(1, 9))
def test_nothing_but_blanks_is_changed_and_pieces_do_not_matter(text: str, columns: int, size: int) -> None:
    shown = wrapped(text, columns, size)
    assert "".join(shown.split()) == "".join(text.split())
    assert shown == wrapped(text, columns, len(text) or 1)


def rows(text: str, columns: int) -> list[str]:
    """What a terminal makes of it, which breaks where a character does not fit."""
    shown = [""]
    for character in text:
        if character == "\n" or width(shown[-1]) + cells(character) > columns:
            shown.append("")
        shown[-1] += character.strip("\n")
    return shown


WORD = st.text(st.sampled_from("abe\u0301"), min_size=1, max_size=6).filter(lambda word: word[0] != "\u0301")
PIECES = st.tuples(WORD, st.sampled_from([" ", "  ", "\n", "你"]))


@given(pieces=st.lists(PIECES, max_size=20), columns=st.integers(6, 12))
def test_no_word_that_fits_into_a_line_is_broken(pieces: list[tuple[str, str]], columns: int) -> None:
    """On the terminal, which itself breaks where a character does not fit; all words fit here."""
    text = "".join(word + behind for word, behind in pieces)
    found = [word for row in rows(wrapped(text, columns), columns) for word in re.findall(r"[abe\u0301]+", row)]
    assert found == [word for word, _ in pieces]


@given(text=st.text(st.sampled_from("ab c"), max_size=80))
def test_a_wide_terminal_changes_only_blanks_at_line_ends(text: str) -> None:
    assert wrapped(text, 1000) == text.rstrip(" ")
