"""Whose turn it is: sides are measured one after the other, round by round, until every comparison is steady.

A round is `runs` turns of each side in alternation. A comparison (ours against one peer) is steady if in one round
neither side's samples spread more than `max_spread` and the machine was quiet; any other round is discarded for it
and repeated, at most `max_rounds` times. Where none was steady, the least unsteady round is reported as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.samples import spread

OURS = "stagewire"


@dataclass(frozen=True, slots=True)
class Round:
    """Samples by side, and the share of the machine that others used just before or after it."""

    samples: Mapping[str, tuple[float, ...]]
    busy_share: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The round that counts for one peer. `num_discarded` rounds were measured besides."""

    peer: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    busy_share: float
    is_steady: bool
    num_discarded: int

    @property
    def spread(self) -> float:
        return max(spread(self.ours), spread(self.theirs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How often, and what is discarded."""

    runs: int = 5
    max_rounds: int = 3
    max_spread: float = 0.10
    max_busy_share: float = 0.10


class Turns:
    """Decides who is measured next; it measures nothing itself."""

    def __init__(self, peers: Sequence[str], rules: Rules) -> None:
        self._peers, self._rules = tuple(peers), rules
        self._rounds: list[Round] = []

    def next_round(self) -> tuple[str, ...]:
        """The sides of the next round, ours first; none when all is decided."""
        if len(self._rounds) >= self._rules.max_rounds:
            return ()
        waiting = tuple(peer for peer in self._peers if not any(self._is_steady(peer, done) for done in self._rounds))
        return (OURS, *waiting) if waiting or not self._rounds else ()

    def schedule(self, sides: Sequence[str]) -> Iterator[str]:
        """The turns of one round in order: all sides, again and again, so that a slow drift meets each alike."""
        for _ in range(self._rules.runs):
            yield from sides

    def add(self, done: Round) -> None:
        self._rounds.append(done)

    def comparisons(self) -> list[Comparison]:
        return [self._comparison(peer) for peer in self._peers]

    def _comparison(self, peer: str) -> Comparison:
        measured = [done for done in self._rounds if peer in done.samples]
        steady = [done for done in measured if self._is_steady(peer, done)]
        best = steady[0] if steady else min(measured, key=lambda done: self._unsteadiness(peer, done))
        return Comparison(
            peer=peer,
            ours=best.samples[OURS],
            theirs=best.samples[peer],
            busy_share=best.busy_share,
            is_steady=bool(steady),
            num_discarded=len(measured) - 1,
        )

    def _is_steady(self, peer: str, done: Round) -> bool:
        return peer in done.samples and self._unsteadiness(peer, done) <= 1.0

    def _unsteadiness(self, peer: str, done: Round) -> float:
        """1 is just good enough."""
        widest = max(spread(done.samples[OURS]), spread(done.samples[peer]))
        return max(widest / self._rules.max_spread, done.busy_share / self._rules.max_busy_share)


def take_turns(
    turns: Turns,
    measure: Callable[[str], float],
    wait_until_quiet: Callable[[], float],
    progress: Callable[[str], None],
) -> list[Comparison]:
    """Plays all rounds: `measure` gives one sample of a side, `wait_until_quiet` the share that others still use."""
    number = 0
    while sides := turns.next_round():
        number += 1
        busy_share = wait_until_quiet()
        samples: dict[str, list[float]] = {side: [] for side in sides}
        for side in turns.schedule(sides):
            samples[side].append(measure(side))
        busy_share = max(busy_share, wait_until_quiet())
        turns.add(Round({side: tuple(values) for side, values in samples.items()}, busy_share))
        progress(f"round {number}: " + ", ".join(f"{side} {_brief(samples[side])}" for side in sides))
    return turns.comparisons()


def _brief(values: Sequence[float]) -> str:
    return f"{sorted(values)[len(values) // 2]:.4g} (spread {100 * spread(values):.0f}%)"
