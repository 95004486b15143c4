"""Writes `docs/benchmarks.md` from results and measurements: method, tables, shortfalls, how to repeat. Pure text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.measurements import Measured, Measurements
from bench.results import Results, Row
from bench.targets import TARGETS, shortfalls

PAGE_PATH = Path(__file__).resolve().parent.parent / "docs/benchmarks.md"

_METHOD = """\
# Benchmarks

Written by `make bench`; do not edit. Every figure was measured on one machine in one run, ours and theirs in turns.

## Method

- Stagewire runs as its users have it: a broker, two stages of one thread each, and a client, all processes of their
  own with real sockets. Times are the client's: prefill from sending the request to its first token, decode from the
  moment when all sequences have their first token until each has 64 more. One cut and one setting for all rows.
- llama.cpp is compiled for the machine it runs on and driven through its low-level batch API in one process: flash
  attention on, no drawing of tokens, batches built before the clock starts. For each work the fastest layout of
  weights (tiles, rows side by side, plain) and size of micro-batches is found first, and used. `llama.cpp` is the
  model file that Stagewire serves; `-q4_0` and `-bf16` are the same model requantized. Q4_0 is shown for its speed:
  see its accuracy below. `-rpc` is split over two of its own RPC servers of one thread each.
- Equal threads: two in all on both sides. A single sequence keeps one of our two threads busy at a time, so the rows
  of one sequence are against one thread of llama.cpp; `-2-threads` shows what it does with both.
- Prompts are random tokens, new ones each time, so that no prefix cache answers them.
- Sides take turns, never two at once, round by round. A figure is the median of a round's runs. A round in which
  either side spread more than 10% (largest minus smallest, against the median), or during which others used more
  than 10% of the machine, is discarded and repeated, at most twice; what remains unsteady is marked `~`.
- `ratio` above 1 always means that Stagewire is better; it is bold where the target, or without one 1, is reached.
"""

_REPEAT = """\
## How to repeat

```sh
make bench                       # all of it; compiles llama.cpp the first time, about ten minutes
make bench ARGS="--quick"        # fewer runs, no repetition: shows that it works, its figures are rough
make bench-sweep                 # stages 1 to 4, delays of 0 to 20 ms on every link
```

`bench/results.json` holds the rows, `bench/measurements.json` every sample behind them.
"""


def page(results: Results, measured: Measurements) -> str:
    parts = [_METHOD, _machine(results, measured), _rows(results.rows, measured.comparisons), _accuracy(measured)]
    parts += [_figures("Stagewire by itself", measured), _sweep(measured), _shortfalls(results.rows)]
    return "\n".join(part for part in [*parts, _notes(measured), _REPEAT] if part)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def number(value: float) -> str:
    """Three digits that count: 1234, 12.3, 0.00123."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _machine(results: Results, measured: Measurements) -> str:
    lines = [f"## Machine\n\n{results.machine}.", f"\n{measured.cluster}" if measured.cluster else ""]
    packages = ", ".join(f"{name} {version}" for name, version in results.versions.items() if name != "llama.cpp")
    lines.append(f"\nVersions: {packages}.")
    if "llama.cpp" in results.versions:
        lines.append(f"\nllama.cpp was built for: {results.versions['llama.cpp']}.")
    return "\n".join(line for line in lines if line) + "\n"


def _rows(rows: Sequence[Row], comparisons: Sequence[Measured]) -> str:
    head = ("work", "against", "unit", "ours", "theirs", "ratio", "target", "runs", "spread")
    by_name = {(one.work, one.peer): one for one in comparisons}
    body = [_cells(row, by_name.get((row.work, row.peer))) for row in rows]
    return "## Side by side\n\n" + table(head, body)


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
    return "## Accuracy, against float32 on a fixed text\n\n" + table(head, body)


def _figures(title: str, measured: Measurements) -> str:
    if not measured.figures:
        return ""
    body = [(figure.what, number(figure.value), figure.unit) for figure in measured.figures]
    return f"## {title}\n\n" + table(("what", "measured", "unit"), body)


def _sweep(measured: Measurements) -> str:
    if not measured.sweep:
        return ""
    body = [(figure.what, number(figure.value), figure.unit) for figure in measured.sweep]
    text = "The floor is what no pipeline can beat: the forward passes of all stages, plus every link's delay.\n\n"
    return "## Stages and delays\n\n" + text + table(("what", "measured", "unit"), body)


def _shortfalls(rows: Sequence[Row]) -> str:
    short = shortfalls(rows)
    if not short:
        return ""
    body = [
        (one.row.work, one.row.peer, f"{one.row.ratio:.2f}", f"{one.target:.2f}")
        for one in sorted(short, key=lambda one: one.row.ratio / one.target)
    ]
    return "## What falls short of its target\n\n" + table(("work", "against", "ratio", "target"), body)


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
    return "## Notes\n\n" + "\n".join(f"- {note}" for note in notes) + "\n" if notes else ""
