"""What `stagewire top` shows, made of two status reports: text only, without a terminal or a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stagewire.cli.fitted import WIDE, Line
from stagewire.wire.counted import counted

if TYPE_CHECKING:
    from stagewire.wire.counters import StageCounters
    from stagewire.wire.status import PipelineStatus, StageStatus, Status

COMPUTE, ENGINE, IDLE = "█", "▒", "░"
_BAR_CHARS = 16
_SILENT_S = 1.5
_LONG_STEP_S = 0.5


@dataclass(frozen=True, slots=True)
class Link:
    """What a pipeline's steps took, on an average: all the way round, and of that on one link between two stages.

    `hop_s` is None where there is but one stage.
    """

    epoch: str
    round_trip_s: float
    hop_s: float | None


@dataclass(frozen=True, slots=True)
class Shares:
    """How a stage has spent a time, in parts of one: `engine` is neither a forward pass nor waiting."""

    compute: float
    engine: float
    idle: float
    steps_per_s: float


def frame(before: Status, after: Status, width: int = WIDE) -> list[str]:
    """The lines of one frame, in `width` columns as far as its parts allow.

    Rates are of the time between the two reports, on each stage's own clock.
    """
    return [part for line in _lines(before, after) for part in line.fitted(width)]


def _lines(before: Status, after: Status) -> list[Line]:
    requests = f"{counted(after.num_requests_running, 'request')} running, {after.num_requests_waiting} waiting"
    lines = [Line((f"broker up {after.uptime_s:.0f} s;", f"{counted(after.num_clients, 'client')};", requests))]
    stages = {stage.info.stage_id: stage for stage in after.stages}
    earlier = {stage.info.stage_id: stage for stage in before.stages}
    links = []
    for pipeline in after.pipelines:
        members = [stages[name] for name in pipeline.stage_ids if name in stages]
        link = link_of(pipeline, members, earlier)
        links += [link] if link else []
        lines += [Line(), *_pipeline(pipeline, members, earlier, link)]
    spares = [stage for stage in after.stages if stage.pipeline is None]
    if spares:
        lines += [Line(), Line(("in no pipeline",)), *_rows(spares, earlier)]
    hops = [(link.hop_s, link.epoch) for link in links if link.hop_s is not None]
    if hops:
        slowest_s, epoch = max(hops)
        lines += [Line(), Line((f"slowest hop: pipeline {epoch},", f"{_milliseconds(slowest_s)} on each of its links"))]
    if after.waiting_for:
        lines += [Line(), Line(tuple(f"missing: {after.waiting_for}".split(" ")))]
    marks = (f"{COMPUTE} computes ", f"{ENGINE} schedules, samples, reads, writes ", f"{IDLE} waits for messages ")
    return [*lines, Line(), Line((*marks, "KV: blocks used+cached/all"))]


# --- a pipeline ---


def _pipeline(
    pipeline: PipelineStatus, members: Sequence[StageStatus], earlier: dict[str, StageStatus], link: Link | None
) -> list[Line]:
    chain = [f"{one.info.stage_id} {one.info.layer_start}:{one.info.layer_end} ->" for one in members]
    models = ", ".join(dict.fromkeys([one.info.model_name for one in members]))
    load = f"{pipeline.num_requests} of {counted(pipeline.capacity, 'request')}"
    return [
        Line((f"pipeline {pipeline.epoch} {pipeline.state}:", f"{models},", load)),
        Line((*chain, "back"), indent=2),
        Line(_tokens(members, earlier), indent=2),
        Line(_trip(link), indent=2),
        *_rows(members, earlier),
    ]


def _trip(link: Link | None) -> tuple[str, ...]:
    if link is None:
        return ("no steps",)
    trip = f"round trip {_milliseconds(link.round_trip_s)}"
    return (trip,) if link.hop_s is None else (f"{trip},", f"{_milliseconds(link.hop_s)} of it on each link")


def _tokens(members: Sequence[StageStatus], earlier: dict[str, StageStatus]) -> tuple[str, ...]:
    """Of the tail: tokens a second, and how much of the prompts the caches have answered."""
    last = members[-1] if members else None
    if last is None or last.counters is None or last.counters.tail is None:
        return ("no tokens yet",)
    now, old = last.counters, _counters_before(last, earlier)
    tail, old_tail = last.counters.tail, old.tail if old else None
    elapsed_s = now.uptime_s - (old.uptime_s if old else 0.0)
    num_new = tail.num_generated_tokens - (old_tail.num_generated_tokens if old_tail else 0)
    num_new = tail.num_generated_tokens if num_new < 0 else num_new  # another pipeline since
    rate = f"{num_new / elapsed_s:.1f} tokens/s" if elapsed_s > 0 else "no news"
    if not tail.num_prompt_tokens:
        return (rate,)
    cached = tail.num_cached_tokens / tail.num_prompt_tokens
    return f"{rate};", f"cached {cached:.0%} of {counted(tail.num_prompt_tokens, 'prompt token')}"


def link_of(pipeline: PipelineStatus, members: Sequence[StageStatus], earlier: dict[str, StageStatus]) -> Link | None:
    """Of the head: the round trips since the earlier report, or None if there were none."""
    head = members[0].counters.head if members and members[0].counters else None
    if head is None:
        return None
    old = _counters_before(members[0], earlier)
    old_head = old.head if old and old.head and old.head.num_round_trips <= head.num_round_trips else None
    num_trips = head.num_round_trips - (old_head.num_round_trips if old_head else 0)
    if not num_trips:
        return None
    round_trips_s = head.round_trips_s - (old_head.round_trips_s if old_head else 0.0)
    hops_s = head.hops_s - (old_head.hops_s if old_head else 0.0)
    num_links = len(pipeline.stage_ids)
    hop_s = max(0.0, hops_s) / num_trips / num_links if num_links > 1 else None
    return Link(pipeline.epoch, round_trips_s / num_trips, hop_s)


# --- stages ---


def _rows(members: Sequence[StageStatus], earlier: dict[str, StageStatus]) -> list[Line]:
    width = max([len(one.info.stage_id) for one in members], default=0)
    return [
        Line((f"{one.info.stage_id:{width}} ", *_row(one, _counters_before(one, earlier))), indent=2) for one in members
    ]


def _row(stage: StageStatus, old: StageCounters | None) -> tuple[str, ...]:
    if stage.counters is None:
        return (f"no counters yet, heard {stage.silent_s:.1f} s ago",)
    shares = shares_of(old, stage.counters)
    if shares is None:
        return f"{IDLE * _BAR_CHARS} ", f"no news, heard {stage.silent_s:.1f} s ago"
    spent = f"compute {shares.compute:4.0%} idle {shares.idle:4.0%}"
    *facts, last = _memory(stage), *_remarks(stage)
    told = [f"{fact}," for fact in facts]
    return f"{bar(shares)} ", f"{spent} ", f"{shares.steps_per_s:5.1f} steps/s ", *told, last


def shares_of(old: StageCounters | None, new: StageCounters) -> Shares | None:
    """What a stage did since `old`, or since its start; None if it has not told anything new."""
    elapsed_s = new.uptime_s - (old.uptime_s if old else 0.0)
    if elapsed_s <= 0:
        return None

    compute_s = new.prefill_s + new.decode_s - (old.prefill_s + old.decode_s if old else 0.0)
    idle_s = new.idle_s - (old.idle_s if old else 0.0)
    engine_s = max(0.0, elapsed_s - compute_s - idle_s)
    num_steps = new.num_steps - (old.num_steps if old else 0)
    return Shares(compute_s / elapsed_s, engine_s / elapsed_s, idle_s / elapsed_s, num_steps / elapsed_s)


def bar(shares: Shares) -> str:
    """The shares as characters."""
    num_compute = round(shares.compute * _BAR_CHARS)
    num_busy = round((shares.compute + shares.engine) * _BAR_CHARS)
    return (COMPUTE * num_compute + ENGINE * (num_busy - num_compute)).ljust(_BAR_CHARS, IDLE)[:_BAR_CHARS]


def _memory(stage: StageStatus) -> str:
    assert stage.counters is not None
    used, cached = stage.counters.num_used_blocks, stage.counters.num_cached_blocks
    return f"KV {used}+{cached}/{stage.info.num_blocks}"


def _remarks(stage: StageStatus) -> list[str]:
    assert stage.counters is not None
    remarks = []
    if stage.counters.num_queued_steps:
        remarks.append(f"{counted(stage.counters.num_queued_steps, 'step')} queued")
    if stage.step_age_s is not None and stage.step_age_s > _LONG_STEP_S:
        remarks.append(f"in a step for {stage.step_age_s:.1f} s")
    if stage.silent_s > _SILENT_S:
        remarks.append(f"silent for {stage.silent_s:.1f} s")
    return remarks


def _counters_before(stage: StageStatus, earlier: dict[str, StageStatus]) -> StageCounters | None:
    """What the same process had told earlier."""
    known = earlier.get(stage.info.stage_id)
    return known.counters if known and known.info.run == stage.info.run else None


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"
