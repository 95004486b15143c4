"""What is said of an answer when it has come."""

from __future__ import annotations

import pytest

from stagewire.cli.notices import cut_notice, speed
from stagewire.client.result import Result, Timings
from stagewire.wire.request import CacheStatistics, FinishReason, Usage
from stagewire.wire.sampling import SamplingParams

FULL = "cut off: the context, or the KV memory of the stages (--kv-tokens), is full"


def result(reason: FinishReason, num_tokens: int, first_s: float | None = 0.5, total_s: float = 2.5) -> Result:
    timings = Timings(0.1, 0.2, first_s, total_s, ())
    return Result(
        "x", (1,) * num_tokens, reason, None, Usage(20, num_tokens, 12), timings, CacheStatistics(), 0, SamplingParams()
    )


@pytest.mark.parametrize(
    ("reason", "num_tokens", "max_tokens", "expected"),
    [
        (FinishReason.LENGTH, 40, 40, "cut off: after 40 tokens; /this N allows more, /this off as many as fit"),
        (FinishReason.LENGTH, 1, 1, "cut off: after 1 token; /this N allows more, /this off as many as fit"),
        (FinishReason.LENGTH, 40, None, FULL),
        (FinishReason.LENGTH, 39, 40, FULL),
        (FinishReason.LENGTH, 0, 0, None),
        (FinishReason.STOP, 40, 40, None),
        (FinishReason.CANCELLED, 7, None, None),
    ],
)
def test_an_answer_that_was_cut_says_so(
    reason: FinishReason, num_tokens: int, max_tokens: int | None, expected: str | None
) -> None:
    assert cut_notice(result(reason, num_tokens), max_tokens, "/this") == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            result(FinishReason.STOP, 41),
            "41 tokens in 2.50 s, 20.0 tokens/s, the first after 0.50 s, 12 of 20 prompt tokens cached",
        ),
        (result(FinishReason.STOP, 1), "1 token in 2.50 s, the first after 0.50 s, 12 of 20 prompt tokens cached"),
        (result(FinishReason.STOP, 0, None), "0 tokens in 2.50 s, 12 of 20 prompt tokens cached"),
        (
            result(FinishReason.STOP, 9, 2.5),
            "9 tokens in 2.50 s, the first after 2.50 s, 12 of 20 prompt tokens cached",
        ),
    ],
)
def test_how_fast_an_answer_came(answer: Result, expected: str) -> None:
    assert speed(answer) == expected
