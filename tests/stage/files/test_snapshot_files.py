"""Exports and imports over whole pipelines: on all stages or on none, and the last whole one stays."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.in_process import EPOCH, InProcessPipeline, request
from support.snapshots import (
    GREEDY,
    PROMPT,
    ask,
    bring_back,
    flood,
    head_of,
    kept,
    kept_names,
    order,
    pipeline_of,
    rows_on_hops,
)
from support.toy_operators import VOCAB_SIZE, ToyOperators, expected_tokens

from stagewire.stage.files.runner import FileRunner
from stagewire.stage.files.snapshot_directory import SnapshotDirectory
from stagewire.wire.control import Dissolve
from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import FinishReason, SnapshotRequest
from stagewire.wire.ring import Phase
from stagewire.wire.snapshots import AskHeadSnapshots, SnapshotAction, SnapshotOrder


def test_an_exported_snapshot_comes_back_on_all_stages_and_decodes_at_once(tmp_path: Path) -> None:
    """In other processes, for another name, without computing more than its last token."""
    first = pipeline_of(directory=tmp_path)
    ask(first, "save", PROMPT, 0, SnapshotRequest("system"))
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
    ask(pipeline, "one", PROMPT, 0, SnapshotRequest("a"))
    ask(pipeline, "two", PROMPT[:30], 0, SnapshotRequest("b"))
    assert order(pipeline, SnapshotAction.EXPORT, "a", "file") is None
    assert order(pipeline, SnapshotAction.EXPORT, "b", "file") is None
    asked = replace(request("theirs", PROMPT[:20], 0, GREEDY), snapshot=SnapshotRequest("c"), client_id="stranger")
    pipeline.start(asked)
    pipeline.run()
    theirs = pipeline.ask_snapshots(SnapshotOrder(SnapshotAction.EXPORT, "c", "file"), "stranger")
    assert theirs.code is ErrorCode.SNAPSHOT_FILE and "another client" in theirs.detail
    assert bring_back(pipeline, "back", "file") is None
    assert ("back", 30) in kept_names(pipeline)


def test_what_cannot_be_exported_is_told_why(tmp_path: Path) -> None:
    """An unknown snapshot, a name that is no file's, stages without a directory, a disk that fails."""
    pipeline = pipeline_of(directory=tmp_path / "there")
    ask(pipeline, "save", PROMPT, 0, SnapshotRequest("a"))
    assert order(pipeline, SnapshotAction.EXPORT, "b", "file") is ErrorCode.SNAPSHOT_NOT_FOUND
    for name in ("", "../file", ".hidden", "a/b", "x" * 65, "a\n"):
        assert order(pipeline, SnapshotAction.EXPORT, "a", name) is ErrorCode.INVALID_REQUEST
    without = pipeline_of()
    ask(without, "save", PROMPT, 0, SnapshotRequest("a"))
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
    ask(first, "save", PROMPT, 0, SnapshotRequest("a"))
    ask(first, "other", PROMPT[::-1], 0, SnapshotRequest("b"))
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
        assert core.stage_epoch is not None and core.stage_epoch.executor.files.num_staged == 0
    assert bring_back(second, "mine", "b") is None
    assert ask(second, "after", PROMPT) == 0


def test_a_snapshot_of_other_weights_or_another_cut_is_not_imported(tmp_path: Path) -> None:
    """Its blocks would be wrong; the reason says what to do instead."""
    first = pipeline_of(directory=tmp_path)
    ask(first, "save", PROMPT, 0, SnapshotRequest("a"))
    assert order(first, SnapshotAction.EXPORT, "a", "a") is None
    assert bring_back(pipeline_of(directory=tmp_path, weights=1), "a", "a") is ErrorCode.SNAPSHOT_FILE
    operators = [ToyOperators(*cut, 6, 20) for cut in [(0, 2), (2, 6)]]
    other_cut = InProcessPipeline(operators, 2, VOCAB_SIZE, directory=tmp_path)
    assert bring_back(other_cut, "a", "a") is ErrorCode.SNAPSHOT_FILE


