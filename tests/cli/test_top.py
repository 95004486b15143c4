"""`stagewire top`: what a frame shows of two reports, compared as a whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.counters import HEAD, START
from support.running_broker import FAST, RunningBroker
from support.statuses import report, stage

from stagewire.cli.main import main
from stagewire.cli.top import follow
from stagewire.cli.top_view import frame
from stagewire.client import Client, ClientSettings
from stagewire.wire.counters import HeadCounters, StageCounters, TailCounters
from stagewire.wire.status import PipelineStatus, StageStatus, Status

TAIL = TailCounters(num_prompt_tokens=400, num_cached_tokens=100, num_generated_tokens=90)
PIPELINE = PipelineStatus("1.1", "serving", ("a", "b"), num_requests=2, capacity=8)
MARKS = "█ computes  ▒ schedules, samples, reads, writes  ░ waits for messages  KV: blocks used+cached/all"


def told(name: str, counters: StageCounters | None, pipeline: str | None = "1.1") -> StageStatus:
    ranges = {"a": (0, 12), "b": (12, 30)}
    return replace(stage(name, *ranges[name], pipeline), counters=counters)


def status(a: StageCounters | None, b: StageCounters | None) -> Status:
    return report(told("a", a), told("b", b), pipelines=(PIPELINE,), waiting_for="")


BEFORE = status(replace(START, head=HEAD), replace(START, tail=TAIL))
AFTER = status(
    replace(
        START, uptime_s=12.0, idle_s=4.5, decode_s=2.25, num_steps=140,
        head=replace(HEAD, num_round_trips=140, round_trips_s=5.8, hops_s=0.52),
    ),
    replace(
        START, uptime_s=12.0, idle_s=5.5, decode_s=1.25, num_steps=140, num_queued_steps=1,
        tail=TailCounters(num_prompt_tokens=800, num_cached_tokens=500, num_generated_tokens=190),
    ),
)  # fmt: skip


def test_a_frame_shows_pipelines_stages_and_the_slowest_hop() -> None:
    """Rates are of the two seconds between the reports; the hit rate is of all prompts."""
    assert frame(BEFORE, AFTER) == [
        "broker up 12 s; 1 client; 2 requests running, 3 waiting",
        "",
        "pipeline 1.1 serving: smol, 2 of 8 requests",
        "  a 0:12 -> b 12:30 -> back",
        "  50.0 tokens/s; cached 62% of 800 prompt tokens",
        "  round trip 20.00 ms, 0.25 ms of it on each link",
        "  a  ██████████▒▒░░░░  compute  62% idle  25%   20.0 steps/s  KV 3+7/64",
        "  b  ██▒▒░░░░░░░░░░░░  compute  12% idle  75%   20.0 steps/s  KV 3+7/64, 1 step queued",
        "",
        "slowest hop: pipeline 1.1, 0.25 ms on each of its links",
        "",
        MARKS,
    ]


def test_without_an_earlier_report_rates_are_since_the_start() -> None:
    before = report(pipelines=(), waiting_for="")
    lines = frame(before, AFTER)
    assert "  15.8 tokens/s; cached 62% of 800 prompt tokens" in lines
    assert "  round trip 41.43 ms, 1.86 ms of it on each link" in lines


def test_a_pipeline_that_was_assembled_anew_begins_anew() -> None:
    """Its counts are smaller than before: they are not taken for less than nothing."""
    again = status(
        replace(START, uptime_s=12.0, head=HeadCounters(0, 1, 4, 0.08, 0.004)),
        replace(START, uptime_s=12.0, tail=TailCounters(0, 0, 8)),
    )
    lines = frame(BEFORE, again)
    assert "  4.0 tokens/s" in lines
    assert "  round trip 20.00 ms, 0.50 ms of it on each link" in lines


def test_a_restarted_stage_is_not_compared_with_its_predecessor() -> None:
    restarted = told("a", replace(START, uptime_s=1.0, idle_s=1.0, prefill_s=0.0, decode_s=0.0, num_steps=0))
    restarted = replace(restarted, info=replace(restarted.info, run=2))
    after = report(restarted, told("b", None), pipelines=(PIPELINE,), waiting_for="")
    assert "  a  ░░░░░░░░░░░░░░░░  compute   0% idle 100%    0.0 steps/s  KV 3+7/64" in frame(BEFORE, after)


def test_what_is_silent_missing_or_without_news_says_so() -> None:
    silent = replace(told("a", START), silent_s=2.25)
    spare = told("b", None, pipeline=None)
    after = report(silent, spare, pipelines=(PIPELINE,), waiting_for="layers 12:30")
    assert frame(BEFORE, after) == [
        "broker up 12 s; 1 client; 2 requests running, 3 waiting",
        "",
        "pipeline 1.1 serving: smol, 2 of 8 requests",
        "  a 0:12 -> b 12:30 -> back",
        "  no tokens yet",
        "  no steps",
        "  a  ░░░░░░░░░░░░░░░░  no news, heard 2.2 s ago",
        "  b  no counters yet, heard 0.2 s ago",
        "",
        "in no pipeline",
        "  b  no counters yet, heard 0.2 s ago",
        "",
        "missing: layers 12:30",
        "",
        MARKS,
    ]


def test_a_long_step_and_a_silence_are_remarked() -> None:
    busy = replace(told("a", replace(START, uptime_s=12.0)), silent_s=2.0, step_age_s=1.25)
    after = report(busy, told("b", START), pipelines=(PIPELINE,), waiting_for="")
    assert any(line.endswith("KV 3+7/64, in a step for 1.2 s, silent for 2.0 s") for line in frame(BEFORE, after, 120))


def test_one_stage_alone_has_no_hop() -> None:
    alone = replace(START, uptime_s=12.0, head=replace(HEAD, num_round_trips=140, round_trips_s=5.8), tail=TAIL)
    pipeline = PipelineStatus("1.1", "serving", ("a",), num_requests=1, capacity=8)
    lines = frame(BEFORE, report(told("a", alone), pipelines=(pipeline,), waiting_for=""))
    assert "  round trip 20.00 ms" in lines
    assert not any("slowest hop" in line for line in lines)


@pytest.mark.parametrize("width", [100, 80, 60, 45])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_left_out(width: int) -> None:
    """Lines break between their parts, and go on further in."""
    busy = replace(told("b", replace(START, uptime_s=12.0, num_queued_steps=12)), silent_s=2.0, step_age_s=1.25)
    many = [told("a", START), busy, *(replace(told("a", START, None), silent_s=9.5) for _ in range(2))]
    crowd = report(*many, pipelines=(PIPELINE,), waiting_for="layers 12:30 of a-model-with-a-long-name (stored)")
    for after in (AFTER, crowd):
        lines = frame(BEFORE, after, width)
        assert max(len(line) for line in lines) <= width
        assert " ".join(" ".join(lines).split()) == " ".join(" ".join(frame(BEFORE, after, 10_000)).split())


def test_at_eighty_columns_a_stage_takes_one_line() -> None:
    assert "  a  ██████████▒▒░░░░  compute  62% idle  25%   20.0 steps/s  KV 3+7/64" in frame(BEFORE, AFTER, 80)
    assert frame(BEFORE, AFTER, 60)[6:8] == [
        "  a  ██████████▒▒░░░░  compute  62% idle  25%   20.0 steps/s",
        "    KV 3+7/64",
    ]


def test_the_view_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[list[str]] = []
    broker = RunningBroker(FAST)
    monkeypatch.setenv("COLUMNS", "30")
    with Client(broker.endpoints.frontend) as client:
        follow(client, 0.0, shown.append, lambda _seconds: len(shown) == 1)
    broker.stop()
    assert max(len(line) for line in shown[0]) <= 40 < max(len(line) for line in frame(BEFORE, AFTER))


@pytest.mark.parametrize("interval", ["0.5", "0", "-1", "nan"])
def test_an_interval_shorter_than_the_news_is_refused(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Stages tell every half second what they did."""
    assert main(["top", f"--interval={interval}"]) == 2
    assert "must be at least 1 second" in capsys.readouterr().err


def test_a_broker_that_goes_away_and_comes_back_is_asked_again() -> None:
    """What is shown meanwhile says so; nothing ends."""
    broker = RunningBroker(FAST)
    endpoint = broker.endpoints.frontend
    shown: list[list[str]] = []

    def wait(_seconds: float) -> bool:
        nonlocal broker
        if len(shown) == 1:
            broker.stop()
        elif len(shown) == 2:
            broker = RunningBroker(replace(FAST, frontend_endpoint=endpoint))
        return len(shown) == 3

    with Client(settings=ClientSettings(endpoint=endpoint, connect_timeout_s=1.0)) as client:
        follow(client, 1.0, shown.append, wait)
    broker.stop()
    first, gone, back = shown
    assert first[0].startswith("broker up") and back[0].startswith("broker up")
    assert gone == [f"no answer from the broker at {endpoint} within 1 s; asking again every 1 s"]
