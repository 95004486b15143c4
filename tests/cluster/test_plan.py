"""Splits: what covers a model exactly is taken, and everything else is refused with the layers named."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagewire.cluster.plan import LayerRange, balanced_split, check_split, equal_split, parse_split, projection_layers
from stagewire.wire.card import ModelConfig
from stagewire.wire.errors import ErrorCode, SettingsError

layer_counts = st.integers(1, 200)


@st.composite
def splits(draw: st.DrawFn) -> tuple[int, list[LayerRange]]:
    """A number of layers, and ranges that cover them exactly."""
    num_layers = draw(layer_counts)
    inner = draw(st.sets(st.integers(1, max(1, num_layers - 1)), max_size=8)) - {num_layers}
    cuts = [0, *sorted(inner), num_layers]
    return num_layers, [LayerRange(start, end) for start, end in pairwise(cuts)]


@given(st.data())
def test_an_equal_split_covers_the_model_with_sizes_that_differ_by_at_most_one(data: st.DataObject) -> None:
    num_layers = data.draw(layer_counts)
    num_stages = data.draw(st.integers(1, num_layers))
    ranges = equal_split(num_layers, num_stages)
    check_split(ranges, num_layers)
    sizes = [len(layers) for layers in ranges]
    assert len(ranges) == num_stages
    assert max(sizes) - min(sizes) <= 1


@given(st.data())
def test_weights_place_each_cut_at_the_nearest_layer_that_leaves_every_stage_one(data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
    num_layers = data.draw(st.integers(len(weights), 200))
    ranges = equal_split(num_layers, len(weights), weights)
    check_split(ranges, num_layers)
    if all(len(layers) > 1 for layers in ranges):  # then nothing had to be moved
        for index, layers in enumerate(ranges):
            ideal = num_layers * sum(weights[: index + 1]) / sum(weights)
            assert abs(layers.end - ideal) <= 0.5 + 1e-6


def test_a_stage_with_three_times_the_weight_gets_three_times_the_layers() -> None:
    assert equal_split(32, 2, [3, 1]) == (LayerRange(0, 24), LayerRange(24, 32))


def default_config() -> ModelConfig:
    """The shape of the default model."""
    return ModelConfig("llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e-5, 1e5, 64, True)


def test_the_projection_counts_half_of_its_weights_in_layers() -> None:
    """28.3 million weights against 3.54 million in a layer."""
    assert projection_layers(default_config()) == pytest.approx(0.5 * 28_311_552 / 3_538_944)


@pytest.mark.parametrize(
    ("num_stages", "cuts"),
    [(1, "0:30"), (2, "0:17,17:30"), (3, "0:11,11:22,22:30"), (4, "0:8,8:17,17:25,25:30")],
)
def test_the_default_model_is_cut_where_its_stages_take_equal_time(num_stages: int, cuts: str) -> None:
    ranges = balanced_split(30, num_stages, projection_layers(default_config()))
    assert ",".join(map(str, ranges)) == cuts


@given(st.data())
def test_no_balanced_split_has_a_slower_stage_than_another_cut_would(data: st.DataObject) -> None:
    num_layers = data.draw(st.integers(1, 9))
    num_stages = data.draw(st.integers(1, num_layers))
    extra = data.draw(st.floats(0, 20))

    def slowest(sizes: Sequence[int]) -> float:
        return max([*sizes[:-1], sizes[-1] + extra])

    ranges = balanced_split(num_layers, num_stages, extra)
    check_split(ranges, num_layers)
    assert len(ranges) == num_stages
    inner = combinations(range(1, num_layers), num_stages - 1)
    others = [[end - start for start, end in pairwise([0, *cuts, num_layers])] for cuts in inner]
    assert slowest([len(layers) for layers in ranges]) == min(map(slowest, others))


@pytest.mark.parametrize("num_stages", [0, -1, 31])
def test_more_stages_than_layers_or_none_are_refused(num_stages: int) -> None:
    for cut in (partial(equal_split, 30, num_stages), partial(balanced_split, 30, num_stages, 4.0)):
        with pytest.raises(SettingsError, match="1 to 30 stages") as caught:
            cut()
        assert caught.value.code is ErrorCode.INVALID_LAYER_RANGE


@pytest.mark.parametrize("weights", [[1], [1, 0], [1, -2], [1, float("nan")], [1, float("inf")]])
def test_weights_that_are_not_one_positive_number_each_are_refused(weights: list[float]) -> None:
    with pytest.raises(SettingsError, match="2 positive numbers"):
        equal_split(30, 2, weights)


@given(splits())
def test_every_exact_cover_reads_back_as_it_was_written(split: tuple[int, list[LayerRange]]) -> None:
    num_layers, ranges = split
    assert list(parse_split(", ".join(map(str, ranges)), num_layers)) == ranges


@given(splits(), st.data())
def test_no_cover_with_one_end_moved_is_taken(split: tuple[int, list[LayerRange]], data: st.DataObject) -> None:
    num_layers, ranges = split
    index = data.draw(st.integers(0, len(ranges) - 1))
    start, old_end = ranges[index].start, ranges[index].end
    end = data.draw(st.integers(start + 1, num_layers + 3).filter(lambda end: end != old_end))
    ranges[index] = LayerRange(start, end)
    with pytest.raises(SettingsError) as caught:
        check_split(ranges, num_layers)
    assert caught.value.code is ErrorCode.INVALID_LAYER_RANGE


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ("0:12,14:30", "layers 12:14 belong to no stage"),
        ("1:12,12:30", "layers 0:1 belong to no stage"),
        ("0:12,12:29", "layers 29:30 belong to no stage"),
        ("0:12,10:30", "layers 10:12 belong to two stages"),
        ("0:30,0:30", "layers 0:30 belong to two stages"),
        ("0:20,5:10,10:30", "layers 5:10 belong to two stages"),
        ("0:12,12:31", "only the layers 0:30"),
        ("12:30,0:12", "must be in order"),
        ("0:12,12:12,12:30", "12:12 are an empty range"),
        ("0:12,30:12", "30:12 are an empty range"),
        ("", "expected start:end"),
        ("0:12,,12:30", "expected start:end"),
        ("0-12", "expected start:end"),
        ("0:-1", "expected start:end"),
        ("a:b", "expected start:end"),
    ],
)
def test_a_wrong_split_is_refused_with_the_layers_named(split: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        parse_split(split, 30)
    assert caught.value.code is ErrorCode.INVALID_LAYER_RANGE


def test_no_ranges_at_all_are_refused() -> None:
    with pytest.raises(SettingsError, match="split is empty"):
        check_split([], 30)
