"""The rows of a benchmark: which way is better, what is kept, and the form of the file that is published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import measurements, results
from bench.measurements import Measured, Measurements
from bench.page import DOCS_PATH, page, pictures
from bench.record import MACHINES_PATH, Machine, read_machines
from bench.results import MILLISECONDS, NATS, SHARE, TOKENS_PER_S, Figure, Results, Row, find, row
from bench.tables import number, table
from bench.targets import TARGETS, shortfalls
from bench.works import WORKS


@pytest.mark.parametrize("unit", [TOKENS_PER_S, SHARE])
def test_more_tokens_and_more_agreement_are_better(unit: str) -> None:
    assert row("decode_1", "llama.cpp", unit, ours=300, theirs=100, runs=5).ratio == pytest.approx(3.0)


@pytest.mark.parametrize("unit", [MILLISECONDS, NATS])
def test_less_time_and_less_divergence_are_better(unit: str) -> None:
    assert row("time_per_token_4x10ms", "floor", unit, ours=50, theirs=45, runs=5).ratio == pytest.approx(0.9)


def test_a_unit_without_a_direction_is_an_error() -> None:
    with pytest.raises(KeyError):
        row("decode_1", "llama.cpp", "parsecs", 1, 2, 5)


def test_what_is_measured_again_replaces_its_row_and_the_others_stay() -> None:
    """A run without llama.cpp keeps the name that an earlier run gave its version."""
    old = Results(
        "cpu", {"numpy": "2", "llama.cpp": "x"},
        (row("prefill_512", "llama.cpp", TOKENS_PER_S, 1, 1, 5), row("decode_1", "llama.cpp", TOKENS_PER_S, 1, 1, 5)),
    )  # fmt: skip
    new = Results("cpu", {"numpy": "2"}, (row("decode_1", "llama.cpp", TOKENS_PER_S, 3, 1, 5),))
    assert results.is_comparable(old, new)
    both = results.merged(old, new)
    assert [(one.work, one.ratio) for one in both.rows] == [("prefill_512", 1.0), ("decode_1", 3.0)]
    assert both.versions == {"numpy": "2", "llama.cpp": "x"}


@pytest.mark.parametrize("other", [("another cpu", {"numpy": "2"}), ("cpu", {"numpy": "3"})])
def test_rows_of_another_machine_or_version_are_not_mixed_in(other: tuple[str, dict[str, str]]) -> None:
    old = Results(*other, (row("prefill_512", "llama.cpp", TOKENS_PER_S, 1, 1, 5),))
    new = Results("cpu", {"numpy": "2"}, ())
    assert not results.is_comparable(old, new)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert results.read(path) is None
    written = Results("cpu", {"numpy": "2"}, (row("decode_1", "llama.cpp", TOKENS_PER_S, 2.5, 1, 5),))
    results.write(written, path)
    assert results.read(path) == written


@pytest.mark.parametrize("rows", ['[{"work": "x"}]', "7", '[{"work": 1}]'])
def test_a_file_of_another_form_is_named(tmp_path: Path, rows: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(f'{{"machine": "m", "versions": {{}}, "rows": {rows}}}', encoding="utf-8")
    with pytest.raises(ValueError, match="measure again"):
        results.read(path)


def test_measurements_are_read_as_written_and_replaced_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "measurements.json"
    assert measurements.read(path) is None
    first = Measurements(cluster="two", comparisons=[_measured("decode_1", 1.0), _measured("decode_8", 1.0)])
    measurements.write(first, path)
    assert measurements.read(path) == first
    both = measurements.merged(first, Measurements(comparisons=[_measured("decode_8", 9.0)]))
    assert [(one.work, one.ours) for one in both.comparisons] == [("decode_1", (1.0,)), ("decode_8", (9.0,))]
    assert both.cluster == "two"


def _measured(work: str, ours: float, is_steady: bool = True) -> Measured:
    return Measured(work, "llama.cpp", "2 threads", (ours,), (1.0,), 0.5, 0.0, is_steady, 0)


def test_the_page_marks_what_is_unsteady_and_lists_what_falls_short() -> None:
    short = row("decode_8", "llama.cpp", TOKENS_PER_S, 200, 100, 5)
    fine = row("prefill_512", "llama.cpp", TOKENS_PER_S, 500, 100, 5)
    slow = row("decode_4", "llama.cpp", TOKENS_PER_S, 50, 100, 5)
    measured = Measurements(comparisons=[_measured("decode_8", 1.0, is_steady=False), _measured("prefill_512", 1.0)])
    text = page([Machine("some-cpu", Results("some cpu", {"numpy": "2"}, (fine, short, slow)), measured)])
    assert "| decode_8 | llama.cpp | tok/s | 200 | 100 | 2.00 | 3.20 | 5 | ~ 50% |" in text
    assert "| prefill_512 | llama.cpp | tok/s | 500 | 100 | **5.00** | 4.00 | 5 | 50% |" in text
    assert "| decode_4 | llama.cpp | tok/s | 50 | 100 | 0.50 |  | 5 |  |" in text
    assert "### What falls short of its target" in text
    assert "1 of 2 comparisons never were steady" in text
    assert shortfalls([fine, short])[0].row == short


def test_a_table_is_markdown_and_numbers_have_three_digits() -> None:
    assert table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    assert [number(value) for value in (1234.5, 12.34, 0.001234)] == ["1234", "12.3", "0.00123"]


def test_every_target_is_of_a_work_that_is_measured() -> None:
    """A misspelt name would never be checked."""
    besides = {"overhead_per_token", "inter_token_p99_while_6000_prefill", "kl_to_float32", "time_per_token_4x10ms"}
    besides |= {"warm_ttft_4096", "warm_ttft_4096_resident", "warm_ttft_4096_shared", "restore_4096", "cold_4096"}
    assert {work for work, _ in TARGETS} <= {work.name for work in WORKS} | besides


def test_machines_stand_side_by_side() -> None:
    """A column for each in the main rows, empty where a machine lacks the row, and a section with a picture."""
    first = Results("a cpu", {}, (row("decode_8", "llama.cpp", TOKENS_PER_S, 300, 100, 5),))
    second = Results("b cpu", {}, (row("overhead_per_token", "limit", MILLISECONDS, 1, 0.5, 5),))
    text = page([Machine("a-cpu", first, Measurements()), Machine("b-cpu", second, Measurements())])
    assert "| work | against | unit | a-cpu | b-cpu |" in text
    assert "| decode_8 | llama.cpp | tok/s | 300 to 100: **3.00** |  |" in text
    assert "| overhead_per_token | limit | ms |  | 1 to 0.5: **0.50** |" in text
    assert "## a-cpu\n\na cpu.\n" in text
    assert "(images/benchmarks-a-cpu.svg)" in text
    assert "(images/benchmarks-b-cpu.svg)" not in text, "it has no row to draw"


def test_figures_are_replaced_one_by_one() -> None:
    """What a later part of a run adds does not drop what an earlier one found."""
    before = Measurements(figures=[Figure("a", 1, "ms"), Figure("b", 2, "ms")], notes=["old"])
    after = Measurements(figures=[Figure("b", 3, "ms"), Figure("c", 4, "ms")])
    both = measurements.merged(before, after)
    assert [(one.what, one.value) for one in both.figures] == [("a", 1), ("b", 3), ("c", 4)]
    assert both.notes == ["old"]


@pytest.mark.parametrize("machine", read_machines(), ids=lambda machine: machine.slug)
def test_the_published_results_have_the_documented_form(machine: Machine) -> None:
    """Machine, versions and rows, nothing else; the ratio follows from the figures."""
    parsed = json.loads((MACHINES_PATH / machine.slug / "results.json").read_text(encoding="utf-8"))
    assert set(parsed) == {"machine", "versions", "rows"}
    assert all(set(one) == {"work", "peer", "unit", "ours", "theirs", "ratio", "runs"} for one in parsed["rows"])
    rows = [Row(**one) for one in parsed["rows"]]
    assert len({(one.work, one.peer) for one in rows}) == len(rows)
    for one in rows:
        again = row(one.work, one.peer, one.unit, one.ours, one.theirs, one.runs)
        assert again.ratio == pytest.approx(one.ratio, rel=1e-3)
        assert find(rows, one.work, one.peer) == one


def test_the_page_and_its_pictures_say_what_the_files_say() -> None:
    machines = read_machines()
    assert machines, "nothing has been measured"
    assert (DOCS_PATH / "benchmarks.md").read_text(encoding="utf-8") == page(machines)
    drawn = pictures(machines)
    assert {path: (DOCS_PATH / path).read_text(encoding="utf-8") for path in drawn} == drawn
    kept = {f"images/{path.name}" for path in (DOCS_PATH / "images").glob("benchmarks-*.svg")}
    assert kept == set(drawn)
