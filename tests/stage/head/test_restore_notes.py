"""Restores and snapshots can be followed in the head's log."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from support.in_process import EPOCH, InProcessPipeline, request
from support.snapshots import GREEDY, PROMPT, ask, order, pipeline_of

from stagewire.monitoring.metrics import EXPORT_TIME, FETCH_TIME, RESTORE_TIME
from stagewire.stage.files.disk_tier import DiskTier
from stagewire.stage.timing.head_times import HeadMeasures
from stagewire.stage.timing.restore_note import RestoreOutcome, outcome_of, restore_note
from stagewire.wire.note import Note
from stagewire.wire.request import CacheStatistics, Restored, SnapshotRequest
from stagewire.wire.ring import StepResult
from stagewire.wire.snapshots import SnapshotAction

HEAD = 0


def fields_of(note: Note) -> dict[str, str]:
    return dict(word.split("=", 1) for word in note.fields.split())


def told(pipeline: InProcessPipeline, event: str) -> list[dict[str, str]]:
    """What the head has written of this event since the last call."""
    found = [fields_of(note) for index, note in pipeline.notes if note.event == event and index == HEAD]
    pipeline.notes.clear()
    return found


def bytes_of(pipeline: InProcessPipeline, *num_tokens: int) -> str:
    sizes = [operators.block_bytes for operators in pipeline.operators]
    return str(sum(num * size // 16 for num, size in zip(num_tokens, sizes, strict=True)))


def test_each_restore_writes_one_line_that_says_what_was_found_and_where_not() -> None:
    """A hit, a miss at either stage, a beginning, a snapshot; a cold prompt writes none."""
    pipeline = pipeline_of(num_blocks=100)
    ask(pipeline, "cold", PROMPT)
    assert told(pipeline, "restore") == []
    ask(pipeline, "whole", PROMPT)
    (line,) = told(pipeline, "restore")
    assert line == {
        "request": "whole", "session": "s", "epoch": str(EPOCH), "outcome": "hit", "missed_at": "-", "asked": "39",
        "tokens": "39", "fetched": "0", "bytes": bytes_of(pipeline, 39, 39, 39), "evicted": "0", "elapsed_ms": "0.00",
    }  # fmt: skip
    for missing in (1, 2):
        pipeline.stores[missing].clear()
        ask(pipeline, f"missed at {missing}".replace(" ", "-"), PROMPT)
        (line,) = told(pipeline, "restore")
        assert (line["outcome"], line["missed_at"], line["tokens"]) == ("miss", str(missing), "0")
    ask(pipeline, "part", [*PROMPT[:30], 1, 2, 3])
    (line,) = told(pipeline, "restore")
    assert (line["outcome"], line["asked"], line["tokens"]) == ("hit", "16", "16")
    ask(pipeline, "save", PROMPT, 1, SnapshotRequest("kept"))
    pipeline.notes.clear()
    ask(pipeline, "resumed", PROMPT)
    (line,) = told(pipeline, "restore")
    assert (line["outcome"], line["asked"], line["tokens"]) == ("hit", "40", "40")


@pytest.mark.parametrize(
    ("lengths", "missed_at", "num_bytes"),
    [((32, 16, 16), 1, (32, 16, 16)), ((32, 32, 16), 2, (32, 32, 16)), ((32, 0, 32), 1, (32, 0, 0))],
)
def test_a_part_is_what_all_hold_and_who_held_less_first_is_named(
    lengths: tuple[int, int, int], missed_at: int, num_bytes: tuple[int, int, int]
) -> None:
    """With the bytes that each stage has taken of it."""
    pipeline = pipeline_of(num_blocks=100)
    ask(pipeline, "long", PROMPT[:32])
    for store, length in zip(pipeline.stores, lengths, strict=True):
        if length < 32:
            store.clear()
    if min(lengths):
        ask(pipeline, "short", [*PROMPT[:16], 63])
    pipeline.notes.clear()
    ask(pipeline, "again", PROMPT)
    first, *others = told(pipeline, "restore")
    assert (first["asked"], first["tokens"], first["missed_at"]) == ("32", str(min(lengths)), str(missed_at))
    assert first["outcome"] == ("partial" if min(lengths) else "miss")
    assert first["bytes"] == bytes_of(pipeline, *num_bytes)
    assert [line["outcome"] for line in others] == (["hit"] if min(lengths) else [])


@pytest.mark.parametrize(
    ("restored", "outcome"),
    [
        (Restored(1, 5, 5), RestoreOutcome.HIT),
        (Restored(1, 4, 5, missed_at=2), RestoreOutcome.PARTIAL),
        (Restored(1, 0, 5, missed_at=0), RestoreOutcome.MISS),
    ],
)
def test_the_line_holds_all_that_is_known(restored: Restored, outcome: RestoreOutcome) -> None:
    """Also what others lost for it, and how long the step took; a client's names stay in their fields."""
    asked = replace(request("r 1", [1], 1, GREEDY), session_id="s\nevent=x")
    result = StepResult(3, (), (), (restored,), (), CacheStatistics(evicted_blocks=7))
    note = restore_note(asked, replace(restored, num_bytes=640, num_fetched=3), result, 0.0125, EPOCH)
    missed_at = "-" if restored.missed_at is None else restored.missed_at
    assert outcome_of(restored) is outcome
    assert (note.event, note.is_detail) == ("restore", True)
    assert note.fields == (
        f"request='r 1' session='s\\nevent=x' epoch={EPOCH} outcome={outcome.value} missed_at={missed_at} asked=5 "
        f"tokens={restored.num_tokens} fetched=3 bytes=640 evicted=7 elapsed_ms=12.50"
    )


