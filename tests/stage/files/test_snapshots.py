"""Snapshots over whole pipelines: kept on all stages or on none, never given up, and never in anybody's way."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.in_process import EPOCH, InProcessPipeline, request
from support.toy_operators import VOCAB_SIZE, ToyOperators, expected_tokens

from stagewire.stage.files.runner import FileRunner
from stagewire.stage.files.snapshot_directory import SnapshotDirectory
from stagewire.stage.files.snapshot_file import Manifest, SnapshotFileError, decode_manifest, encode_manifest
from stagewire.stage.head.core import HeadCore
from stagewire.wire.control import Dissolve
from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import FinishReason, SnapshotWish
from stagewire.wire.ring import Phase, Step
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.snapshots import AskHeadSnapshots, SnapshotAction, SnapshotOrder

GREEDY = SamplingParams(temperature=0.0)
CUTS = [(0, 2), (2, 3), (3, 6)]
PROMPT = [3 + i % 50 for i in range(40)]


def pipeline_of(num_blocks: int = 20, **options: Any) -> InProcessPipeline:
    return InProcessPipeline([ToyOperators(*cut, 6, num_blocks) for cut in CUTS], 2, VOCAB_SIZE, **options)


def head_of(pipeline: InProcessPipeline) -> HeadCore:
    assembly = pipeline.cores[0].assembly
    assert assembly is not None and assembly.head is not None
    return assembly.head


def ask(
    pipeline: InProcessPipeline, name: str, prompt: Sequence[int], max_tokens: int = 2, wish: SnapshotWish | None = None
) -> int:
    """Run one request to its end; returns its cached tokens, after looking at the others."""
    pipeline.start(replace(request(name, prompt, max_tokens, GREEDY), snapshot=wish))
    output = pipeline.run()[name]
    assert output.ending is not None and output.ending.finish_reason is FinishReason.LENGTH
    assert output.token_ids == expected_tokens(list(prompt), max_tokens, 6)
    return output.ending.usage.cached_tokens


def kept(pipeline: InProcessPipeline) -> list[tuple[str, int]]:
    """Names and lengths; every stage holds exactly these."""
    head_of(pipeline).check_invariants()
    snapshots = head_of(pipeline).snapshots.of_client("client")
    for store in pipeline.stores:
        store.check_invariants()
        assert [store.length(one.seq_id) for one in snapshots] == [one.num_tokens for one in snapshots]
        assert store.num_used <= head_of(pipeline).scheduler.snapshots.num_blocks
        assert bool(store.num_used) == bool(snapshots)
    return [(one.name, one.num_tokens) for one in snapshots]


def flood(pipeline: InProcessPipeline, seed: int = 1) -> None:
    """Enough other prompts to push out all that is not pinned."""
    rng = random.Random(seed)
    for number in range(12):
        ask(pipeline, f"flood-{seed}-{number}", [rng.randrange(VOCAB_SIZE) for _ in range(100)])


def test_a_snapshot_outlives_any_pressure_until_it_is_freed() -> None:
    """Whoever asks for its tokens finds them."""
    pipeline = pipeline_of()
    ask(pipeline, "save", PROMPT, 0, SnapshotWish("system"))
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
    ask(pipeline, "save", PROMPT, 3, SnapshotWish("part", 21))
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
    ask(pipeline, "fused", PROMPT, 1, SnapshotWish("a"))
    ask(pipeline, "partly", [*PROMPT, 9, 9, 9], 1, SnapshotWish("b"))
    ask(pipeline, "before", [*PROMPT, 9, 9, 8], 1, SnapshotWish("c", 18))
    assert kept(pipeline) == [("a", 40), ("b", 43), ("c", 18)]


def test_a_miss_on_the_way_does_not_leave_half_a_snapshot() -> None:
    """The stages before it had kept theirs; all keep the second attempt."""
    pipeline = pipeline_of()
    ask(pipeline, "first", PROMPT, 1)
    pipeline.stores[1].clear()
    ask(pipeline, "save", PROMPT, 2, SnapshotWish("system"))
    assert kept(pipeline) == [("system", 40)]


def test_a_name_is_replaced_and_another_clients_is_another() -> None:
    """Only once the new one is complete."""
    pipeline = pipeline_of()
    ask(pipeline, "one", PROMPT, 1, SnapshotWish("system"))
    ask(pipeline, "two", PROMPT[:30], 1, SnapshotWish("system"))
    assert kept(pipeline) == [("system", 30)]
    assert head_of(pipeline).snapshots.of_client("stranger") == []
    head_of(pipeline).snapshots.free("stranger", "system")
    pipeline.run()
    assert kept(pipeline) == [("system", 30)]


def test_a_request_that_ends_before_the_place_leaves_nothing() -> None:
    """Cancelled while it waits, or in the middle of its prompt."""
    for num_turns in (0, 1, 4):
        pipeline = pipeline_of(chunk_tokens=5)
        pipeline.start(replace(request("r", PROMPT, 5, GREEDY), snapshot=SnapshotWish("system")))
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
    pipeline.start(replace(request("save", PROMPT, 2, GREEDY), snapshot=SnapshotWish("system")))
    head_of(pipeline).check_invariants()
    outputs = pipeline.run()
    assert kept(pipeline) == [("system", 40)]
    for number, name in enumerate("ab"):
        assert outputs[name].token_ids == expected_tokens([number] * 20, 40, 6)


def test_what_is_pinned_never_keeps_an_accepted_request_from_running() -> None:
    """A snapshot for which there is no room is refused with its request; so is a request that does not fit beside."""
    pipeline = pipeline_of(num_blocks=8)
    ask(pipeline, "save", PROMPT, 1, SnapshotWish("system"))
    pipeline.start(
        request("long", PROMPT, 41, GREEDY),
        replace(request("wish", [5] * 8, 2, GREEDY), snapshot=SnapshotWish("other", 8)),
        replace(request("too much", [5] * 33, 2, GREEDY), snapshot=SnapshotWish("other")),
        replace(request("nonsense", [5] * 8, 2, GREEDY), snapshot=SnapshotWish("other", 9)),
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


# --- nothing left to compute ---


def rows_on_hops(pipeline: InProcessPipeline) -> list[tuple[Phase, int]]:
    """Phase and rows of every slice that has crossed a hop since the last call."""
    seen = [(s.phase, s.num_rows) for _, m in pipeline.hops if isinstance(m, Step) for s in m.slices]
    pipeline.hops.clear()
    return seen


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
        ask(warm, "save", PROMPT, 0, SnapshotWish("system"))
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
    ask(pipeline, "within", PROMPT, 1, SnapshotWish("part", 18))
    assert ask(pipeline, "again", PROMPT[:18]) == 16, "its full blocks"
    assert ask(pipeline, "on", [*PROMPT[:18], 61, 62]) == 18, "to the token where the snapshot ends"
    ask(pipeline, "whole", PROMPT, 1, SnapshotWish("whole"))
    pipeline.start(replace(request("other", PROMPT, 2, GREEDY), client_id="stranger"))
    pipeline.run()
    assert rows_on_hops(pipeline)[-4:-2] == [(Phase.TRY_RESTORE_DECODE, 1)] * 2


def test_a_snapshot_can_be_made_of_one_that_is_resumed() -> None:
    """It outlives the first, and decodes at once as well."""
    pipeline = pipeline_of()
    ask(pipeline, "save", PROMPT, 0, SnapshotWish("one"))
    ask(pipeline, "copy", PROMPT, 1, SnapshotWish("two"))
    head_of(pipeline).snapshots.free("client", "one")
    flood(pipeline)
    assert kept(pipeline) == [("two", 40)]
    assert ask(pipeline, "again", PROMPT) == 40


def test_a_stage_without_the_snapshot_is_a_miss_like_any_other() -> None:
    """It cannot happen while books are kept; if it does, the prompt is computed."""
    pipeline = pipeline_of()
    ask(pipeline, "save", PROMPT, 0, SnapshotWish("system"))
    snapshot = head_of(pipeline).snapshots.of_client("client")[0]
    pipeline.stores[1].release(snapshot.seq_id)
    pipeline.stores[1].clear()
    ask(pipeline, "again", PROMPT)


# --- in files ---


def order(pipeline: InProcessPipeline, action: SnapshotAction, name: str, target: str = "") -> ErrorCode | None:
    """What the head makes of it, for the client of the requests."""
    return pipeline.ask_snapshots(SnapshotOrder(action, name, target)).code


def bring_back(pipeline: InProcessPipeline, name: str, file: str, client_id: str = "client") -> ErrorCode | None:
    """Import a snapshot; the code of its failure, if it fails."""
    asked = f"import-{next_number()}"
    wish = SnapshotWish(name, file=file)
    pipeline.start(replace(request(asked, [], 0, GREEDY), snapshot=wish, client_id=client_id))
    ending = pipeline.run()[asked].ending
    refusals = [ack.code for ack in pipeline.acks if ack.request_id == asked]
    assert ending is not None or refusals[0] is not None
    return ending.code if ending is not None else refusals[0]


next_number = itertools.count().__next__


def test_an_exported_snapshot_comes_back_on_all_stages_and_decodes_at_once(tmp_path: Path) -> None:
    """In other processes, for another name, without computing more than its last token."""
    first = pipeline_of(directory=tmp_path)
    ask(first, "save", PROMPT, 0, SnapshotWish("system"))
    assert order(first, SnapshotAction.EXPORT, "system", "rules-v1") is None
    assert [path.name.split(".")[1] for path in sorted(tmp_path.iterdir())] == [
        "snapshot",
        *(f"stage-{index}-of-3" for index in range(3)),
    ]
    second = pipeline_of(directory=tmp_path)
    assert bring_back(second, "mine", "rules-v1") is None
    assert rows_on_hops(second)[-2:] == [(Phase.TRY_RESTORE_DECODE, 1)] * 2
    assert kept(second) == [("mine", 40)]
    assert second.stores[2].statistics.fetched_tokens == 39
    flood(second)
    assert ask(second, "again", PROMPT) == 40
    assert ask(second, "longer", [*PROMPT, 1, 2, 3]) == 40


def test_an_export_can_be_replaced_by_its_owner_alone(tmp_path: Path) -> None:
    """What lies there is another client's, and stays."""
    pipeline = pipeline_of(directory=tmp_path)
    ask(pipeline, "one", PROMPT, 0, SnapshotWish("a"))
    ask(pipeline, "two", PROMPT[:30], 0, SnapshotWish("b"))
    assert order(pipeline, SnapshotAction.EXPORT, "a", "file") is None
    assert order(pipeline, SnapshotAction.EXPORT, "b", "file") is None
    asked = replace(request("theirs", PROMPT[:20], 0, GREEDY), snapshot=SnapshotWish("c"), client_id="stranger")
    pipeline.start(asked)
    pipeline.run()
    theirs = pipeline.ask_snapshots(SnapshotOrder(SnapshotAction.EXPORT, "c", "file"), "stranger")
    assert theirs.code is ErrorCode.SNAPSHOT_FILE and "another client" in theirs.detail
    assert bring_back(pipeline, "back", "file") is None
    assert ("back", 30) in kept_names(pipeline)


