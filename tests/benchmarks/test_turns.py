"""Who is measured when, which rounds are discarded, and what is reported when none was good."""

from __future__ import annotations

from collections.abc import Iterator

from bench.turns import OURS, Comparison, Round, Rules, Turns, take_turns

RULES = Rules(runs=3, max_rounds=3, max_spread=0.10, max_busy_share=0.10)
STEADY = (99.0, 100.0, 101.0)
SHAKY = (80.0, 100.0, 120.0)


def test_sides_alternate_within_a_round() -> None:
    """Never all runs of one side in a row: a drift of the machine meets every side alike."""
    turns = Turns(["a", "b"], RULES)
    assert list(turns.schedule(turns.next_round())) == [OURS, "a", "b"] * 3


def test_a_steady_round_is_enough() -> None:
    turns = Turns(["a"], RULES)
    turns.add(Round({OURS: STEADY, "a": STEADY}, busy_share=0.0))
    assert turns.next_round() == ()
    assert turns.comparisons() == [Comparison("a", STEADY, STEADY, 0.0, is_steady=True, num_discarded=0)]


def test_only_the_unsteady_peer_is_measured_again_and_ours_beside_it() -> None:
    turns = Turns(["a", "b"], RULES)
    turns.add(Round({OURS: STEADY, "a": STEADY, "b": SHAKY}, busy_share=0.0))
    assert turns.next_round() == (OURS, "b")
    later = (89.0, 90.0, 91.0)
    turns.add(Round({OURS: later, "b": STEADY}, busy_share=0.0))
    assert turns.next_round() == ()
    a, b = turns.comparisons()
    assert (a.ours, a.num_discarded) == (STEADY, 0)
    assert (b.ours, b.theirs, b.num_discarded, b.is_steady) == (later, STEADY, 1, True)


def test_our_own_unsteadiness_discards_as_well() -> None:
    turns = Turns(["a"], RULES)
    turns.add(Round({OURS: SHAKY, "a": STEADY}, busy_share=0.0))
    assert turns.next_round() == (OURS, "a")


def test_a_round_on_a_busy_machine_is_discarded() -> None:
    turns = Turns(["a"], RULES)
    turns.add(Round({OURS: STEADY, "a": STEADY}, busy_share=0.5))
    assert turns.next_round() == (OURS, "a")


def test_repetition_is_bounded_and_the_least_unsteady_round_is_reported_as_unsteady() -> None:
    turns = Turns(["a"], RULES)
    turns.add(Round({OURS: SHAKY, "a": STEADY}, busy_share=0.0))
    turns.add(Round({OURS: (90.0, 100.0, 105.0), "a": STEADY}, busy_share=0.0))
    turns.add(Round({OURS: STEADY, "a": STEADY}, busy_share=0.9))
    assert turns.next_round() == ()
    (reported,) = turns.comparisons()
    assert (reported.ours, reported.is_steady, reported.num_discarded) == ((90.0, 100.0, 105.0), False, 2)
    assert reported.spread > RULES.max_spread


def test_the_loop_plays_rounds_until_all_are_steady() -> None:
    """One bad first round of one peer: the second has ours and that peer, and then it ends."""
    order: list[str] = []
    samples: dict[str, Iterator[float]] = {
        OURS: iter([100.0] * 6),
        "a": iter([50.0, 100.0, 150.0, 100.0, 101.0, 102.0]),
        "b": iter([30.0] * 3),
    }

    def measure(side: str) -> float:
        order.append(side)
        return next(samples[side])

    a, b = take_turns(Turns(["a", "b"], RULES), measure, lambda: 0.0, lambda _line: None)
    assert order == [OURS, "a", "b"] * 3 + [OURS, "a"] * 3
    assert (a.theirs, a.is_steady, b.theirs, b.is_steady) == ((100.0, 101.0, 102.0), True, (30.0,) * 3, True)


def test_a_machine_that_gets_busy_during_a_round_counts_as_busy() -> None:
    """It is looked at before and after; the worse counts."""
    shares = iter([0.0, 0.4, 0.0, 0.0])
    (found,) = take_turns(Turns(["a"], RULES), lambda _side: 1.0, lambda: next(shares), lambda _line: None)
    assert (found.is_steady, found.num_discarded) == (True, 1)
