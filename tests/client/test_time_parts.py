"""What the client makes of the times that it is told and of its own: parts that make up the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagewire.client.result import TimeParts, time_parts
from stagewire.wire.timing import RequestTiming

TOLD = RequestTiming(
    admission_s=0.5, queue_s=0.25, paused_s=0.125, restore_s=0.0, prefill_s=1.0, compute_s=(1.0, 2.0), plan_s=0.125,
    sample_s=0.0625, codec_s=0.0625, hops_s=0.25, unread_s=0.0,
)  # fmt: skip
TOLD_S = 5.375


def total(parts: TimeParts) -> float:
    return sum(seconds for _, seconds in parts.rows())


def test_the_parts_make_up_the_whole_and_the_rest_is_called_so() -> None:
    parts = time_parts(TOLD, accepted_s=0.125, dispatched_s=1.125, total_s=6.5)
    assert (parts.return_s, parts.admission_s, parts.handover_s) == (0.125, 0.5, 0.5)
    assert parts.remainder_s == 6.5 - TOLD_S - 0.125 - 0.5
    assert total(parts) == 6.5


def test_a_word_that_came_back_late_is_not_counted_beside_what_the_head_did_meanwhile() -> None:
    """The handover takes no more than the total leaves for it."""
    parts = time_parts(TOLD, accepted_s=0.125, dispatched_s=3.0, total_s=TOLD_S + 0.25)
    assert parts.handover_s == 0.125
    assert parts.remainder_s == 0.0
    assert total(parts) == TOLD_S + 0.25


@pytest.mark.parametrize(("unread_s", "queue_s", "remainder_s"), [(0.125, 0.375, 0.375), (9.0, 0.75, 0.0)])
def test_what_may_have_lain_unread_is_queue_as_far_as_there_is_time_for_it(
    unread_s: float, queue_s: float, remainder_s: float
) -> None:
    """It is the most that it can be; the total says how much there is to explain."""
    told = RequestTiming(0.5, 0.25, 0.125, 0.0, 1.0, (1.0, 2.0), 0.125, 0.0625, 0.0625, 0.25, unread_s)
    parts = time_parts(told, accepted_s=0.0, dispatched_s=0.5, total_s=TOLD_S + 0.5)
    assert (parts.queue_s, parts.remainder_s) == (queue_s, remainder_s)
    assert total(parts) == TOLD_S + 0.5


def test_what_this_client_has_not_seen_is_left_to_the_remainder() -> None:
    """A broker that restarts, say, may never answer; nothing is guessed."""
    parts = time_parts(TOLD, accepted_s=None, dispatched_s=None, total_s=6.0)
    assert (parts.return_s, parts.handover_s, parts.remainder_s) == (0.0, 0.0, 6.0 - TOLD_S)


def test_a_word_of_the_broker_that_was_read_late_is_not_counted_beside_what_was_done_meanwhile() -> None:
    """The head had begun before this client read that the request is admitted: what others tell comes first."""
    parts = time_parts(TOLD, accepted_s=1.0, dispatched_s=1.5, total_s=6.0)
    assert (parts.return_s, parts.handover_s, parts.remainder_s) == (6.0 - TOLD_S, 0.0, 0.0)
    assert total(parts) == 6.0


@given(
    told_s=st.lists(st.floats(0, 5), min_size=12, max_size=12),
    accepted_s=st.none() | st.floats(0, 20),
    later_s=st.none() | st.floats(0, 20),
    more_s=st.floats(0, 20),
)
def test_no_part_is_ever_below_zero(
    told_s: list[float], accepted_s: float | None, later_s: float | None, more_s: float
) -> None:
    """Whatever this client read late, as long as the others tell no more than there was; the sum stays the whole."""
    a, b, c, d, e, f, g, h, i, j, k, unread_s = told_s
    told = RequestTiming(a, b, c, d, e, (f, g), h, i, j, k, unread_s)
    total_s = sum(told_s[:-1]) + more_s
    dispatched_s = None if later_s is None else (accepted_s or 0.0) + later_s
    parts = time_parts(told, accepted_s, dispatched_s, total_s)
    assert all(seconds > -1e-9 for _, seconds in parts.rows()), parts
    assert total(parts) == pytest.approx(total_s)


def test_rows_name_each_stage() -> None:
    names = [name for name, _ in time_parts(TOLD, 0.1, 0.2, 6.0).rows()]
    assert names == [
        "return", "admission", "handover", "queue", "paused", "restore", "prefill", "compute stage 0",
        "compute stage 1", "plan", "sample", "codec", "hops", "remainder",
    ]  # fmt: skip
