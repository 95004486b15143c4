"""`stagewire status` for people: who serves what, who is spare, and what is missing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support.statuses import report, stage

from stagewire.cli.status import describe
from stagewire.wire.counted import counted
from stagewire.wire.status import PipelineStatus


def test_a_pipeline_is_shown_with_its_stages_in_order() -> None:
    stages = (stage("b", 12, 30, "1.1"), stage("a", 0, 12, "1.1"))
    pipeline = PipelineStatus("1.1", "serving", ("a", "b"), num_requests=2, capacity=8)
    broker, chain, first, second, expiry = describe(report(*stages, pipelines=(pipeline,), waiting_for=""))
    assert "2 requests running, 3 waiting" in broker
    assert chain == "pipeline 1.1 serving, 2 of 8 requests"
    assert "a: smol layers 0:12 of 30, 51 MB bf16 by PyTorch on cpu, 2 threads, KV for 1024 tokens" in first
    assert "b: smol layers 12:30" in second
    assert expiry == "snapshots of anonymous clients go 300 s after them"


def test_spares_and_what_is_missing_are_said() -> None:
    lines = describe(report(stage("a", 0, 12, None), pipelines=(), waiting_for="layers 12:30 of smol"))
    assert lines[1] == "in no pipeline"
    assert "a: smol layers 0:12" in lines[2]
    assert lines[-1] == "missing: layers 12:30 of smol"


@pytest.mark.parametrize(
    ("number", "noun", "words"),
    [(1, "thread", "1 thread"), (0, "thread", "0 threads"), (2, "miss", "2 misses"), (1, "miss", "1 miss"),
     (12, "prompt token", "12 prompt tokens")],
)  # fmt: skip
def test_numbers_of_things_are_said_as_people_say_them(number: int, noun: str, words: str) -> None:
    assert counted(number, noun) == words


def test_one_of_a_kind_is_said_in_the_singular() -> None:
    one = stage("a", 0, 30, "1.1")
    one = replace(one, info=replace(one.info, threads=1, num_blocks=1, block_size=1))
    pipeline = PipelineStatus("1.1", "serving", ("a",), num_requests=1, capacity=1)
    alone = replace(report(one, pipelines=(pipeline,), waiting_for=""), num_requests_running=1, num_clients=1)
    text = "\n".join(describe(alone))
    for words in ("1 client;", "1 request running", "1 of 1 request", "1 thread,", "KV for 1 token,"):
        assert words in text
    assert not re.search(r"\b1 \w+s\b(?! ago)", text), text
