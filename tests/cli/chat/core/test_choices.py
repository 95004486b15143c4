"""`/set`: names, values, and what is wrong with others."""

from __future__ import annotations

import pytest

from stagewire.cli.chat.core.choices import Choices, Sampling, WrongChoice

START = Choices(1024, timings=False)


@pytest.mark.parametrize(
    ("text", "expected", "told"),
    [
        ("temperature 0.5", Choices(1024, False, (Sampling("temperature", 0.5),)), "temperature 0.5"),
        ("top_k 40", Choices(1024, False, (Sampling("top_k", 40),)), "top_k 40"),
        ("top-p=0.9", Choices(1024, False, (Sampling("top_p", 0.9),)), "top_p 0.9"),
        (
            "Repetition-Penalty 1",
            Choices(1024, False, (Sampling("repetition_penalty", 1.0),)),
            "repetition_penalty 1.0",
        ),
        ("seed 7", Choices(1024, False, (Sampling("seed", 7),)), "seed 7"),
        ("seed off", Choices(1024, False, (Sampling("seed", None),)), "seed off"),
        ("max_tokens 12", Choices(12, False), "max_tokens 12"),
        ("max_tokens off", Choices(None, False), "max_tokens off"),
        ("timings on", Choices(1024, True), "timings on"),
        ("timings OFF", Choices(1024, False), "timings off"),
    ],
)
def test_a_name_gets_a_value(text: str, expected: Choices, told: str) -> None:
    assert START.changed(text, START) == (expected, told)


@pytest.mark.parametrize("text", ["temperature 0.5", "seed 3", "max_tokens 5", "timings on", "min_p 0.1"])
def test_default_is_what_counted_at_the_start(text: str) -> None:
    changed, _ = START.changed(text, START)
    assert changed != START
    name = text.split(maxsplit=1)[0]
    back, _ = changed.changed(f"{name} default", START)
    assert back == START


def test_default_is_a_flags_value_where_one_was_given() -> None:
    start = Choices(7, timings=True, sampling=(Sampling("temperature", 0.25), Sampling("seed", 3)))
    changed = start
    for text in ("temperature 1", "seed off", "max_tokens 9", "timings off"):
        changed, _ = changed.changed(text, start)
    assert changed == Choices(9, timings=False, sampling=(Sampling("temperature", 1.0), Sampling("seed", None)))
    for name in ("temperature", "seed", "max_tokens", "timings"):
        changed, told = changed.changed(f"{name} default", start)
        assert told in start.lines()
    assert changed == start


def test_the_last_value_of_a_name_counts_and_others_stay() -> None:
    changed = START
    for text in ("temperature 0.5", "top_k 3", "temperature 0.7"):
        changed, _ = changed.changed(text, START)
    assert changed.sampling == (Sampling("top_k", 3), Sampling("temperature", 0.7))
    assert changed.lines()[:3] == ["temperature 0.7", "top_k 3", "top_p default"]
    assert changed.lines()[-2:] == ["max_tokens 1024", "timings off"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("warmth 3", "there is nothing called 'warmth' to set; there are temperature, top_k"),
        ("temperature", "expected /set temperature VALUE, or /set temperature default"),
        ("temperature 1 2", "expected /set temperature VALUE"),
        ("temperature hot", "temperature=hot: expected a number, or default"),
        ("temperature 101", r"temperature=101.0 is not a number in \[0, 100\]"),
        ("temperature nan", "temperature=nan is not a number"),
        ("top_k 1.5", "top_k=1.5: expected a whole number"),
        ("top_k -1", "top_k=-1 is not an integer"),
        ("top_p 0", "top_p=0.0 is not a number in"),
        ("seed -3", "seed=-3 is not an integer"),
        ("max_tokens 0", "max_tokens=0: must be between 1 and"),
        ("max_tokens many", "max_tokens=many: expected a whole number"),
        ("timings maybe", "timings=maybe: expected on or off"),
        ("logit_bias 3", "there is nothing called 'logit_bias'"),
        ("=", "there is nothing called"),
    ],
)
def test_what_cannot_be_set_says_why(text: str, told: str) -> None:
    with pytest.raises(WrongChoice, match=told):
        START.changed(text, START)
