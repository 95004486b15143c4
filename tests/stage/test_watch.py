"""What a stage and its head count for whoever watches, against what is known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.in_process import InProcessPipeline, request, stage_info
from support.toy_operators import VOCAB_SIZE, ToyOperators
from support.watching import fetch, series_of

from stagewire.monitoring.distribution import Distribution
from stagewire.stage.files.disk_tier import DiskTier
from stagewire.stage.timing.head_times import HeadMeasures, RoundTrip
from stagewire.stage.watch import StageWatch, bind_endpoint
from stagewire.wire.errors import ErrorCode, SettingsError
from stagewire.wire.request import FinishReason, SnapshotRequest, StageTiming, Usage
from stagewire.wire.ring import SequenceResult, SequenceStart, Step, StepResult
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import TokenIds

GREEDY = SamplingParams(temperature=0.0)
CUTS = [(0, 2), (2, 3), (3, 6)]
HEAD, MIDDLE, TAIL = range(3)
Values = dict[tuple[str, ...], float]


def pipeline_of(num_blocks: int = 600, **options: Any) -> InProcessPipeline:
    return InProcessPipeline([ToyOperators(*cut, 6, num_blocks) for cut in CUTS], 2, VOCAB_SIZE, **options)


def values(pipeline: InProcessPipeline, index: int) -> Values:
    """Each series of one stage by name, without the prefix, and labels; of a histogram the count."""
    start, end = CUTS[index]
    info = replace(stage_info(VOCAB_SIZE), layer_start=start, layer_end=end, num_layers=6)
    disk = pipeline.disks[index] if pipeline.disks else None
    samples = StageWatch(info, pipeline.cores[index], pipeline.stores[index], disk, 1 << 20).samples()
    found: Values = {}
    for metric, labels, value in samples:
        number = value.count if isinstance(value, Distribution) else value
        assert found.setdefault((metric.name.removeprefix("stagewire_"), *labels), number) is number
    return found


def ask(pipeline: InProcessPipeline, name: str, prompt: Sequence[int], wish: SnapshotRequest | None = None) -> Usage:
    pipeline.start(replace(request(name, prompt, 3, GREEDY), snapshot=wish))
    ending = pipeline.run()[name].ending
    assert ending is not None
    assert ending.finish_reason is FinishReason.LENGTH
    return ending.usage


def cache_tokens(pipeline: InProcessPipeline, index: int) -> tuple[float, float, float]:
    """Asked for, held, missing."""
    found = values(pipeline, index)
    held = found["prefix_cache_hits_total", "ram"] + found["prefix_cache_hits_total", "disk"]
    return found["prefix_cache_queries_total",], held, found["prefix_cache_misses_total",]


PROMPT = [3 + i % 50 for i in range(40)]
OTHER = [*PROMPT[:20], *range(40, 60)]
"""Shares one full block of 16 with `PROMPT`."""


def test_tokens_asked_for_held_and_missing_are_those_of_the_formula_at_every_stage() -> None:
    """A head is asked for a prompt's tokens but its last; the stages behind it for what the head holds."""
    pipeline = pipeline_of()
    cached = [ask(pipeline, str(i), prompt).cached_tokens for i, prompt in enumerate([PROMPT, PROMPT, OTHER, [7]])]
    assert cached == [0, 39, 16, 0]
    assert cache_tokens(pipeline, HEAD) == (39 * 3, 39 + 16, 39 + 23)
    assert cache_tokens(pipeline, MIDDLE) == cache_tokens(pipeline, TAIL) == (39 + 16, 39 + 16, 0)
    found = values(pipeline, HEAD)
    assert (found["prompt_tokens_total",], found["prompt_tokens_cached_total",]) == (121, 55)
    assert found["generation_tokens_total",] == 4 * 3
    assert found["kv_restored_tokens_total",] == 55


