"""Snapshots over whole pipelines: kept on all stages or on none, never given up, and never in anybody's way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.in_process import request
from support.snapshots import GREEDY, PROMPT, ask, flood, head_of, kept, order, pipeline_of, rows_on_hops
from support.toy_operators import expected_tokens

from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import SnapshotRequest
from stagewire.wire.ring import Phase, Step
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.snapshots import SnapshotAction


def test_a_snapshot_outlives_any_pressure_until_it_is_freed() -> None:
    """Whoever asks for its tokens finds them."""
    pipeline = pipeline_of()
    ask(pipeline, "save", PROMPT, 0, SnapshotRequest("system"))
    flood(pipeline)
    assert kept(pipeline) == [("system", 40)]
    assert ask(pipeline, "again", PROMPT) == 40
    assert ask(pipeline, "longer", [*PROMPT, 1, 2, 3]) == 40
    head_of(pipeline).snapshots.free("client", "system")
    head_of(pipeline).snapshots.free("client", "system")
    flood(pipeline, seed=2)
    assert kept(pipeline) == []
    assert ask(pipeline, "cold", PROMPT) == 0


def test_a_snapshot_in_the_middle_of_a_prompt_ends_exactly_there() -> None:
    """The prefill chunk is cut at the place, and the request goes on."""
    pipeline = pipeline_of()
    ask(pipeline, "save", PROMPT, 3, SnapshotRequest("part", 21))
    chunks = [
        s.num_tokens for _, m in pipeline.hops if isinstance(m, Step) for s in m.slices if s.phase is Phase.PREFILL
    ]
    assert chunks == [21, 21, 19, 19], "over two hops"
    flood(pipeline)
    assert kept(pipeline) == [("part", 21)]
    assert ask(pipeline, "other", [*PROMPT[:21], 60, 61]) == 21


def test_a_prompt_that_is_restored_is_kept_like_one_that_is_computed() -> None:
    """Whole, in part, and at a place before the end of what is restored."""
    pipeline = pipeline_of()
    ask(pipeline, "first", PROMPT, 1)
    ask(pipeline, "fused", PROMPT, 1, SnapshotRequest("a"))
    ask(pipeline, "partly", [*PROMPT, 9, 9, 9], 1, SnapshotRequest("b"))
    ask(pipeline, "before", [*PROMPT, 9, 9, 8], 1, SnapshotRequest("c", 18))
    assert kept(pipeline) == [("a", 40), ("b", 43), ("c", 18)]


def test_a_miss_on_the_way_does_not_leave_half_a_snapshot() -> None:
    """The stages before it had kept theirs; all keep the second attempt."""
    pipeline = pipeline_of()
    ask(pipeline, "first", PROMPT, 1)
    pipeline.stores[1].clear()
    ask(pipeline, "save", PROMPT, 2, SnapshotRequest("system"))
    assert kept(pipeline) == [("system", 40)]


def test_a_name_is_replaced_and_another_clients_is_another() -> None:
    """Only once the new one is complete."""
    pipeline = pipeline_of()
    ask(pipeline, "one", PROMPT, 1, SnapshotRequest("system"))
    ask(pipeline, "two", PROMPT[:30], 1, SnapshotRequest("system"))
    assert kept(pipeline) == [("system", 30)]
    assert head_of(pipeline).snapshots.of_client("stranger") == []
    head_of(pipeline).snapshots.free("stranger", "system")
    pipeline.run()
    assert kept(pipeline) == [("system", 30)]


def test_a_request_that_ends_before_the_place_leaves_nothing() -> None:
    """Cancelled while it waits, or in the middle of its prompt."""
    for num_turns in (0, 1, 4):
        pipeline = pipeline_of(chunk_tokens=5)
        pipeline.start(replace(request("r", PROMPT, 5, GREEDY), snapshot=SnapshotRequest("system")))
        for turn in range(num_turns):
            pipeline.turn(turn % 3)
        pipeline.cancel("r")
        pipeline.run()
        assert kept(pipeline) == []
        assert head_of(pipeline).scheduler.blocks.num_free == 20


def test_a_snapshot_that_is_wished_for_while_the_pool_is_full_makes_room() -> None:
    """At the cost of those who run: they make way and come back, with the same tokens."""
    pipeline = pipeline_of(num_blocks=8)
    pipeline.start(*[request(name, [number] * 20, 40, GREEDY) for number, name in enumerate("ab")])
    for _ in range(60):
        for index in range(3):
            pipeline.turn(index)
    assert head_of(pipeline).scheduler.blocks.num_free < 2
    pipeline.start(replace(request("save", PROMPT, 2, GREEDY), snapshot=SnapshotRequest("system")))
    head_of(pipeline).check_invariants()
    outputs = pipeline.run()
    assert kept(pipeline) == [("system", 40)]
    for number, name in enumerate("ab"):
        assert outputs[name].token_ids == expected_tokens([number] * 20, 40, 6)


def test_what_is_pinned_never_keeps_an_accepted_request_from_running() -> None:
    """A snapshot for which there is no room is refused with its request; so is a request that does not fit beside."""
    pipeline = pipeline_of(num_blocks=8)
    ask(pipeline, "save", PROMPT, 1, SnapshotRequest("system"))
    pipeline.start(
        request("long", PROMPT, 41, GREEDY),
        replace(request("wish", [5] * 8, 2, GREEDY), snapshot=SnapshotRequest("other", 8)),
        replace(request("too much", [5] * 33, 2, GREEDY), snapshot=SnapshotRequest("other")),
        replace(request("nonsense", [5] * 8, 2, GREEDY), snapshot=SnapshotRequest("other", 9)),
        *[request(f"r{number}", [number] * 20, 20, GREEDY) for number in range(4)],
    )
    outputs = pipeline.run()
    assert {ack.request_id: ack.code for ack in pipeline.acks if ack.code} == {
        "long": ErrorCode.CONTEXT_OVERFLOW,
        "too much": ErrorCode.SNAPSHOT_LIMIT,
        "nonsense": ErrorCode.INVALID_REQUEST,
    }
    for number in range(4):
        assert outputs[f"r{number}"].token_ids == expected_tokens([number] * 20, 20, 6)
    assert kept(pipeline) == [("other", 8), ("system", 40)]
    assert ask(pipeline, "again", PROMPT, 1) == 40


def test_a_prompt_that_is_the_snapshot_decodes_at_once_from_the_kept_logits() -> None:
    """No stage computes a row before the first token, and whatever draws it sees the whole prompt."""
    samplings = [
        GREEDY,
        SamplingParams(temperature=0.9, seed=4, logprobs=3),
        SamplingParams(temperature=0.9, seed=4, repetition_penalty=1.9, presence_penalty=0.7),
    ]
    for sampling in samplings:
        cold, warm = pipeline_of(), pipeline_of()
        cold.start(request("r", PROMPT, 6, sampling))
        expected = cold.run()["r"]
        ask(warm, "save", PROMPT, 0, SnapshotRequest("system"))
        rows_on_hops(warm)
        warm.start(request("r", PROMPT, 1, sampling))
        first = warm.run()["r"]
        assert rows_on_hops(warm)[:2] == [(Phase.RESUME, 0)] * 2, "one traversal, over two hops"
        assert first.token_ids == expected.token_ids[:1] and first.logprobs == expected.logprobs[:1]
        warm.start(request("s", PROMPT, 6, sampling))
        again = warm.run()["s"]
        assert (again.token_ids, again.logprobs) == (expected.token_ids, expected.logprobs)
        assert kept(warm) == [("system", 40)]


def test_a_snapshot_without_logits_and_another_clients_is_restored_up_to_its_last_token() -> None:
    """The one ends within what was restored, so somebody must compute its end; the other is not this client's."""
    pipeline = pipeline_of()
    ask(pipeline, "first", PROMPT, 1)
    ask(pipeline, "within", PROMPT, 1, SnapshotRequest("part", 18))
    assert ask(pipeline, "again", PROMPT[:18]) == 16, "its full blocks"
    assert ask(pipeline, "on", [*PROMPT[:18], 61, 62]) == 18, "to the token where the snapshot ends"
    ask(pipeline, "whole", PROMPT, 1, SnapshotRequest("whole"))
    pipeline.start(replace(request("other", PROMPT, 2, GREEDY), client_id="stranger"))
    pipeline.run()
    assert rows_on_hops(pipeline)[-4:-2] == [(Phase.TRY_RESTORE_DECODE, 1)] * 2


