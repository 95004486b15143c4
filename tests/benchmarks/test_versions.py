"""Two versions in turns: whose turn it is, which package each runs, what their pairs say, and who answers whom."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest

from bench.cpu_cost import used_s
from bench.results import MILLISECONDS, TOKENS_PER_S, Figure
from bench.samples import ratio_interval
from bench.versions import Pairs, VersionError, build_parser, environment_of, order, report
from bench.worker_process import WorkerProcess, serve


def test_sides_begin_in_turns() -> None:
    assert [who for number in range(2) for who in order(number)] == ["before", "after", "after", "before"]


def test_a_checkout_runs_its_own_package_only(tmp_path: Path) -> None:
    """One that has no src/ is installed in its environment; our path would put our package before it."""
    inherited = {"PYTHONPATH": "/somewhere/src", "HOME": "/home"}
    assert environment_of(tmp_path, inherited) == {"HOME": "/home"}
    (tmp_path / "src/stagewire").mkdir(parents=True)
    assert environment_of(tmp_path, inherited) == {"HOME": "/home", "PYTHONPATH": str(tmp_path / "src")}


def test_above_one_is_better_for_rates_and_for_times() -> None:
    pairs = Pairs()
    for extra in (0.0, 1.0, -1.0):
        pairs.add(
            [Figure("decode_1", 100 + extra, TOKENS_PER_S), Figure("cpu_1_head", 3.0, MILLISECONDS)],
            [Figure("decode_1", 150 + extra, TOKENS_PER_S), Figure("cpu_1_head", 1.5, MILLISECONDS)],
        )
    rate, time = pairs.rows()
    assert (rate.ratio, rate.before, rate.after) == (1.5, (100.0, 101.0, 99.0), (150.0, 151.0, 149.0))
    assert rate.low <= 1.5 <= rate.high < 1.53
    assert (time.ratio, time.low, time.high) == (2.0, 2.0, 2.0)
    assert "| decode_1 | tok/s | 100 | 150 | 1.500 | " in report(pairs)


def test_one_round_has_no_interval_and_no_time_at_all_has_no_ratio() -> None:
    """The clock of a process may not have ticked."""
    pairs = Pairs(notes=["round 1, decode_8: too short"])
    pairs.add([Figure("cpu_1_broker", 0.1, MILLISECONDS)], [Figure("cpu_1_broker", 0.0, MILLISECONDS)])
    assert math.isnan(pairs.rows()[0].ratio)
    assert "| cpu_1_broker | ms | 0.1 | 0 | nan |  | 1 |" in report(pairs)
    assert report(pairs).endswith("- round 1, decode_8: too short")


def test_the_interval_is_of_pairs_and_repeats() -> None:
    """A machine that slows both sides of a pair alike leaves their ratio known exactly."""
    slow = [1.0, 2.0, 4.0]
    assert ratio_interval([3 * value for value in slow], slow) == pytest.approx((3.0, 3.0))
    assert ratio_interval([5.0, 1.0, 3.0], slow) == ratio_interval([5.0, 1.0, 3.0], slow)


def test_processor_time_is_found_behind_any_command() -> None:
    """Fields 14 and 15; the command may hold spaces and parentheses."""
    fields = " ".join(str(number) for number in range(4, 30))
    ticks = used_s(f"7 (a) b (c) S {fields}")
    assert ticks == pytest.approx((14 + 15) * used_s("1 (x) S " + "0 " * 10 + "1 0 0"))


@pytest.mark.parametrize("flags", [[], ["--before", ".", "--only", "decode_7"], ["--before", ".", "--rounds", "0"]])
def test_flags_that_mean_nothing_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(flags)
    assert (flags or ["--before"])[-2:][0] in capsys.readouterr().err


def test_a_worker_answers_with_a_value_or_its_refusal() -> None:
    def answer(method: str, arguments: dict[str, object]) -> object:
        if method == "refuse":
            raise LookupError("no such thing")
        return [method, arguments]

    answers = io.StringIO()
    serve(['{"method": "say", "what": 1}', '{"method": "refuse"}'], answers, answer, (LookupError,))
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [
        {"value": ["say", {"what": 1}]},
        {"error": "no such thing"},
    ]


@pytest.mark.processes
def test_a_worker_that_ends_or_cannot_be_run_is_said_to() -> None:
    with pytest.raises(VersionError, match=r"before's process ended in start \(exit code 1\)"):
        WorkerProcess("before", "no_such_module", VersionError).ask("start")
    with pytest.raises(VersionError, match="no-such-python cannot be run"):
        WorkerProcess("before", "bench", VersionError, python="./no-such-python").ask("start")