def kept_names(pipeline: InProcessPipeline) -> list[tuple[str, int]]:
    return [(one.name, one.num_tokens) for one in head_of(pipeline).snapshots.of_client("client")]


def test_what_cannot_be_exported_is_told_why(tmp_path: Path) -> None:
    """An unknown snapshot, a name that is no file's, stages without a directory, a disk that fails."""
    pipeline = pipeline_of(directory=tmp_path / "there")
    ask(pipeline, "save", PROMPT, 0, SnapshotWish("a"))
    assert order(pipeline, SnapshotAction.EXPORT, "b", "file") is ErrorCode.SNAPSHOT_NOT_FOUND
    for name in ("", "../file", ".hidden", "a/b", "x" * 65, "a\n"):
        assert order(pipeline, SnapshotAction.EXPORT, "a", name) is ErrorCode.INVALID_REQUEST
    without = pipeline_of()
    ask(without, "save", PROMPT, 0, SnapshotWish("a"))
    told = without.ask_snapshots(SnapshotOrder(SnapshotAction.EXPORT, "a", "file"))
    assert told.code is ErrorCode.SNAPSHOT_FILE and "--snapshot-directory" in told.detail
    (tmp_path / "there").rmdir()
    assert order(pipeline, SnapshotAction.EXPORT, "a", "file") is ErrorCode.SNAPSHOT_FILE
    assert order(pipeline, SnapshotAction.EXPORT, "a", "file") is ErrorCode.SNAPSHOT_FILE, "asked again, told again"
    assert kept(pipeline) == [("a", 40)]