def test_restores_are_counted_by_what_became_of_them() -> None:
    """Passed on by those who hold all, returned by the tail; a stage that lacks something tells the head."""
    pipeline = pipeline_of()
    ask(pipeline, "cold", PROMPT)
    ask(pipeline, "warm", PROMPT)
    outcomes = [("restores_total", outcome) for outcome in ("direct_miss", "forward_hit", "partial_hit", "direct_hit")]

    def counted() -> list[list[float]]:
        return [[values(pipeline, i)[o] for o in outcomes] for i in range(3)]

    assert counted() == [[0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]
    pipeline.stores[MIDDLE].clear()
    ask(pipeline, "missed", PROMPT)
    assert counted() == [[0, 2, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1]]
    assert cache_tokens(pipeline, MIDDLE) == (39 * 2, 39, 39)


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_a_part_of_a_prompt_is_no_direct_hit_at_the_tail(num_stages: int) -> None:
    """The client is answered by what is computed behind it; a whole prompt, and a whole snapshot, are answered from."""
    cuts = [(0, 6)] if num_stages == 1 else [(0, 2), (2, 6)] if num_stages == 2 else CUTS
    pipeline = InProcessPipeline([ToyOperators(*cut, 6, 600) for cut in cuts], 2, VOCAB_SIZE)
    restores = pipeline.cores[-1].measures.restores
    ask(pipeline, "cold", PROMPT)
    for number, prompt in enumerate([[*PROMPT, 1, 2], PROMPT[:20] + [50] * 9, [*PROMPT[:33], 9]]):
        ask(pipeline, f"part {number}", prompt)
    assert (restores["partial_hit"], restores["direct_hit"]) == (3, 0)
    ask(pipeline, "save", PROMPT[:20], SnapshotRequest("kept"))
    ask(pipeline, "behind it", [*PROMPT[:20], 7, 8])
    assert (restores["partial_hit"], restores["direct_hit"]) == (5, 0)
    ask(pipeline, "whole", PROMPT)
    ask(pipeline, "snapshot", PROMPT[:20])
    assert (restores["partial_hit"], restores["direct_hit"]) == (5, 2)
    assert restores["forward_hit"] == 0


def test_blocks_that_were_read_from_files_are_hits_of_the_disk(tmp_path: Path) -> None:
    """Once the process that computed them is gone."""
    first = pipeline_of(tiers=[DiskTier(tmp_path / str(i), 1 << 20) for i in range(3)])
    ask(first, "cold", PROMPT)
    for disk in first.disks:
        disk.close()
    written = values(first, TAIL)
    assert written["disk_blocks_total", "written"] == 3
    assert 0 < written["kv_bytes", "disk"] <= written["kv_budget_bytes", "disk"] == 1 << 20
    second = pipeline_of(tiers=[DiskTier(tmp_path / str(i), 1 << 20) for i in range(3)])
    assert ask(second, "warm", PROMPT).cached_tokens == 39
    found = values(second, TAIL)
    assert (found["prefix_cache_hits_total", "disk"], found["prefix_cache_hits_total", "ram"]) == (39, 0)
    assert found["disk_blocks_total", "read"] == 3
    for disk in second.disks:
        disk.close()


def test_the_pool_and_what_it_gives_up_add_up() -> None:
    """Used, cached and free blocks are all there are; what goes is counted in blocks, tokens and bytes."""
    pipeline = pipeline_of(num_blocks=8)
    for number in range(4):
        ask(pipeline, str(number), [(number * 10 + i) % VOCAB_SIZE for i in range(50)])
    for index in range(3):
        found = values(pipeline, index)
        states = [found["kv_blocks", state] for state in ("used", "cached", "free")]
        assert sum(states) == 8
        assert found["kv_cache_usage_ratio",] == states[0] / 8
        block_bytes = pipeline.operators[index].block_bytes
        assert found["kv_bytes", "ram"] == (states[0] + states[1]) * block_bytes
        assert found["kv_budget_bytes", "ram"] == 8 * block_bytes
        num_evicted = found["kv_evictions_total",]
        assert num_evicted > 0
        assert 0 < found["kv_evicted_tokens_total",] <= 16 * num_evicted
        assert found["kv_recorded_tokens_total",] - found["kv_evicted_tokens_total",] <= 16 * states[1]


def test_steps_are_counted_by_what_they_hold() -> None:
    """A pass of chunks, one of decodes, one of both; a step without rows is none."""
    pipeline = pipeline_of(chunk_tokens=16)
    pipeline.start(request("short", [9], 20, GREEDY))
    for index in range(3):
        pipeline.turn(index)
    pipeline.start(request("long", PROMPT * 5, 2, GREEDY))
    pipeline.run()
    for index in range(3):
        found = values(pipeline, index)
        passes = {phase: found["stage_forward_seconds", phase] for phase in ("prefill", "decode", "mixed")}
        assert all(count > 0 for count in passes.values()), passes
        assert found["step_tokens",] == found["step_sequences",] == sum(passes.values())
        assert found["step_queue_seconds",] >= sum(passes.values())
    assert values(pipeline, TAIL)["stage_sample_seconds",] == sum(passes.values())
    assert ("stage_sample_seconds",) not in values(pipeline, HEAD)
    assert ("prompt_tokens_total",) not in values(pipeline, TAIL)


def test_snapshots_are_counted_when_all_stages_keep_them() -> None:
    pipeline = pipeline_of()
    ask(pipeline, "r", PROMPT, SnapshotRequest("rules", 32))
    found = values(pipeline, HEAD)
    assert (found["snapshot_saves_total",], found["snapshots",], found["snapshot_blocks",]) == (1, 1, 2)


def test_a_stage_has_the_same_series_before_and_after_all_of_this() -> None:
    """So the first event of a kind is an increase, and a page never grows."""
    idle, busy = pipeline_of(), pipeline_of()
    ask(busy, "a", PROMPT)
    ask(busy, "b", PROMPT)
    for index in range(3):
        assert set(values(idle, index)) == set(values(busy, index))


def test_a_stage_serves_its_page_at_the_address_that_it_has_told() -> None:
    """A port that another process has is named with what to do; there need not be one at all."""
    pipeline = pipeline_of()
    endpoint = bind_endpoint(0)
    assert endpoint is not None
    with endpoint:
        StageWatch(stage_info(VOCAB_SIZE), pipeline.cores[HEAD], pipeline.stores[HEAD]).serve(endpoint)
        assert series_of(fetch(endpoint.address, "/metrics"))['stagewire_kv_blocks{state="free"}'] == 600
        port = int(endpoint.address.rpartition(":")[2])
        with pytest.raises(SettingsError, match=f"metrics_port={port}: .*choose another") as caught:
            bind_endpoint(port)
    assert caught.value.code is ErrorCode.PORT_IN_USE
    assert bind_endpoint(None) is None


# --- the head's clock ---


def step(step_id: int, *starting: int) -> Step:
    starts = [SequenceStart(seq_id, f"r{seq_id}", "c", GREEDY, 4, b"", 9, (), None) for seq_id in starting]
    return Step(step_id, (), tuple(starts), (), (), (), TokenIds.of([]), None)


def result(step_id: int, *results: SequenceResult) -> StepResult:
    timings = (StageTiming(0, 1, 0.1, 0.0, 0.02), StageTiming(1, 1, 0.2, 0.05, 0.03, 0.1))
    return StepResult(step_id, results, timings)


def token(seq_id: int, *, is_last: bool = False) -> SequenceResult:
    usage = Usage(100, 3, 60) if is_last else None
    return SequenceResult(seq_id, (5,), FinishReason.STOP if is_last else None, None, usage)


def test_the_head_measures_each_part_of_a_request_on_one_clock() -> None:
    """Queue, first token, times between tokens, per token, and what the hops took of a traversal."""
    head = HeadMeasures()
    head.arrived(1, 10.0)
    head.launched(step(1, 1), 0, 12.0)
    head.completed(result(1, token(1)), RoundTrip(3.0, 2.5), 15.0)
    head.launched(step(2), 0, 15.0)
    head.completed(result(2, token(1)), RoundTrip(1.0, 0.5), 16.0)
    head.launched(step(3), 0, 16.0)
    head.completed(result(3, token(1, is_last=True)), RoundTrip(2.0, 1.5), 18.0)
    measured: dict[str, object] = {
        name: (getattr(head, name).count, round(getattr(head, name).total, 9))
        for name in ("queue_s", "first_token_s", "prefill_s", "inter_token_s", "decode_s", "per_output_token_s")
    }
    assert measured == {
        "queue_s": (1, 2.0), "first_token_s": (1, 5.0), "prefill_s": (1, 3.0), "inter_token_s": (2, 3.0),
        "decode_s": (1, 3.0), "per_output_token_s": (1, 1.5),
    }  # fmt: skip
    assert head.traversal_s.count == 3
    assert head.traversal_s.total == pytest.approx(6.0)
    assert head.hop_s.total == pytest.approx(6.0 - 3 * 0.5)
    assert (head.num_prompt_tokens, head.num_cached_tokens, head.num_generated_tokens) == (100, 60, 3)
    assert head.num_in_flight == 0


def test_what_an_epoch_leaves_behind_is_forgotten_and_counts_go_on() -> None:
    """Sequence and step numbers begin anew, and so do the scheduler's preemptions."""
    head = HeadMeasures()
    head.arrived(1, 1.0)
    head.launched(step(1, 1), 2, 2.0)
    head.launched(step(2), 3, 2.0)
    head.begin_epoch()
    assert head.num_in_flight == 0
    head.completed(result(1, token(1)), None, 50.0)
    assert (head.first_token_s.count, head.traversal_s.count) == (0, 0)
    head.launched(step(1), 0, 60.0)
    head.launched(step(2), 2, 60.0)
    assert head.num_preemptions == 5


def test_a_request_that_is_cancelled_in_line_has_no_latency() -> None:
    """Its ending tells its prompt all the same."""
    head = HeadMeasures()
    head.arrived(1, 1.0)
    head.launched(step(1, 1), 0, 2.0)
    head.completed(
        result(1, SequenceResult(1, (), FinishReason.CANCELLED, None, Usage(7, 0))), RoundTrip(1.0, 0.5), 3.0
    )
    assert (head.first_token_s.count, head.decode_s.count, head.per_output_token_s.count) == (0, 0, 0)
    assert (head.num_prompt_tokens, head.num_generated_tokens) == (7, 0)