def test_a_snapshot_can_be_made_of_one_that_is_resumed() -> None:
    """It outlives the first, and decodes at once as well."""
    pipeline = pipeline_of()
    ask(pipeline, "save", PROMPT, 0, SnapshotRequest("one"))
    ask(pipeline, "copy", PROMPT, 1, SnapshotRequest("two"))
    head_of(pipeline).snapshots.free("client", "one")
    flood(pipeline)
    assert kept(pipeline) == [("two", 40)]
    assert ask(pipeline, "again", PROMPT) == 40


def test_a_stage_without_the_snapshot_is_a_miss_like_any_other() -> None:
    """It cannot happen while books are kept; if it does, the prompt is computed."""
    pipeline = pipeline_of()
    ask(pipeline, "save", PROMPT, 0, SnapshotRequest("system"))
    snapshot = head_of(pipeline).snapshots.of_client("client")[0]
    pipeline.stores[1].release(snapshot.seq_id)
    pipeline.stores[1].clear()
    ask(pipeline, "again", PROMPT)


# --- names ---


def test_a_snapshot_can_be_renamed_onto_another(tmp_path: Path) -> None:
    """The one that had the name goes."""
    pipeline = pipeline_of(directory=tmp_path)
    ask(pipeline, "one", PROMPT, 0, SnapshotRequest("a"))
    ask(pipeline, "two", PROMPT[:30], 0, SnapshotRequest("b"))
    assert order(pipeline, SnapshotAction.RENAME, "a", "b") is None
    assert kept(pipeline) == [("b", 40)]
    assert order(pipeline, SnapshotAction.RENAME, "b", "b") is None
    assert order(pipeline, SnapshotAction.RENAME, "a", "c") is ErrorCode.SNAPSHOT_NOT_FOUND
    assert order(pipeline, SnapshotAction.RENAME, "b", "") is ErrorCode.INVALID_REQUEST
    assert kept(pipeline) == [("b", 40)]