@pytest.mark.parametrize("damage", ["missing part", "flipped byte", "other export", "no manifest", "bad manifest"])
def test_a_file_that_is_not_whole_is_imported_on_no_stage(tmp_path: Path, damage: str) -> None:
    """The request fails with a reason, and everything else goes on."""
    first = pipeline_of(directory=tmp_path)
    ask(first, "save", PROMPT, 0, SnapshotWish("a"))
    ask(first, "other", PROMPT[::-1], 0, SnapshotWish("b"))
    assert order(first, SnapshotAction.EXPORT, "a", "a") is order(first, SnapshotAction.EXPORT, "b", "b") is None
    (part,), manifest = tmp_path.glob("a.stage-1-of-3.*"), tmp_path / "a.snapshot.json"
    if damage == "missing part":
        part.unlink()
    elif damage == "flipped byte":
        data = bytearray(part.read_bytes())
        data[-7] ^= 1
        part.write_bytes(data)
    elif damage == "other export":
        part.write_bytes(next(tmp_path.glob("b.stage-1-of-3.*")).read_bytes())
    elif damage == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text(manifest.read_text()[:100])
    second = pipeline_of(directory=tmp_path)
    assert bring_back(second, "mine", "a") is ErrorCode.SNAPSHOT_FILE
    assert kept(second) == []
    assert head_of(second).scheduler.blocks.num_free == 20
    for core in second.cores:
        assert core.assembly is not None and core.assembly.executor.files.num_staged == 0
    assert bring_back(second, "mine", "b") is None
    assert ask(second, "after", PROMPT) == 0


