"""The bars: whose they are, how long, on which axis; and that the picture is well-formed whatever names say."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.bars import bars, groups_of, panels_of, ticks
from bench.results import MILLISECONDS, TOKENS_PER_S, row

ROWS = [
    row("decode_16", "llama.cpp", TOKENS_PER_S, 800, 200, 5),
    row("decode_8", "llama.cpp", TOKENS_PER_S, 400, 200, 5),
    row("decode_8", "llama.cpp-q4_0", TOKENS_PER_S, 400, 300, 5),
    row("decode_1_at_2048", "llama.cpp", TOKENS_PER_S, 50, 4.95, 5),
    row("prefill_512", "llama.cpp", TOKENS_PER_S, 1000, 500, 5),
    row("overhead_per_token", "limit", MILLISECONDS, 1, 0.5, 5),
]
SVG = "{http://www.w3.org/2000/svg}"


def test_each_work_has_ours_first_and_then_every_peer() -> None:
    """In the order of the list of works; times are not drawn."""
    groups = groups_of(ROWS)
    assert [group.work for group in groups] == ["prefill_512", "decode_8", "decode_16", "decode_1_at_2048"]
    assert groups[1].bars == (("stagewire", 400), ("llama.cpp", 200), ("llama.cpp-q4_0", 300))


def test_works_of_like_size_share_an_axis() -> None:
    found = {title: [group.work for group in groups] for title, groups in panels_of(groups_of(ROWS))}
    assert found == {
        "Prefill": ["prefill_512"],
        "Decode, one sequence": ["decode_1_at_2048"],
        "Decode, several sequences": ["decode_8", "decode_16"],
    }


@given(st.floats(0.001, 1e7))
def test_an_axis_has_few_round_marks_and_reaches_the_longest_bar(largest: float) -> None:
    marks = ticks(largest)
    assert 3 <= len(marks) <= 7
    assert marks[0] == 0
    assert marks[-1] >= largest * (1 - 1e-9)


def test_bars_are_as_long_as_their_rates_on_one_axis() -> None:
    drawn = ET.fromstring(bars("some-cpu", ROWS))
    rects = {
        kind: [float(one.attrib["width"]) for one in drawn.iter(f"{SVG}rect") if one.attrib["class"] == kind]
        for kind in ("ours", "theirs")
    }
    prefill, _, eight, sixteen = rects["ours"][1:]  # the first is the legend's
    assert sixteen == pytest.approx(2 * eight, abs=0.2)
    assert rects["theirs"][1] == pytest.approx(prefill / 2, abs=0.2)
    words = [one.text for one in drawn.iter(f"{SVG}text")]
    assert {"Stagewire", "llama.cpp", "llama.cpp-q4_0", "tok/s", "4.95", "1000"} <= set(words)
    assert "prefers-color-scheme: dark" in bars("some-cpu", ROWS)


def test_names_cannot_break_the_picture_and_without_rates_there_is_none() -> None:
    ET.fromstring(bars("<&>", [row("decode_8", "a<b&c", TOKENS_PER_S, 1, 2, 5)]))
    assert bars("some-cpu", ROWS[-1:]) == ""
