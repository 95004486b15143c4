"""`python -m bench.versions --before CHECKOUT`: this version and another one, measured in turns in one run.

A round starts a cluster of each and asks both for every measure, one right after the other; the next round starts
with the other side. A row's ratio is that of the medians, above 1 where this version is better, with a 95% interval
from drawing the rounds again (bootstrap).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.command_line import clocked_progress, exit_code, names_of, positive
from bench.results import MORE_IS_BETTER, Figure
from bench.samples import median, ratio_interval
from bench.tables import number, table
from bench.version_worker import MEASURES
from bench.worker_process import WorkerProcess
from stagewire.model.catalogue import DEFAULT_MODEL
from stagewire.wire.errors import StagewireError

BEFORE, AFTER = "before", "after"
_HERE = Path(__file__).resolve().parent.parent
_STOP_S = 30.0
_MEASURE_S = 1200.0
_EXAMPLES = """\
examples:
  python -m bench.versions --before ../stagewire-before
  python -m bench.versions --before ../stagewire-before --only decode_8,overhead --rounds 20
"""


class VersionError(StagewireError):
    """A version could not be started, or could not measure what it was asked for."""


@dataclass(frozen=True, slots=True)
class VersionRow:
    """Figures of both versions, a pair of each round; `low` and `high` bound the ratio."""

    name: str
    unit: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    ratio: float
    low: float
    high: float


@dataclass
class Pairs:
    """All that was measured so far, by figure."""

    units: dict[str, str] = field(default_factory=dict)
    samples: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, before: Iterable[Figure], after: Iterable[Figure]) -> None:
        for old, new in zip(before, after, strict=True):
            self.units[old.what] = old.unit
            self.samples.setdefault(old.what, []).append((old.value, new.value))

    def rows(self) -> list[VersionRow]:
        return [_row(name, self.units[name], pairs) for name, pairs in self.samples.items()]


def _row(name: str, unit: str, pairs: list[tuple[float, float]]) -> VersionRow:
    before, after = (tuple(values) for values in zip(*pairs, strict=True))
    better, worse = (after, before) if MORE_IS_BETTER[unit] else (before, after)
    low, high = ratio_interval(better, worse)
    ratio = median(better) / median(worse) if median(worse) else float("nan")
    return VersionRow(name, unit, before, after, ratio, low, high)


def order(round_number: int) -> tuple[str, str]:
    """Before and after, after and before, and so on: a slow drift meets both alike."""
    return (BEFORE, AFTER) if round_number % 2 == 0 else (AFTER, BEFORE)


def environment_of(checkout: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """That of a checkout's Python: its own package, and nobody else's."""
    others = {name: value for name, value in inherited.items() if name != "PYTHONPATH"}
    source = checkout / "src"
    return others | ({"PYTHONPATH": str(source)} if (source / "stagewire").is_dir() else {})


@contextlib.contextmanager
def _started(who: str, checkout: Path, python: str, model: str, seed: int) -> Iterator[WorkerProcess]:
    """A worker whose cluster serves.

    Raises:
        VersionError: it does not start, or runs another checkout's package.
    """
    worker = WorkerProcess(
        who,
        "bench.version_worker",
        VersionError,
        python=python,
        environment=environment_of(checkout, os.environ),
        timeout_s=_MEASURE_S,
        end_s=_STOP_S,
    )
    try:
        package = Path(str(worker.ask("start", model=model, seed=seed)))
        if not package.is_relative_to(checkout):
            raise VersionError(f"{python} imports {package}, which is not of {checkout}")
        yield worker
    finally:
        worker.close()


def _measured(worker: WorkerProcess, name: str) -> list[Figure]:
    found = worker.ask("measure", name=name)
    assert isinstance(found, list)
    return [Figure(**one) for one in found]


def play(options: argparse.Namespace, pairs: Pairs) -> None:
    progress = clocked_progress()
    checkouts = {BEFORE: options.before.resolve(), AFTER: _HERE}
    pythons = {
        BEFORE: str((options.before_python or options.before / ".venv/bin/python").absolute()),
        AFTER: sys.executable,
    }
    for number_of_round in range(options.rounds):
        with contextlib.ExitStack() as stack:
            workers = {
                who: stack.enter_context(
                    _started(who, checkouts[who], pythons[who], options.model, seed=1 + number_of_round)
                )
                for who in order(number_of_round)
            }
            for name in options.only:
                try:
                    found = {who: _measured(workers[who], name) for who in workers}
                except VersionError as error:
                    pairs.notes.append(f"round {number_of_round + 1}, {name}: {error}")
                    progress(f"  {pairs.notes[-1]}")
                    continue
                pairs.add(found[BEFORE], found[AFTER])
                both = zip(found[BEFORE], found[AFTER], strict=True)
                told = ", ".join(f"{old.what} {number(old.value)} -> {number(new.value)}" for old, new in both)
                progress(f"round {number_of_round + 1}: {told}")


def report(pairs: Pairs) -> str:
    head = ("what", "unit", BEFORE, AFTER, "ratio", "95% interval", "rounds")
    notes = [f"- {note}" for note in ("A ratio above 1 says that `after` is better.", *pairs.notes)]
    return table(head, [_cells(one) for one in pairs.rows()]) + "\n" + "\n".join(notes)


def _cells(one: VersionRow) -> list[str]:
    num_rounds = len(one.before)
    interval = f"{one.low:.3f} to {one.high:.3f}" if num_rounds > 1 else ""
    medians = [number(median(one.before)), number(median(one.after))]
    return [one.name, one.unit, *medians, f"{one.ratio:.3f}", interval, str(num_rounds)]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.versions",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--before", type=Path, required=True, metavar="CHECKOUT", help="the other version's tree")
    parser.add_argument(
        "--before-python", type=Path, metavar="PATH", help="its Python (default: CHECKOUT/.venv/bin/python)"
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a known name, or a .gguf file (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=10, metavar="N", help="pairs of clusters (default: 10)")
    measures = tuple(MEASURES)
    parser.add_argument(
        "--only",
        type=names_of(measures),
        default=measures,
        metavar="NAMES",
        help=f"some of {', '.join(measures)}, with commas between",
    )
    parser.add_argument("--json", action="store_true", help="print rows with all samples as JSON")
    return parser


def run(options: argparse.Namespace) -> None:
    pairs = Pairs()
    try:
        play(options, pairs)
    except KeyboardInterrupt:
        pairs.notes.append("Stopped before all rounds were played.")
    finally:  # what was measured is worth telling, whatever ended it
        found = {"rows": [asdict(one) for one in pairs.rows()], "notes": pairs.notes}
        print(json.dumps(found, indent=1) if options.json else report(pairs))


def main() -> int:
    return exit_code(run, build_parser().parse_args())


if __name__ == "__main__":
    sys.exit(main())
