"""Which stages make a pipeline, and how the broker says what is missing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from support.broker_world import STAGE

from stagewire.broker.chain import find_chain, is_whole, missing_layers
from stagewire.wire.control import StageInfo


def stage(name: str, start: int, end: int, fingerprint: str = "fp") -> StageInfo:
    return replace(STAGE, stage_id=name, layer_start=start, layer_end=end, fingerprint=fingerprint)


def names(chain: tuple[StageInfo, ...] | None) -> list[str] | None:
    return None if chain is None else [info.stage_id for info in chain]


def test_a_chain_covers_all_layers_in_order_whatever_the_order_of_registration() -> None:
    stages = [stage("c", 20, 30), stage("a", 0, 10), stage("b", 10, 20)]
    assert names(find_chain(stages)) == ["a", "b", "c"]


def test_fewest_stages_win_then_first_names() -> None:
    two = [stage("y", 0, 15), stage("x", 0, 15), stage("z", 15, 30)]
    assert names(find_chain(two)) == ["x", "z"]
    assert names(find_chain([*two, stage("whole", 0, 30)])) == ["whole"]


def test_gaps_overlaps_and_unequal_numerics_make_no_chain() -> None:
    assert find_chain([]) is None
    assert find_chain([stage("a", 0, 10), stage("b", 11, 30)]) is None
    assert find_chain([stage("a", 0, 16), stage("b", 15, 30)]) is None
    assert find_chain([stage("a", 0, 15), stage("b", 15, 30, fingerprint="other")]) is None
    assert find_chain([stage("a", 0, 15), replace(stage("b", 15, 30), block_size=8)]) is None


def test_a_stage_that_does_not_fit_is_left_out() -> None:
    assert names(find_chain([stage("a", 0, 15), stage("b", 15, 30), stage("spare", 10, 20)])) == ["a", "b"]


def test_missing_layers_are_named() -> None:
    assert missing_layers([]) == "no stage has registered"
    assert missing_layers([stage("a", 0, 15), stage("b", 15, 30)]) == ""
    text = missing_layers([stage("a", 5, 10), stage("b", 15, 20)])
    assert text == "tiny (f32, fingerprint fp): nobody holds layers 0:5, 10:15, 20:30 of 30"
    overlap = missing_layers([stage("a", 0, 16), stage("b", 15, 30)])
    assert "the ranges 0:16, 15:30 overlap and make no chain" in overlap
    assert missing_layers([stage("a", 0, 15), stage("b", 15, 30, "other")]).count("nobody holds") == 2


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=8))
def test_a_chain_is_found_exactly_when_one_exists(ranges: list[tuple[int, int]]) -> None:
    """Against a search that tries everything; what is found is whole and one of the shortest."""
    stages = [
        replace(stage(f"s{index}", start, end), num_layers=6)
        for index, (start, end) in enumerate(ranges)
        if start < end
    ]

    def shortest(start: int) -> int | None:
        if start == 6:
            return 0
        lengths = [shortest(info.layer_end) for info in stages if info.layer_start == start]
        found = [length for length in lengths if length is not None]
        return min(found) + 1 if found else None

    chain = find_chain(stages)
    assert (None if chain is None else len(chain)) == shortest(0)
    if chain is not None:
        assert is_whole(chain)
        assert len({info.stage_id for info in chain}) == len(chain)
    else:
        assert missing_layers(stages)