def test_a_snapshot_of_other_weights_or_another_cut_is_not_imported(tmp_path: Path) -> None:
    """Its blocks would be wrong; the reason says what to do instead."""
    first = pipeline_of(directory=tmp_path)
    ask(first, "save", PROMPT, 0, SnapshotWish("a"))
    assert order(first, SnapshotAction.EXPORT, "a", "a") is None
    assert bring_back(pipeline_of(directory=tmp_path, weights=1), "a", "a") is ErrorCode.SNAPSHOT_FILE
    operators = [ToyOperators(*cut, 6, 20) for cut in [(0, 2), (2, 6)]]
    other_cut = InProcessPipeline(operators, 2, VOCAB_SIZE, directory=tmp_path)
    assert bring_back(other_cut, "a", "a") is ErrorCode.SNAPSHOT_FILE


def test_an_import_beside_which_an_accepted_request_would_not_fit_is_refused(tmp_path: Path) -> None:
    """As if its prompt had been sent."""
    first = pipeline_of(directory=tmp_path)
    ask(first, "save", PROMPT, 0, SnapshotWish("a"))
    assert order(first, SnapshotAction.EXPORT, "a", "a") is None
    small = pipeline_of(num_blocks=4, directory=tmp_path)
    small.start(request("long", [5] * 30, 20, GREEDY))
    assert bring_back(small, "a", "a") is ErrorCode.SNAPSHOT_LIMIT
    assert small.outputs["long"].token_ids == expected_tokens([5] * 30, 20, 6)
    assert bring_back(small, "", "a") is bring_back(small, "a", "../a") is ErrorCode.INVALID_REQUEST


