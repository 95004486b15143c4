"""Writes `docs/benchmarks.md` and its pictures: method, machines side by side, each by itself, how to repeat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.bars import bars
from bench.machine_page import machine_sections
from bench.record import Machine
from bench.results import find
from bench.tables import number, table

DOCS_PATH = Path(__file__).resolve().parent.parent / "docs"
_MAIN_ROWS = (
    ("prefill_512", "llama.cpp"),
    ("prefill_512", "llama.cpp-q4_0"),
    ("decode_1", "llama.cpp"),
    ("decode_1", "llama.cpp-2-threads"),
    ("decode_8", "llama.cpp"),
    ("decode_8", "llama.cpp-q4_0"),
    ("decode_16", "llama.cpp"),
    ("decode_1_at_6144", "llama.cpp"),
    ("overhead_per_token", "limit"),
    ("inter_token_p99_while_6000_prefill", "limit"),
)

_METHOD = """\
# Benchmarks

Written by `make bench`; do not edit. Each machine has its own figures, ours and theirs measured in turns.

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
- Sequences that did not run together for long enough are measured again with longer streams. What still cannot be
  measured is left out, and the notes say why.
- `ratio` above 1 always means that Stagewire is better; it is bold where the target, or without one 1, is reached.
"""

_REPEAT = """\
## How to repeat

```sh
make bench                       # all of it; compiles llama.cpp the first time, about ten minutes
make bench ARGS="--resume"       # goes on behind the last row of a run that was interrupted
make bench ARGS="--quick"        # fewer runs, no repetition: shows that it works, its figures are rough
make bench-sweep                 # stages 1 to 4, delays of 0 to 20 ms on every link
make bench-versions ARGS="--before ../other-checkout"   # two versions of Stagewire in turns
```

`bench/machines/` has a folder for each processor: `results.json` holds the rows, `measurements.json` every sample
behind them. A row is there as soon as it is measured.
"""


def page(machines: Sequence[Machine]) -> str:
    sections = [machine_sections(machine, _picture(machine)) for machine in machines]
    return "\n".join([_METHOD, _side_by_side(machines), *sections, _REPEAT])


def pictures(machines: Sequence[Machine]) -> dict[str, str]:
    """SVG by path below `docs/`, for each machine that has rows to draw."""
    drawn = {_picture_path(machine): bars(machine.slug, machine.results.rows) for machine in machines}
    return {path: text for path, text in drawn.items() if text}


def write_page(machines: Sequence[Machine]) -> None:
    (DOCS_PATH / "benchmarks.md").write_text(page(machines), encoding="utf-8")
    for path, text in pictures(machines).items():
        (DOCS_PATH / path).parent.mkdir(exist_ok=True)
        (DOCS_PATH / path).write_text(text, encoding="utf-8")


def _picture_path(machine: Machine) -> str:
    return f"images/benchmarks-{machine.slug}.svg"


def _picture(machine: Machine) -> str:
    drawn = pictures([machine])
    return "".join(f"![Tokens per second on {machine.slug}, as in the table below]({path})\n" for path in drawn)


def _side_by_side(machines: Sequence[Machine]) -> str:
    """The main rows of all machines; a machine on which a row was not measured has an empty cell."""
    body = []
    for work, peer in _MAIN_ROWS:
        found = [find(machine.results.rows, work, peer) for machine in machines]
        unit = next((row.unit for row in found if row is not None), None)
        if unit is not None:
            cells = [f"{number(r.ours)} to {number(r.theirs)}: **{r.ratio:.2f}**" if r else "" for r in found]
            body.append((work, peer, unit, *cells))
    head = ("work", "against", "unit", *(machine.slug for machine in machines))
    text = "Ours, theirs and the ratio on each machine.\n\n"
    return "## Main rows\n\n" + text + table(head, body)
