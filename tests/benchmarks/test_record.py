"""A run does not lose its work: what is kept and when, what is left out, and where a run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.compare import Plan, SideBySide
from bench.llama_side import LlamaFailedError
from bench.record import Machine, Record, read_machine, read_machines
from bench.results import TOKENS_PER_S, row
from bench.stagewire_side import MeasurementError
from bench.turns import Rules


def silent(_line: str) -> None:
    pass


def adding(record: Record, work: str, rate: float = 1.0) -> Callable[[], None]:
    return lambda: record.rows.append(row(work, "llama.cpp", TOKENS_PER_S, rate, 1.0, 3))


def refusing(words: str) -> Callable[[], None]:
    def measure() -> None:
        raise MeasurementError(words)

    return measure


def interrupted() -> None:
    raise KeyboardInterrupt


def kept(path: Path) -> Machine:
    (machine,) = read_machines(path)
    return machine


def works(path: Path) -> dict[str, float]:
    return {one.work: one.ours for one in kept(path).results.rows}


def record_at(path: Path, *, is_resumed: bool = False) -> Record:
    return Record("bench", silent, is_resumed=is_resumed, path=path)


def test_a_row_is_in_the_files_as_soon_as_its_step_is_done(tmp_path: Path) -> None:
    """So that whatever ends the run later takes nothing with it."""
    published: list[list[str]] = []
    record = Record("bench", silent, path=tmp_path, publish=lambda: published.append(list(works(tmp_path))))
    record.step("decode_1", adding(record, "decode_1"))
    assert list(works(tmp_path)) == ["decode_1"]
    assert published == [["decode_1"]], "the page says what the files say"
    with pytest.raises(KeyboardInterrupt):
        record.step("decode_8", interrupted)
    assert list(works(tmp_path)) == ["decode_1"]


def test_what_cannot_be_measured_is_left_out_with_its_reason_and_the_run_goes_on(tmp_path: Path) -> None:
    record = record_at(tmp_path)
    record.step("decode_8", refusing("a stream brought 55 tokens"))
    record.step("decode_1", adding(record, "decode_1"))
    assert kept(tmp_path).measured.notes == ["decode_8 was left out: a stream brought 55 tokens."]
    assert list(works(tmp_path)) == ["decode_1"]


def test_an_interrupted_run_goes_on_behind_its_last_step(tmp_path: Path) -> None:
    """What it left out stays left out, and its notes stay; what an earlier run measured is measured again."""
    earlier = record_at(tmp_path)
    for work in ("decode_1", "decode_16"):
        earlier.step(work, adding(earlier, work, 1.0))
    earlier.finish()
    stopped = record_at(tmp_path)
    stopped.step("decode_1", adding(stopped, "decode_1", 2.0))
    stopped.step("decode_8", refusing("too short"))
    resumed = record_at(tmp_path, is_resumed=True)
    for work in ("decode_1", "decode_8", "decode_16"):
        resumed.step(work, adding(resumed, work, 3.0))
    machine = resumed.finish()
    assert works(tmp_path) == {"decode_1": 2.0, "decode_16": 3.0}
    assert machine == kept(tmp_path)
    assert machine.measured.notes == ["decode_8 was left out: too short."]


def test_a_finished_run_has_nothing_to_resume(tmp_path: Path) -> None:
    finished = record_at(tmp_path)
    finished.step("decode_1", adding(finished, "decode_1", 1.0))
    finished.finish()
    again = record_at(tmp_path, is_resumed=True)
    again.step("decode_1", adding(again, "decode_1", 2.0))
    assert works(tmp_path) == {"decode_1": 2.0}


def test_a_run_that_is_not_resumed_starts_at_the_beginning(tmp_path: Path) -> None:
    stopped = record_at(tmp_path)
    stopped.step("decode_1", adding(stopped, "decode_1", 1.0))
    anew = record_at(tmp_path)
    anew.step("decode_1", adding(anew, "decode_1", 2.0))
    assert works(tmp_path) == {"decode_1": 2.0}


def test_other_versions_begin_anew(tmp_path: Path) -> None:
    """Their rows and ours are not of one run, resumed or not."""
    stopped = record_at(tmp_path)
    stopped.versions["numpy"] = "0.1"
    stopped.step("decode_1", adding(stopped, "decode_1", 1.0))
    resumed = record_at(tmp_path, is_resumed=True)
    resumed.step("decode_8", adding(resumed, "decode_8", 2.0))
    resumed.step("decode_1", adding(resumed, "decode_1", 3.0))
    assert works(tmp_path) == {"decode_8": 2.0, "decode_1": 3.0}


def test_a_quick_look_is_not_kept(tmp_path: Path) -> None:
    record = Record("bench", silent, is_kept=False, path=tmp_path)
    record.step("decode_1", adding(record, "decode_1"))
    assert [one.work for one in record.finish().results.rows] == ["decode_1"]
    assert read_machines(tmp_path) == []
    assert read_machine(tmp_path) is None
    assert read_machines(tmp_path / "nowhere") == []


def test_a_peer_that_fails_in_its_turn_is_left_out_and_the_others_are_measured(tmp_path: Path) -> None:

    def crash() -> float:
        raise LlamaFailedError("it crashed")

    record = record_at(tmp_path)
    plan = Plan(model="none", works=(), rules=Rules(runs=1, max_rounds=1), tune=False, patience_s=0.0)
    bench = SideBySide(plan, record, silent)
    bench.take_turns("decode_1", TOKENS_PER_S, lambda: 2.0, {"a": lambda: 1.0, "b": crash})
    assert [(one.peer, one.ratio) for one in record.rows] == [("a", 2.0)]
    assert kept(tmp_path).measured.notes == ["b at decode_1 was left out: it crashed."]
    bench.take_turns("decode_8", TOKENS_PER_S, lambda: 2.0, {"b": crash})
    assert len(record.rows) == 1