def test_a_snapshot_that_is_freed_or_replaced_while_it_is_exported_stays_until_that_is_done(tmp_path: Path) -> None:
    """Nobody finds it any more, and its blocks are nobody else's before the files are written."""
    pipeline = pipeline_of(directory=tmp_path)
    for end in ("free", "replace", "rename"):
        ask(pipeline, f"save-{end}", PROMPT, 0, SnapshotWish("a"))
        asked = AskHeadSnapshots(900, "client", SnapshotOrder(SnapshotAction.EXPORT, "a", end))
        pipeline.perform_control(0, asked)
        assert pipeline.do_job(), "the manifest was looked for"
        assert pipeline.turn(0) and pipeline.turn(1) and pipeline.turn(2) and len(pipeline.jobs) == 3
        head = head_of(pipeline)
        if end == "free":
            head.snapshots.free("client", "a")
        elif end == "rename":
            order_only = AskHeadSnapshots(901, "client", SnapshotOrder(SnapshotAction.RENAME, "a", "c"))
            pipeline.perform_control(0, order_only)
        else:
            jobs, pipeline.jobs = pipeline.jobs, []
            ask(pipeline, "again", PROMPT[:30], 0, SnapshotWish("a"))
            pipeline.jobs = jobs
        jobs, pipeline.jobs = pipeline.jobs, []
        flood(pipeline, seed=len(end))
        pipeline.jobs = jobs
        pipeline.run()
        assert pipeline.reports[-1].code is None
        assert bring_back(pipeline_of(directory=tmp_path), "back", end) is None
        for name, _ in kept_names(pipeline):
            head.snapshots.free("client", name)
        pipeline.run()
        assert kept(pipeline) == []
    fresh = pipeline_of(directory=tmp_path)
    assert bring_back(fresh, "back", "replace") is None
    assert ask(fresh, "again", PROMPT) == 40


def test_a_cancel_of_an_import_leaves_nothing_behind(tmp_path: Path) -> None:
    """At any point between its start and its end."""
    first = pipeline_of(directory=tmp_path)
    ask(first, "save", PROMPT, 0, SnapshotWish("a"))
    assert order(first, SnapshotAction.EXPORT, "a", "a") is None
    for num_jobs in range(5):
        pipeline = pipeline_of(directory=tmp_path)
        wish = SnapshotWish("mine", file="a")
        pipeline.start(replace(request("import", [], 0, GREEDY), snapshot=wish))
        for _ in range(num_jobs):
            for index in range(3):
                pipeline.turn(index)
            pipeline.do_job()
        pipeline.cancel("import")
        ending = pipeline.run()["import"].ending
        assert ending is not None
        assert (ending.finish_reason is FinishReason.CANCELLED) == (kept(pipeline) == [])
        for core in pipeline.cores:
            assert core.assembly is not None and core.assembly.executor.files.num_staged == 0


# --- names ---


def test_a_snapshot_can_be_renamed_onto_another(tmp_path: Path) -> None:
    """The one that had the name goes."""
    pipeline = pipeline_of(directory=tmp_path)
    ask(pipeline, "one", PROMPT, 0, SnapshotWish("a"))
    ask(pipeline, "two", PROMPT[:30], 0, SnapshotWish("b"))
    assert order(pipeline, SnapshotAction.RENAME, "a", "b") is None
    assert kept(pipeline) == [("b", 40)]
    assert order(pipeline, SnapshotAction.RENAME, "b", "b") is None
    assert order(pipeline, SnapshotAction.RENAME, "a", "c") is ErrorCode.SNAPSHOT_NOT_FOUND
    assert order(pipeline, SnapshotAction.RENAME, "b", "") is ErrorCode.INVALID_REQUEST
    assert kept(pipeline) == [("b", 40)]


def test_a_request_that_names_a_snapshot_needs_it_to_be_there() -> None:
    """A prompt that is shorter, or differs, shares what it can, and is computed from there."""
    pipeline = pipeline_of()
    ask(pipeline, "save", PROMPT, 0, SnapshotWish("a"))
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


