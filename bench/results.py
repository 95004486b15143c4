"""The rows of a machine's `results.json`: what was measured, against whom, and which way is better."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.samples import median
from bench.turns import Comparison

TOKENS_PER_S, MILLISECONDS, NATS, SHARE = "tok/s", "ms", "nats", "share"
MORE_IS_BETTER = {TOKENS_PER_S: True, SHARE: True, MILLISECONDS: False, NATS: False}
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number, in words."""

    what: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Row:
    """`ratio` above 1 always means that ours is better; `runs` is how often each side was measured."""

    work: str
    peer: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    runs: int


@dataclass(frozen=True, slots=True)
class Results:
    """All that `results.json` holds. `versions` are by package."""

    machine: str
    versions: Mapping[str, str]
    rows: tuple[Row, ...]


def row(work: str, peer: str, unit: str, ours: float, theirs: float, runs: int) -> Row:
    """A row with its ratio, figures rounded to what a measurement can say."""
    better, worse = (ours, theirs) if MORE_IS_BETTER[unit] else (theirs, ours)
    return Row(work, peer, unit, _rounded(ours), _rounded(theirs), _rounded(better / worse), runs)


def row_of(work: str, comparison: Comparison, unit: str = TOKENS_PER_S) -> Row:
    ours, theirs = median(comparison.ours), median(comparison.theirs)
    return row(work, comparison.peer, unit, ours, theirs, len(comparison.ours))


def merged(before: Results, after: Results) -> Results:
    """`after`, and what else was measured before."""
    fresh = {(row.work, row.peer) for row in after.rows}
    kept = tuple(row for row in before.rows if (row.work, row.peer) not in fresh)
    return Results(after.machine, {**before.versions, **after.versions}, kept + after.rows)


def is_comparable(before: Results, after: Results) -> bool:
    """Of the same machine with the same versions; a run without llama.cpp does not name its version."""
    named_twice = before.versions.keys() & after.versions.keys()
    return before.machine == after.machine and all(before.versions[n] == after.versions[n] for n in named_twice)


def read(path: Path) -> Results | None:
    """The results of an earlier run; None if there are none.

    Raises:
        ValueError: the file is there and not of the form that `write` gives it.
    """
    if not path.exists():
        return None
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
        return Results(parsed["machine"], parsed["versions"], tuple(_checked(Row(**row)) for row in parsed["rows"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a results file ({error}); delete it and measure again") from None


def write(results: Results, path: Path) -> None:
    path.write_text(json.dumps(asdict(results), indent=1) + "\n", encoding="utf-8")


def find(rows: Iterable[Row], work: str, peer: str) -> Row | None:
    return next((row for row in rows if (row.work, row.peer) == (work, peer)), None)


def _checked(row: Row) -> Row:
    words = (row.work, row.peer, row.unit)
    numbers = (row.ours, row.theirs, row.ratio, row.runs)
    if not all(isinstance(word, str) for word in words) or not all(isinstance(n, int | float) for n in numbers):
        raise TypeError(f"a field of the row {row.work!r} has the wrong type")
    if row.unit not in MORE_IS_BETTER:
        raise TypeError(f"unit {row.unit!r} is none of {', '.join(MORE_IS_BETTER)}")
    return row


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