def test_a_request_that_names_a_snapshot_needs_it_to_be_there() -> None:
    """A prompt that is shorter, or differs, shares what it can, and is computed from there."""
    pipeline = pipeline_of()
    ask(pipeline, "save", PROMPT, 0, SnapshotRequest("a"))
    prompts = {"same": PROMPT, "shorter": PROMPT[:20], "differs": [*PROMPT[:18], 60, *PROMPT[19:]]}
    for name, prompt in prompts.items():
        pipeline.start(replace(request(name, prompt, 3, GREEDY), restore="a"))
    pipeline.start(
        replace(request("unknown", PROMPT, 3, GREEDY), restore="b"),
        replace(request("theirs", PROMPT, 3, GREEDY), restore="a", client_id="stranger"),
    )
    outputs = pipeline.run()
    for name, prompt in prompts.items():
        assert outputs[name].token_ids == expected_tokens(prompt, 3, 6)
    refused = {ack.request_id: ack.code for ack in pipeline.acks if ack.code}
    assert refused == {"unknown": ErrorCode.SNAPSHOT_NOT_FOUND, "theirs": ErrorCode.SNAPSHOT_NOT_FOUND}
    cached = {name: output.ending.usage.cached_tokens for name, output in outputs.items() if output.ending}
    assert cached == {"save": 0, "same": 40, "shorter": 16, "differs": 16}
    notes = {name: output.ending.restore_note for name, output in outputs.items() if output.ending}
    assert notes == {
        "save": "",
        "same": "",
        "shorter": "snapshot 'a': the prompt shares the first 20 of its 40 tokens",
        "differs": "snapshot 'a': the prompt shares the first 18 of its 40 tokens",
    }