def test_an_export_that_fails_half_way_leaves_the_last_one_whole(tmp_path: Path) -> None:
    """Parts are named after their content, and only the manifest says which are meant."""
    first = pipeline_of(directory=tmp_path)
    ask(first, "save", PROMPT, 0, SnapshotWish("a"))
    assert order(first, SnapshotAction.EXPORT, "a", "file") is None
    first.runners[2] = FileRunner(None, None)
    for number in range(6):
        ask(first, f"again-{number}", [number, *PROMPT[::-1]], 0, SnapshotWish("a"))
        for path in tmp_path.iterdir():
            os.utime(path, (1e9, 1e9))
        assert order(first, SnapshotAction.EXPORT, "a", "file") is ErrorCode.SNAPSHOT_FILE
        assert len(list(tmp_path.glob("file.stage-0-of-3.*"))) == 2
    second = pipeline_of(directory=tmp_path)
    assert bring_back(second, "a", "file") is None
    assert ask(second, "of the first", PROMPT) == 40


def test_the_directory_has_a_budget_and_keeps_few_parts_of_a_name(tmp_path: Path) -> None:
    """Beyond it the caller is told; parts that nobody can mean any more go."""
    pipeline = pipeline_of(directory=tmp_path)
    for number in range(7):
        ask(pipeline, f"save-{number}", [number, *PROMPT], 0, SnapshotWish("a"))
        for path in tmp_path.iterdir():
            os.utime(path, (1e9, 1e9))
        assert order(pipeline, SnapshotAction.EXPORT, "a", "file") is None
    assert len(list(tmp_path.glob("file.stage-0-of-3.*"))) == 2, "the one that counts, and the one that it replaced"
    assert bring_back(pipeline_of(directory=tmp_path), "a", "file") is None
    num_bytes = sum(path.stat().st_size for path in tmp_path.iterdir())
    pipeline.runners = [FileRunner(SnapshotDirectory(tmp_path, num_bytes), None) for _ in range(3)]
    assert order(pipeline, SnapshotAction.EXPORT, "a", "other") is ErrorCode.SNAPSHOT_LIMIT
    assert bring_back(pipeline_of(directory=tmp_path), "a", "other") is ErrorCode.SNAPSHOT_FILE


def test_files_that_are_not_read_or_written_in_a_minute_are_given_up(tmp_path: Path) -> None:
    """A disk that hangs holds up one request, and not for ever; what comes later changes nothing."""
    first = pipeline_of(directory=tmp_path)
    ask(first, "save", PROMPT, 0, SnapshotWish("a"))
    assert order(first, SnapshotAction.EXPORT, "a", "file") is None
    for num_jobs in range(5):
        pipeline = pipeline_of(directory=tmp_path)
        ask(pipeline, "save", PROMPT[:30], 0, SnapshotWish("b"))
        pipeline.perform_control(0, AskHeadSnapshots(900, "client", SnapshotOrder(SnapshotAction.EXPORT, "b", "b")))
        hang(pipeline, num_jobs)
        assert [report.code for report in pipeline.reports] == [ErrorCode.SNAPSHOT_FILE]
        pipeline.start(replace(request("import", [], 0, GREEDY), snapshot=SnapshotWish("mine", file="file")))
        hang(pipeline, num_jobs)
        ending = pipeline.run()["import"].ending
        assert ending is not None
        assert ending.code is ErrorCode.SNAPSHOT_FILE or num_jobs == 4
        assert kept(pipeline) == ([("b", 30)] if ending.code else [("b", 30), ("mine", 40)])


def hang(pipeline: InProcessPipeline, num_jobs: int) -> None:
    """Do so many jobs, then let a minute pass; the rest is done after that."""
    for _ in range(num_jobs):
        for _ in range(4):
            for index in range(3):
                pipeline.turn(index)
        pipeline.do_job()
    for index in range(3):
        pipeline.turn(index)
    pipeline.tick(61.0)
    pipeline.run()


def test_too_many_imports_at_once_are_refused_and_may_be_tried_again(tmp_path: Path) -> None:
    """Eight orders are open at most, and as much is held of what was read."""
    first = pipeline_of(directory=tmp_path)
    ask(first, "save", PROMPT[:8], 0, SnapshotWish("a"))
    assert order(first, SnapshotAction.EXPORT, "a", "file") is None
    pipeline = pipeline_of(directory=tmp_path, num_blocks=40)
    for number in range(20):
        asked = replace(request(f"r{number}", [], 0, GREEDY), snapshot=SnapshotWish(f"s{number}", file="file"))
        pipeline.start(asked)
    pipeline.run()
    refused = {ack.request_id: ack.code for ack in pipeline.acks if ack.code}
    assert refused == {f"r{number}": ErrorCode.QUEUE_FULL for number in range(8, 20)}
    assert len(kept(pipeline)) == 8


