"""What `docs/benchmarks.md` says of one machine: its rows, accuracy, own figures, shortfalls and notes. Pure text."""

from __future__ import annotations

from collections.abc import Sequence

from bench.measurements import Measured, Measurements
from bench.record import Machine
from bench.results import Results, Row
from bench.tables import number, table
from bench.targets import TARGETS, shortfalls


def machine_sections(machine: Machine, picture: str) -> str:
    """`picture` is the link to the bars of its rows, if there are any."""
    results, measured = machine.results, machine.measured
    parts = [_machine(machine.slug, results, measured), picture, _rows(results.rows, measured.comparisons)]
    parts += [_accuracy(measured), _figures("Stagewire by itself", measured), _sweep(measured)]
    return "\n".join(part for part in [*parts, _shortfalls(results.rows), _notes(measured)] if part)


def _machine(slug: str, results: Results, measured: Measurements) -> str:
    lines = [f"## {slug}\n\n{results.machine}.", f"\n{measured.cluster}" if measured.cluster else ""]
    packages = ", ".join(f"{name} {version}" for name, version in results.versions.items() if name != "llama.cpp")
    lines.append(f"\nVersions: {packages}.")
    if "llama.cpp" in results.versions:
        lines.append(f"\nllama.cpp was built for: {results.versions['llama.cpp']}.")
    return "\n".join(line for line in lines if line) + "\n"


def _rows(rows: Sequence[Row], comparisons: Sequence[Measured]) -> str:
    head = ("work", "against", "unit", "ours", "theirs", "ratio", "target", "runs", "spread")
    by_name = {(one.work, one.peer): one for one in comparisons}
    body = [_cells(row, by_name.get((row.work, row.peer))) for row in rows]
    return "### Side by side\n\n" + table(head, body)


def _cells(row: Row, measured: Measured | None) -> list[str]:
    target = TARGETS.get((row.work, row.peer))
    is_reached = row.ratio >= (1.0 if target is None else target)
    ratio = f"**{row.ratio:.2f}**" if is_reached else f"{row.ratio:.2f}"
    spread = "" if measured is None else f"{'' if measured.is_steady else '~ '}{100 * measured.spread:.0f}%"
    wanted = "" if target is None else f"{target:.2f}"
    values = [row.unit, number(row.ours), number(row.theirs), ratio, wanted, str(row.runs), spread]
    return [row.work, row.peer, *values]


def _accuracy(measured: Measurements) -> str:
    if not measured.accuracy:
        return ""
    body = [(line.who, f"{line.kl:.2g}", f"{100 * line.top1:.1f}%", str(line.num_tokens)) for line in measured.accuracy]
    head = ("who", "KL divergence, nats", "same likeliest token", "positions")
    return "### Accuracy, against float32 on a fixed text\n\n" + table(head, body)


def _figures(title: str, measured: Measurements) -> str:
    if not measured.figures:
        return ""
    body = [(figure.what, number(figure.value), figure.unit) for figure in measured.figures]
    return f"### {title}\n\n" + table(("what", "measured", "unit"), body)


def _sweep(measured: Measurements) -> str:
    if not measured.sweep:
        return ""
    body = [(figure.what, number(figure.value), figure.unit) for figure in measured.sweep]
    text = "The floor is what no pipeline can beat: the forward passes of all stages, plus every link's delay.\n\n"
    return "### Stages and delays\n\n" + text + table(("what", "measured", "unit"), body)


def _shortfalls(rows: Sequence[Row]) -> str:
    short = shortfalls(rows)
    if not short:
        return ""
    body = [
        (one.row.work, one.row.peer, f"{one.row.ratio:.2f}", f"{one.target:.2f}")
        for one in sorted(short, key=lambda one: one.row.ratio / one.target)
    ]
    return "### What falls short of its target\n\n" + table(("work", "against", "ratio", "target"), body)


def _notes(measured: Measurements) -> str:
    unsteady = [one for one in measured.comparisons if not one.is_steady]
    notes = list(measured.notes)
    if unsteady:
        notes.append(
            f"{len(unsteady)} of {len(measured.comparisons)} comparisons never were steady (`~`); "
            f"the widest spread is {100 * max(one.spread for one in unsteady):.0f}%."
        )
    settings = {(one.peer, one.work): one.setting for one in measured.comparisons if one.setting}
    notes += [f"{peer} at {work}: {setting}." for (peer, work), setting in sorted(settings.items())]
    return "### Notes\n\n" + "\n".join(f"- {note}" for note in notes) + "\n" if notes else ""
