"""A machine's `measurements.json`: every sample behind its `results.json`, and figures without a peer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.results import Figure
from bench.turns import Comparison


@dataclass(frozen=True, slots=True)
class Measured:
    """One comparison at one work. `setting` is the peer's, in words."""

    work: str
    peer: str
    setting: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    spread: float
    busy_share: float
    is_steady: bool
    num_discarded: int


@dataclass(frozen=True, slots=True)
class AccuracyLine:
    """Against float32, over `num_tokens` positions of our text; `who` is a precision of ours, or a peer."""

    who: str
    kl: float
    top1: float
    num_tokens: int


@dataclass
class Measurements:
    """What one run of the bench saw. `notes` say what was left out, and why."""

    cluster: str = ""
    comparisons: list[Measured] = field(default_factory=list)
    accuracy: list[AccuracyLine] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    sweep: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, work: str, comparisons: Sequence[Comparison], settings: Mapping[str, str]) -> None:
        for one in comparisons:
            self.comparisons.append(
                Measured(
                    work=work,
                    peer=one.peer,
                    setting=settings.get(one.peer, ""),
                    ours=one.ours,
                    theirs=one.theirs,
                    spread=one.spread,
                    busy_share=one.busy_share,
                    is_steady=one.is_steady,
                    num_discarded=one.num_discarded,
                )
            )


def read(path: Path) -> Measurements | None:
    """Those of an earlier run; None if there are none."""
    if not path.exists():
        return None
    parsed = json.loads(path.read_text(encoding="utf-8"))
    return Measurements(
        cluster=parsed["cluster"],
        comparisons=[
            Measured(**(one | {"ours": tuple(one["ours"]), "theirs": tuple(one["theirs"])}))
            for one in parsed["comparisons"]
        ],
        accuracy=[AccuracyLine(**line) for line in parsed["accuracy"]],
        figures=[Figure(**figure) for figure in parsed["figures"]],
        sweep=[Figure(**figure) for figure in parsed["sweep"]],
        notes=parsed["notes"],
    )


def write(measurements: Measurements, path: Path) -> None:
    path.write_text(json.dumps(asdict(measurements), indent=1) + "\n", encoding="utf-8")


def merged(before: Measurements, after: Measurements) -> Measurements:
    """`after`, and of `before` what was not measured again: comparisons and figures one by one, the rest as a whole."""
    fresh = {(one.work, one.peer) for one in after.comparisons}
    kept = [one for one in before.comparisons if (one.work, one.peer) not in fresh]
    return Measurements(
        cluster=after.cluster or before.cluster,
        comparisons=kept + after.comparisons,
        accuracy=after.accuracy or before.accuracy,
        figures=_merged_figures(before.figures, after.figures),
        sweep=_merged_figures(before.sweep, after.sweep),
        notes=after.notes or before.notes,
    )


def _merged_figures(before: list[Figure], after: list[Figure]) -> list[Figure]:
    fresh = {figure.what for figure in after}
    return [figure for figure in before if figure.what not in fresh] + after