def test_a_snapshot_made_of_one_without_logits_has_none_either() -> None:
    """It would be drawn from what is not there."""
    pipeline = pipeline_of()
    ask(pipeline, "first", PROMPT, 1)
    ask(pipeline, "within", PROMPT, 1, SnapshotWish("a", 18))
    ask(pipeline, "behind", [*PROMPT[:18], 60, 61], 1, SnapshotWish("b", 18))
    assert [one.has_logits for one in head_of(pipeline).snapshots.of_client("client")] == [False, False]
    assert ask(pipeline, "again", PROMPT[:18]) == 16
    ask(pipeline, "computed", [*PROMPT[:16], 50, 51], 1, SnapshotWish("c"))
    ask(pipeline, "of c", [*PROMPT[:16], 50, 51, 52, 53], 1, SnapshotWish("d", 18))
    assert [one.has_logits for one in head_of(pipeline).snapshots.of_client("client")] == [False, False, True, True]
    assert ask(pipeline, "at once", [*PROMPT[:16], 50, 51]) == 18


def test_a_prompt_beside_a_file_is_refused(tmp_path: Path) -> None:
    """The file has its own; nothing is kept of either."""
    first = pipeline_of(directory=tmp_path)
    ask(first, "save", PROMPT, 0, SnapshotWish("a"))
    assert order(first, SnapshotAction.EXPORT, "a", "a") is None
    first.start(replace(request("both", [5, 6], 3, GREEDY), snapshot=SnapshotWish("b", file="a")))
    first.run()
    assert first.acks[-1].code is ErrorCode.INVALID_REQUEST
    assert kept(first) == [("a", 40)]


def test_snapshots_never_hold_more_than_half_of_the_pool(tmp_path: Path) -> None:
    """Whoever has gone cannot free them, and nobody else may."""
    pipeline = pipeline_of(num_blocks=8)
    ask(pipeline, "save", PROMPT, 1, SnapshotWish("a"))
    pipeline.start(replace(request("more", [5] * 30, 2, GREEDY), snapshot=SnapshotWish("b")))
    pipeline.start(request("long", [5] * 90, 2, GREEDY))
    pipeline.run()
    assert [ack.code for ack in pipeline.acks[-2:]] == [ErrorCode.SNAPSHOT_LIMIT, ErrorCode.CONTEXT_OVERFLOW]
    assert "snapshots keep 48" in pipeline.acks[-1].detail


def test_an_export_whose_pipeline_ends_is_answered(tmp_path: Path) -> None:
    """At once, and not with success."""
    pipeline = pipeline_of(directory=tmp_path)
    ask(pipeline, "save", PROMPT, 0, SnapshotWish("a"))
    pipeline.perform_control(0, AskHeadSnapshots(900, "client", SnapshotOrder(SnapshotAction.EXPORT, "a", "a")))
    assert pipeline.reports == []
    pipeline.perform_control(0, Dissolve(EPOCH))
    assert [report.code for report in pipeline.reports] == [ErrorCode.STAGE_LOST]
    for action, code in (
        (SnapshotAction.EXPORT, ErrorCode.STAGE_LOST), (SnapshotAction.RENAME, ErrorCode.STAGE_LOST),
        (SnapshotAction.LIST, None), (SnapshotAction.FREE, None),
    ):  # fmt: skip
        pipeline.perform_control(0, AskHeadSnapshots(901, "client", SnapshotOrder(action, "a", "b")))
        assert pipeline.reports[-1].code is code