def test_an_import_beside_which_an_accepted_request_would_not_fit_is_refused(tmp_path: Path) -> None:
    """As if its prompt had been sent."""
    first = pipeline_of(directory=tmp_path)
    ask(first, "save", PROMPT, 0, SnapshotRequest("a"))
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
        ask(pipeline, f"save-{end}", PROMPT, 0, SnapshotRequest("a"))
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
            ask(pipeline, "again", PROMPT[:30], 0, SnapshotRequest("a"))
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
    ask(first, "save", PROMPT, 0, SnapshotRequest("a"))
    assert order(first, SnapshotAction.EXPORT, "a", "a") is None
    for num_jobs in range(5):
        pipeline = pipeline_of(directory=tmp_path)
        wish = SnapshotRequest("mine", file="a")
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
            assert core.stage_epoch is not None and core.stage_epoch.executor.files.num_staged == 0


def test_an_export_that_fails_half_way_leaves_the_last_one_whole(tmp_path: Path) -> None:
    """Parts are named after their content, and only the manifest says which are meant."""
    first = pipeline_of(directory=tmp_path)
    ask(first, "save", PROMPT, 0, SnapshotRequest("a"))
    assert order(first, SnapshotAction.EXPORT, "a", "file") is None
    first.runners[2] = FileRunner(None, None)
    for number in range(6):
        ask(first, f"again-{number}", [number, *PROMPT[::-1]], 0, SnapshotRequest("a"))
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
        ask(pipeline, f"save-{number}", [number, *PROMPT], 0, SnapshotRequest("a"))
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
    ask(first, "save", PROMPT, 0, SnapshotRequest("a"))
    assert order(first, SnapshotAction.EXPORT, "a", "file") is None
    for num_jobs in range(5):
        pipeline = pipeline_of(directory=tmp_path)
        ask(pipeline, "save", PROMPT[:30], 0, SnapshotRequest("b"))
        pipeline.perform_control(0, AskHeadSnapshots(900, "client", SnapshotOrder(SnapshotAction.EXPORT, "b", "b")))
        hang(pipeline, num_jobs)
        assert [report.code for report in pipeline.reports] == [ErrorCode.SNAPSHOT_FILE]
        pipeline.start(replace(request("import", [], 0, GREEDY), snapshot=SnapshotRequest("mine", file="file")))
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
    ask(first, "save", PROMPT[:8], 0, SnapshotRequest("a"))
    assert order(first, SnapshotAction.EXPORT, "a", "file") is None
    pipeline = pipeline_of(directory=tmp_path, num_blocks=40)
    for number in range(20):
        asked = replace(request(f"r{number}", [], 0, GREEDY), snapshot=SnapshotRequest(f"s{number}", file="file"))
        pipeline.start(asked)
    pipeline.run()
    refused = {ack.request_id: ack.code for ack in pipeline.acks if ack.code}
    assert refused == {f"r{number}": ErrorCode.QUEUE_FULL for number in range(8, 20)}
    assert len(kept(pipeline)) == 8


def test_a_prompt_beside_a_file_is_refused(tmp_path: Path) -> None:
    """The file has its own; nothing is kept of either."""
    first = pipeline_of(directory=tmp_path)
    ask(first, "save", PROMPT, 0, SnapshotRequest("a"))
    assert order(first, SnapshotAction.EXPORT, "a", "a") is None
    first.start(replace(request("both", [5, 6], 3, GREEDY), snapshot=SnapshotRequest("b", file="a")))
    first.run()
    assert first.acks[-1].code is ErrorCode.INVALID_REQUEST
    assert kept(first) == [("a", 40)]


def test_an_export_whose_pipeline_ends_is_answered(tmp_path: Path) -> None:
    """At once, and not with success."""
    pipeline = pipeline_of(directory=tmp_path)
    ask(pipeline, "save", PROMPT, 0, SnapshotRequest("a"))
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
    ask(pipeline, "save", PROMPT, 0, SnapshotRequest("a"))
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
