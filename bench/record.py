"""What was measured, by processor, and what one command adds to it: each step is in the files as soon as it is done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import measurements, results
from bench.machine import machine_description, this_processor, versions
from bench.measurements import Measurements
from bench.results import Results, Row
from bench.stagewire_side import MeasurementError
from stagewire.client import RequestFailed, RequestRefused

MACHINES_PATH = Path(__file__).resolve().parent / "machines"
UNMEASURABLE = (MeasurementError, RequestFailed, RequestRefused, TimeoutError, asyncio.TimeoutError)
"""What leaves a row out; anything else ends the run."""


@dataclass(frozen=True, slots=True)
class Machine:
    """All that was measured on one processor; `slug` is the name of its folder."""

    slug: str
    results: Results
    measured: Measurements


def read_machine(folder: Path) -> Machine | None:
    """None where nothing was measured."""
    found, measured = results.read(folder / "results.json"), measurements.read(folder / "measurements.json")
    return None if found is None or measured is None else Machine(folder.name, found, measured)


def read_machines(path: Path = MACHINES_PATH) -> list[Machine]:
    """All, by name."""
    found = [read_machine(folder) for folder in sorted(path.iterdir())] if path.is_dir() else []
    return [machine for machine in found if machine is not None]


class Record:
    """Rows and measurements of one run of a command, kept with what was measured on this processor before.

    A run that is interrupted leaves a list of its steps; one that resumes it passes those over, and the last step's
    end removes the list. `publish` is called whenever files were written. Without `is_kept` nothing is read or written.
    """

    def __init__(
        self,
        command: str,
        progress: Callable[[str], None],
        *,
        is_kept: bool = True,
        is_resumed: bool = False,
        path: Path = MACHINES_PATH,
        publish: Callable[[], None] = lambda: None,
    ) -> None:
        self.rows: list[Row] = []
        self.measured = Measurements()
        self.versions = versions(None)
        self._machine, self._slug = machine_description(), this_processor().slug
        self._folder = path / self._slug
        self._steps_path = self._folder / f"unfinished-{command}.json"
        self._progress, self._is_kept, self._publish = progress, is_kept, publish
        self._steps: list[str] = []
        if is_resumed:
            self._resume()

    def step(self, name: str, measure: Callable[[], None]) -> None:
        """Measures and keeps what came of it; what cannot be measured is left out, and the notes say why."""
        if name in self._steps:
            self._progress(f"{name}: there already")
            return
        try:
            measure()
        except UNMEASURABLE as error:
            self.left_out(name, error)
        self._steps.append(name)
        if self._is_kept:
            self._keep()
            self._steps_path.write_text(json.dumps(self._steps) + "\n", encoding="utf-8")

    def left_out(self, what: str, error: Exception) -> None:
        self.measured.notes.append(f"{what} was left out: {str(error) or type(error).__name__}.")
        self._progress(f"  {self.measured.notes[-1]}")

    def finish(self) -> Machine:
        """Nothing is left to resume; returns what is known of this processor."""
        if self._is_kept:
            self._keep()
            self._steps_path.unlink(missing_ok=True)
        return self._merged()

    def _resume(self) -> None:
        before = self._before()
        if before is None or not self._steps_path.exists():
            self._progress("nothing to resume on this processor with these versions; starting at the beginning")
            return
        self._steps = json.loads(self._steps_path.read_text(encoding="utf-8"))
        self.measured.notes = list(before.measured.notes)

    def _now(self) -> Results:
        return Results(self._machine, self.versions, tuple(self.rows))

    def _before(self) -> Machine | None:
        """What may stand beside what is measured now."""
        before = read_machine(self._folder) if self._is_kept else None
        return before if before is not None and results.is_comparable(before.results, self._now()) else None

    def _merged(self) -> Machine:
        before, now = self._before(), self._now()
        if before is None:
            return Machine(self._slug, now, self.measured)
        measured = measurements.merged(before.measured, self.measured)
        return Machine(self._slug, results.merged(before.results, now), measured)

    def _keep(self) -> None:
        merged = self._merged()
        self._folder.mkdir(parents=True, exist_ok=True)
        results.write(merged.results, self._folder / "results.json")
        measurements.write(merged.measured, self._folder / "measurements.json")
        self._publish()