def test_an_export_that_was_given_up_does_not_end_the_next_one_of_its_snapshot(tmp_path: Path) -> None:
    """What its files say then is of another file."""
    pipeline = pipeline_of(directory=tmp_path)
    ask(pipeline, "save", PROMPT, 0, SnapshotWish("a"))
    pipeline.perform_control(0, AskHeadSnapshots(900, "client", SnapshotOrder(SnapshotAction.EXPORT, "a", "one")))
    late = pipeline.jobs.pop()
    pipeline.tick(61.0)
    pipeline.perform_control(0, AskHeadSnapshots(901, "client", SnapshotOrder(SnapshotAction.EXPORT, "a", "two")))
    pipeline.jobs.insert(0, late)
    pipeline.run()
    assert [(report.ticket, report.code) for report in pipeline.reports] == [
        (900, ErrorCode.SNAPSHOT_FILE),
        (901, None),
    ]
    assert bring_back(pipeline_of(directory=tmp_path), "b", "two") is None
    assert bring_back(pipeline_of(directory=tmp_path), "b", "one") is ErrorCode.SNAPSHOT_FILE


# --- the directory ---


def manifest_of(**fields: object) -> Manifest:
    given = {"client_id": "c", "model": "m", "block_size": 16, "token_ids": (1, 2), "digests": ("a" * 64,)}
    return Manifest(**(given | fields))  # type: ignore[arg-type]


def test_of_two_that_write_a_manifest_of_one_name_one_is_told_that_it_was_late(tmp_path: Path) -> None:
    """Whether there was one before or not."""
    directory, first = SnapshotDirectory(tmp_path, 1 << 20), manifest_of()
    directory.commit("x", first, None)
    with pytest.raises(SnapshotFileError, match="somebody else"):
        directory.commit("x", manifest_of(client_id="d"), None)
    directory.commit("x", manifest_of(client_id="e"), first)
    with pytest.raises(SnapshotFileError, match="somebody else"):
        directory.commit("x", manifest_of(client_id="f"), first)
    assert directory.manifest("x") == manifest_of(client_id="e")
    assert [path.name for path in tmp_path.iterdir()] == ["x.snapshot.json"]


@pytest.mark.parametrize(
    "change",
    [
        {"digests": ("a" * 5000,)}, {"digests": ("../x",)}, {"digests": (1,)}, {"digests": "a" * 64},
        {"client_id": 5}, {"token_ids": ()}, {"more": 1},
    ],
)  # fmt: skip
def test_a_manifest_that_says_something_else_is_none(tmp_path: Path, change: dict[str, object]) -> None:
    """Whatever it says would go out to all stages."""
    fields = json.loads(encode_manifest(manifest_of())) | change
    with pytest.raises(SnapshotFileError):
        decode_manifest(json.dumps(fields).encode())


def test_what_is_no_regular_file_or_too_long_is_not_read(tmp_path: Path) -> None:
    """A pipe would never end, and a huge file would fill the memory."""
    directory = SnapshotDirectory(tmp_path, 1 << 20)
    os.mkfifo(tmp_path / "pipe.snapshot.json")
    (tmp_path / "folder.snapshot.json").mkdir()
    with (tmp_path / "huge.snapshot.json").open("wb") as file:
        file.truncate(1 << 33)
    for name in ("pipe", "folder", "huge"):
        with pytest.raises(OSError, match=r"regular|bytes|directory"):
            directory.manifest(name)
    assert directory.manifest("nothing") is None


def test_other_files_in_the_directory_are_in_nobodys_way(tmp_path: Path) -> None:
    """Links to nowhere, files that vanish, snapshots whose names begin alike; what a killed process left goes."""
    for name in (".x.snapshot.json.77", ".young"):
        (tmp_path / name).write_text("left")
    os.utime(tmp_path / ".x.snapshot.json.77", (1e9, 1e9))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    directory = SnapshotDirectory(tmp_path, 1 << 20)
    alike = directory.write_part("x.stage-0-of-2", b"good", "")
    for path in tmp_path.glob("x*"):
        os.utime(path, (1e9, 1e9))
    directory.write_part("x", b"other", "")
    assert directory.read_part("x.stage-0-of-2", alike, 100) == b"good"
    assert sorted(path.name for path in tmp_path.glob(".*")) == [".young"]
