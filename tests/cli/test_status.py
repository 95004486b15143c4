"""`stagewire status` for people: who serves what, who is spare, and what is missing."""

from __future__ import annotations

from support.statuses import report, stage

from stagewire.cli.status import describe
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
