"""The benchmark's arithmetic: medians, spreads, percentiles, and what token arrival times say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.samples import median, percentile, spread
from bench.streams import decode_window_s, gaps, overlapping_gaps


def test_spread_is_the_range_against_the_median() -> None:
    assert spread([95.0, 100.0, 105.0]) == pytest.approx(0.1)
    assert spread([7.0]) == 0.0


@given(st.lists(st.floats(0.001, 1e6), min_size=1), st.floats(0.0, 1.0))
def test_a_percentile_is_a_sample_that_so_many_do_not_exceed(samples: list[float], share: float) -> None:
    found = percentile(samples, share)
    assert found in samples
    assert sum(sample <= found for sample in samples) >= share * len(samples)


def test_percentiles_of_a_hundred_samples_are_the_ranks() -> None:
    samples = [float(rank) for rank in range(100, 0, -1)]
    assert [percentile(samples, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert median(samples) == 50.5


def test_decoding_is_timed_from_when_all_streams_run() -> None:
    """The first stream decodes while the second is prefilled; what it brought until then does not count."""
    first = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    second = [3.5, 4.5, 5.5, 6.5]
    assert decode_window_s([first, second], 3) == pytest.approx(6.5 - 3.5)


def test_one_stream_is_timed_from_its_first_token() -> None:
    assert decode_window_s([[1.0, 1.5, 2.0, 2.5]], 3) == pytest.approx(1.5)


def test_a_stream_that_ends_too_early_is_no_measurement() -> None:
    """It would be timed while others had stopped."""
    with pytest.raises(ValueError, match="brought 1 tokens"):
        decode_window_s([[1.0, 2.0, 3.0], [2.5, 3.5, 4.5, 5.5]], 2)


def test_gaps_inside_a_window_and_gaps_that_reach_into_it() -> None:
    """A pause that began before a long prompt and ended after it must be seen."""
    arrivals = [0.0, 1.0, 2.0, 10.0, 11.0]
    assert gaps(arrivals, after=0.5, until=10.0) == [1.0, 8.0]
    assert overlapping_gaps(arrivals, 3.0, 9.0) == [8.0]
    assert overlapping_gaps(arrivals, 1.5, 10.5) == [1.0, 8.0, 1.0]