def test_details_are_written_at_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("stagewire.test")
    for level, number in ((logging.INFO, 1), (logging.DEBUG, 2)):
        caplog.clear()
        with caplog.at_level(level, logger="stagewire.test"):
            Note("restore", "a=1", is_detail=True).write(log)
            Note("snapshot_saved", "a=1").write(log)
        assert len(caplog.records) == number


def test_a_snapshot_that_is_complete_is_told_once() -> None:
    """With its client, its length, and what all of them hold then; one that never is, is not."""
    pipeline = pipeline_of(num_blocks=100)
    ask(pipeline, "one", PROMPT, 1, SnapshotRequest("rules"))
    ask(pipeline, "two", PROMPT[:32], 1, SnapshotRequest("a name", 16))
    found = [note.fields for _, note in pipeline.notes if note.event == "snapshot_saved"]
    assert found == [
        f"client=client name=rules epoch={EPOCH} tokens=40 pinned_blocks=3",
        f"client=client name='a name' epoch={EPOCH} tokens=16 pinned_blocks=3",
    ]
    pipeline.notes.clear()
    pipeline.start(replace(request("gone", PROMPT, 5, GREEDY), snapshot=SnapshotRequest("never")))
    pipeline.cancel("gone")
    pipeline.run()
    assert told(pipeline, "snapshot_saved") == []


def head_measures(pipeline: InProcessPipeline) -> HeadMeasures:
    return pipeline.cores[HEAD].measures.head


def test_restores_fetches_and_exports_are_timed(tmp_path: Path) -> None:
    """One observation each, by the head's clock, in buckets that the table names."""
    tiers = [DiskTier(tmp_path / str(index), 1 << 20) for index in range(3)]
    pipeline = pipeline_of(num_blocks=100, tiers=tiers, directory=tmp_path)
    measures = head_measures(pipeline)
    ask(pipeline, "cold", PROMPT)
    ask(pipeline, "warm", PROMPT)
    counts = {outcome.value: seconds.count for outcome, seconds in measures.restore_s.items()}
    assert counts == {"hit": 1, "partial": 0, "miss": 0}
    for disk in pipeline.disks:
        disk.close()
    for store in pipeline.stores:
        store.clear()
    ask(pipeline, "from files", PROMPT)
    assert measures.fetch_s.count == 1
    ask(pipeline, "save", PROMPT, 1, SnapshotRequest("rules"))
    pipeline.notes.clear()
    assert order(pipeline, SnapshotAction.EXPORT, "rules", "rules-v1") is None
    assert measures.export_s.count == 1
    (line,) = told(pipeline, "snapshot_exported")
    assert (line["name"], line["file"], line["tokens"]) == ("rules", "rules-v1", "40")
    assert order(pipeline, SnapshotAction.EXPORT, "unknown", "x") is not None
    assert measures.export_s.count == 1, "what fails is not timed"
    assert RESTORE_TIME.labels == ("outcome",) and FETCH_TIME.labels == EXPORT_TIME.labels == ()
