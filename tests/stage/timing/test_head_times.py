"""What the head times: waits of sequences, and round trips of steps."""

from __future__ import annotations

import pytest

from stagewire.stage.timing.head_times import ReadTime, RingClock
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import Phase, Slice, Step
from stagewire.wire.tensor import TokenIds
from stagewire.wire.timing import Wait


def step(step_id: int, *seq_ids: int) -> Step:
    slices = tuple(Slice(seq_id, Phase.DECODE, 5, 1, True) for seq_id in seq_ids)
    return Step(step_id, (), (), slices, (), (), TokenIds.of([1] * len(slices)), None)


def test_a_sequence_waits_while_no_step_holds_it() -> None:
    clock = RingClock()
    clock.arrived(1, 10.0)
    assert clock.launched(step(1, 1), 10.5).waits == (Wait(1, 0.5, 0.0, 0.0, 0.0),)
    clock.returned(1, (), 12.0, ReadTime(read_s=0.01, unread_s=0.2))
    assert clock.launched(step(2, 1), 12.25).waits == (Wait(1, 0.25, 0.0, 0.01, 0.2),)


def test_a_prompt_in_chunks_does_not_wait_while_one_of_them_is_under_way() -> None:
    clock = RingClock()
    clock.arrived(1, 0.0)
    clock.launched(step(1, 1), 0.0)
    assert clock.launched(step(2, 1), 3.0).waits == (Wait(1, 0.0, 0.0, 0.0, 0.0),)
    clock.returned(1, (), 4.0)
    clock.returned(2, (), 5.0)
    assert clock.launched(step(3, 1), 5.5).waits[0].queue_s == 0.5, "from the last of them on"


def test_while_its_client_does_not_read_it_is_paused_and_not_queued() -> None:
    """Also if the pause began while a step was still under way."""
    clock = RingClock()
    clock.arrived(1, 0.0)
    clock.launched(step(1, 1), 0.0)
    clock.paused(1, True, 1.0)
    clock.returned(1, (), 2.0)
    clock.paused(1, False, 7.0)
    assert clock.launched(step(2, 1), 7.5).waits == (Wait(1, 0.5, 5.0, 0.0, 0.0),)


def test_while_stages_read_files_for_it_it_is_not_queued_either() -> None:
    """Before its first step, whether its client reads or not."""
    clock = RingClock()
    clock.arrived(1, 0.0)
    clock.fetching(1, True, 0.0)
    clock.paused(1, True, 1.0)
    clock.fetching(1, False, 2.0)
    clock.paused(1, False, 2.5)
    clock.fetching(9, False, 2.5)
    assert clock.launched(step(1, 1), 3.0).waits == (Wait(1, 0.5, 0.5, 0.0, 0.0, 2.0),)


def test_each_sequence_has_its_own_wait_and_one_that_has_ended_none() -> None:
    clock = RingClock()
    clock.arrived(1, 0.0)
    clock.arrived(2, 1.0)
    clock.gone(1)
    assert clock.launched(step(1, 1, 2), 3.0).waits == (Wait(2, 2.0, 0.0, 0.0, 0.0),)
    clock.returned(1, (), 4.0)
    clock.paused(1, True, 4.0)


def test_hops_are_what_the_stages_do_not_explain_of_a_round_trip() -> None:
    """Neither what they spent nor what may have lain unread is the network's; an unknown step counts for nothing."""
    clock = RingClock()
    clock.launched(step(1), 0.0)
    timings = (
        StageTiming(0, 1, compute_s=0.25, sample_s=0.0, codec_s=0.125),
        StageTiming(1, 1, compute_s=0.25, sample_s=0.0625, codec_s=0.0625, queue_s=0.125, plan_s=0.125, unread_s=0.25),
    )
    round_trip = clock.returned(1, timings, 2.0, ReadTime(read_s=0.25, unread_s=0.125))
    assert round_trip is not None and round_trip.total_s == 2.0
    assert round_trip.hops_s == pytest.approx(2.0 - 1.0 - 0.25 - 0.375)
    clock.launched(step(2), 2.0)
    second = clock.returned(2, timings, 2.125)
    assert clock.returned(9, timings, 3.0) is None
    assert second is not None
    assert second.hops_s == 0.0, "what may have lain unread never makes it less than nothing"
