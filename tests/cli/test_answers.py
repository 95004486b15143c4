"""How a command's answer is sampled, how long it may become, and what is said of one that was cut."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stagewire.cli.answer_limit import DEFAULT_MAX_TOKENS, AnswerLimit, LimitedAnswer
from stagewire.cli.main import build_parser
from stagewire.cli.sampling import sampling_of
from stagewire.wire.errors import ErrorCode, RequestRefused
from stagewire.wire.request import FinishReason
from stagewire.wire.sampling import SamplingParams

Capture = pytest.CaptureFixture[str]
OF_MODEL = SamplingParams(temperature=0.6, top_k=20, top_p=0.9, repetition_penalty=1.2)


def options(*flags: str, command: str = "generate") -> argparse.Namespace:
    words = ["hi"] if command == "generate" else []
    return build_parser(command).parse_args([command, *words, *flags])


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize(
    ("flags", "sampling"),
    [
        ([], None),
        (["--greedy"], SamplingParams(temperature=0)),
        (["--greedy", "--temperature", "0", "--seed", "4"], SamplingParams(temperature=0, seed=4)),
        (["--greedy", "--repetition-penalty", "1.1"], SamplingParams(temperature=0, repetition_penalty=1.1)),
        (["--temperature", "0"], SamplingParams(temperature=0)),
        (["--seed", "7"], SamplingParams(0.6, 20, 0.9, repetition_penalty=1.2, seed=7)),
        (["--temperature", "1.5"], SamplingParams(1.5, 20, 0.9, repetition_penalty=1.2)),
        (["--top-k", "0", "--top-p", "1", "--repetition-penalty", "1"], SamplingParams(0.6)),
        (["--logit-bias", "3=-100"], SamplingParams(0.6, 20, 0.9, repetition_penalty=1.2, logit_bias=((3, -100.0),))),
    ],
)
def test_flags_stand_for_themselves_and_the_model_for_the_rest(
    command: str, flags: list[str], sampling: SamplingParams | None
) -> None:
    """Nothing at all is the model's word alone; what asks for the likeliest token gets no penalty unasked."""
    assert sampling_of(options(*flags, command=command), lambda: OF_MODEL) == sampling


@pytest.mark.parametrize("flags", [[], ["--greedy"], ["--temperature", "0"]])
def test_the_model_is_asked_only_where_it_matters(flags: list[str]) -> None:
    def asked() -> SamplingParams:
        raise AssertionError("nobody needs this")

    sampling_of(options(*flags), asked)


@pytest.mark.parametrize(
    ("flags", "limit"),
    [
        ([], AnswerLimit(1024, is_default=True)),
        (["--max-tokens", "7"], AnswerLimit(7, is_default=False)),
        (["--max-tokens", "1024"], AnswerLimit(1024, is_default=False)),
        (["--max-tokens", "off"], AnswerLimit(None, is_default=False)),
    ],
)
def test_an_answer_ends_at_1024_tokens_unless_told_otherwise(flags: list[str], limit: AnswerLimit) -> None:
    assert options(*flags).limit == options(*flags, command="chat").limit == limit


class Room:
    """What takes requests, and answers to the end as long as they fit into `size` tokens."""

    def __init__(self, size: int, num_prompt: int, answer: int = 1 << 20) -> None:
        self.size, self.num_prompt, self.answer = size, num_prompt, answer
        self.asked: list[int | None] = []

    def start(self, max_tokens: int | None) -> Any:
        self.asked.append(max_tokens)
        return Reply(self, max_tokens)


class Reply:
    def __init__(self, room: Room, max_tokens: int | None) -> None:
        left = room.size - room.num_prompt
        self.fits = (1 if max_tokens is None else max_tokens) <= left
        self.num_tokens = min(room.answer, left if max_tokens is None else max_tokens)
        reason = FinishReason.STOP if self.num_tokens == room.answer else FinishReason.LENGTH
        self.result = SimpleNamespace(finish_reason=reason, usage=SimpleNamespace(completion_tokens=self.num_tokens))

    def __iter__(self) -> Iterator[int]:
        if not self.fits:
            raise RequestRefused("too long", ErrorCode.CONTEXT_OVERFLOW)
        return iter(range(self.num_tokens))

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("room", "limit", "asked", "num_tokens", "told"),
    [
        (Room(8000, 10), AnswerLimit(), [1024], 1024, "after 1024 tokens; --max-tokens"),
        (Room(8000, 10, answer=30), AnswerLimit(), [1024], 30, ""),
        (Room(1000, 10), AnswerLimit(), [1024, None], 990, "is full"),
        (Room(1000, 999), AnswerLimit(), [1024, None], 1, "is full"),
        (Room(1000, 10), AnswerLimit(5, is_default=False), [5], 5, "after 5 tokens"),
        (Room(1000, 10), AnswerLimit(0, is_default=False), [0], 0, ""),
        (Room(3000, 10), AnswerLimit(None, is_default=False), [None], 2990, "is full"),
    ],
)
def test_an_answer_that_was_cut_says_by_what(
    room: Room, limit: AnswerLimit, asked: list[int | None], num_tokens: int, told: str, capsys: Capture
) -> None:
    """On stderr. The limit that nobody asked for gives way to a smaller context, and refuses nobody."""
    with LimitedAnswer(room.start, limit) as answer:
        assert len(list(answer)) == num_tokens
        answer.warn_of_cut()
    assert room.asked == asked
    captured = capsys.readouterr()
    assert captured.out == ""
    assert (told in captured.err and captured.err.startswith("cut off: ")) if told else captured.err == ""


@pytest.mark.parametrize(
    ("room", "limit"), [(Room(1000, 1000), AnswerLimit()), (Room(1000, 10), AnswerLimit(5000, is_default=False))]
)
def test_what_does_not_fit_is_refused(room: Room, limit: AnswerLimit) -> None:
    """A prompt that leaves no room, and a limit that somebody meant."""
    with LimitedAnswer(room.start, limit) as answer, pytest.raises(RequestRefused, match="too long"):
        list(answer)


def test_the_default_is_what_help_says(capsys: Capture) -> None:
    for command in ("generate", "chat"):
        with pytest.raises(SystemExit):
            options("--help", command=command)
        assert f"default: {DEFAULT_MAX_TOKENS}" in capsys.readouterr().out