def test_a_snapshot_that_was_freed_before_a_request_began_is_told_in_its_ending() -> None:
    """One that waits has been acknowledged, and is computed all the same; one that has begun has what it needs."""
    pipeline = pipeline_of()
    ask(pipeline, "save", PROMPT, 0, SnapshotRequest("a"))
    pipeline.start(replace(request("waits", [*PROMPT, 7], 3, GREEDY), restore="a"))
    head_of(pipeline).snapshots.free("client", "a")
    outputs = pipeline.run()
    assert outputs["waits"].token_ids == expected_tokens([*PROMPT, 7], 3, 6)
    ending = outputs["waits"].ending
    assert ending is not None and ending.restore_note == "snapshot 'a' was freed before this request began"


def test_a_prompt_that_goes_on_behind_the_snapshot_that_it_names_uses_all_of_it() -> None:
    """Also where another snapshot is longer, and where nothing is to be drawn."""
    pipeline = pipeline_of()
    ask(pipeline, "save", PROMPT, 0, SnapshotRequest("a"))
    ask(pipeline, "longer", [*PROMPT, 5, 5, 5], 0, SnapshotRequest("b"))
    for name, prompt, max_tokens in (("on", [*PROMPT, 1], 2), ("both", [*PROMPT, 5, 5, 5, 5], 2), ("none", PROMPT, 0)):
        pipeline.start(replace(request(name, prompt, max_tokens, GREEDY), restore="a"))
    outputs = pipeline.run()
    assert [output.ending.restore_note for output in outputs.values() if output.ending] == [""] * 5


def test_a_snapshot_made_of_one_without_logits_has_none_either() -> None:
    """It would be drawn from what is not there."""
    pipeline = pipeline_of()
    ask(pipeline, "first", PROMPT, 1)
    ask(pipeline, "within", PROMPT, 1, SnapshotRequest("a", 18))
    ask(pipeline, "behind", [*PROMPT[:18], 60, 61], 1, SnapshotRequest("b", 18))
    assert [one.has_logits for one in head_of(pipeline).snapshots.of_client("client")] == [False, False]
    assert ask(pipeline, "again", PROMPT[:18]) == 16
    ask(pipeline, "computed", [*PROMPT[:16], 50, 51], 1, SnapshotRequest("c"))
    ask(pipeline, "of c", [*PROMPT[:16], 50, 51, 52, 53], 1, SnapshotRequest("d", 18))
    assert [one.has_logits for one in head_of(pipeline).snapshots.of_client("client")] == [False, False, True, True]
    assert ask(pipeline, "at once", [*PROMPT[:16], 50, 51]) == 18


def test_snapshots_never_hold_more_than_half_of_the_pool(tmp_path: Path) -> None:
    """Whoever has gone cannot free them, and nobody else may."""
    pipeline = pipeline_of(num_blocks=8)
    ask(pipeline, "save", PROMPT, 1, SnapshotRequest("a"))
    pipeline.start(replace(request("more", [5] * 30, 2, GREEDY), snapshot=SnapshotRequest("b")))
    pipeline.start(request("long", [5] * 90, 2, GREEDY))
    pipeline.run()
    assert [ack.code for ack in pipeline.acks[-2:]] == [ErrorCode.SNAPSHOT_LIMIT, ErrorCode.CONTEXT_OVERFLOW]
    assert "snapshots keep 48" in pipeline.acks[-1].detail
