"""Where the time of one request went, as messages carry it. Durations only: no two processes' clocks are compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wait:
    """What a sequence waited at the head before this step, while no other step held it; on the head's clock.

    In `paused_s` its client did not read, in `fetch_s` stages read files for it. Before that the head read the result
    of its last step, in `read_s`, and before that, `unread_s` at most, this lay unread while the head computed another
    step.
    """

    seq_id: int
    queue_s: float
    paused_s: float
    read_s: float
    unread_s: float
    fetch_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """A request's time from its admission to its last token, in parts that do not overlap.

    `admission_s`, by the broker: queued until it was given to a head. By the head: the waits for a next step, in
    `queue_s`, and `paused_s`. By the tail, whose clock runs from one of its steps to the next: `prefill_s`, all of the
    steps that computed its prompt; `restore_s`, making ready the steps that took a prefix from the caches, all of those
    that found it gone, and, by the head, waiting for files. Decode steps are told apart by what each stage says of
    itself: `compute_s` of each stage, head first; `plan_s`, `sample_s`, `codec_s` of all; waiting for a stage, in
    `queue_s`. `hops_s` is what the tail's round trip took beyond all that. A stage that computes reads nothing, so what
    may have lain unread meanwhile counts as queue, as far as the round trip has time for it; `hops_s` is then the least
    that it can be.

    The way of the first step to the tail belongs to no round trip. `unread_s` is the most that it may have lain unread.
    """

    admission_s: float
    queue_s: float
    paused_s: float
    restore_s: float
    prefill_s: float
    compute_s: tuple[float, ...]
    plan_s: float
    sample_s: float
    codec_s: float
    hops_s: float
    unread_s: float
