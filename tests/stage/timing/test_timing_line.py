"""The line of the log that a request leaves behind."""

from __future__ import annotations

import pytest

from stagewire.stage.timing.timing_line import timing_line
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.note import Note
from stagewire.wire.request import Ending, FinishReason, Usage
from stagewire.wire.ring import SequenceStart
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.timing import RequestTiming

TIMING = RequestTiming(0.001, 0.002, 0.0, 0.003, 0.25, (0.0105, 0.02), 0.004, 0.005, 0.006, 0.007, 0.1)


EPOCH = Epoch(0x1F, 3)


def start(request_id: str = "r", client_id: str = "c", session_id: str = "s") -> SequenceStart:
    return SequenceStart(1, request_id, client_id, SamplingParams(), 40, b"", 5, (), None, session_id=session_id)


def test_it_holds_all_parts_in_milliseconds_the_tokens_and_the_ending() -> None:
    ending = Ending(FinishReason.LENGTH, 5, Usage(40, 5, 16), timing=TIMING)
    assert timing_line(start(), ending, EPOCH) == Note(
        "request_timing",
        "request=r client=c session=s epoch=1f.3 ending=length prompt_tokens=40 cached_tokens=16 completion_tokens=5 "
        "admission_ms=1.00 queue_ms=2.00 paused_ms=0.00 restore_ms=3.00 prefill_ms=250.00 plan_ms=4.00 "
        "sample_ms=5.00 codec_ms=6.00 hops_ms=7.00 compute_ms=10.50,20.00",
    )


def test_a_failure_is_named_by_its_code() -> None:
    ending = Ending(FinishReason.FAILED, 0, Usage(40, 0), (), ErrorCode.DECODE_FAILED, "no")
    assert timing_line(start(), ending, EPOCH).fields == (
        "request=r client=c session=s epoch=1f.3 ending=decode_failed "
        "prompt_tokens=40 cached_tokens=0 completion_tokens=0"
    )


@pytest.mark.parametrize("name", ["c\x1b[2J", "c ending=stop", "c\nevent=registered", "", "a=b", "\u2028", "it's"])
def test_a_clients_names_cannot_forge_another_line_or_field(name: str) -> None:
    """Whichever of them it is: what is no plain word is quoted."""
    ending = Ending(FinishReason.LENGTH, 5, Usage(40, 5))
    for names in ((name, "c", "s"), ("r", name, "s"), ("r", "c", name)):
        fields = timing_line(start(*names), ending, EPOCH).fields
        assert fields.isprintable()
        assert repr(name) in fields
        unquoted = fields.replace(repr(name), "-")
        assert [word.partition("=")[0] for word in unquoted.split()] == [
            "request", "client", "session", "epoch", "ending", "prompt_tokens", "cached_tokens", "completion_tokens",
        ]  # fmt: skip
