"""`python -m bench`: Stagewire and llama.cpp side by side, everything once; `--help` shows how to pick."""

from __future__ import annotations

import argparse
import sys

from bench.command_line import add_common_flags, clocked_progress, exit_code, finish, names_of, positive, record_of
from bench.compare import Plan, SideBySide
from bench.sections import accuracy, own_figures
from bench.stagewire_side import StagewireSide
from bench.turns import Rules
from bench.warm import warm
from bench.works import WORKS

SECTIONS = ("single_stage", "own", "warm", "accuracy")
NAMES = (*(work.name for work in WORKS), *SECTIONS)
_QUICK = ("prefill_512", "decode_1", "decode_8", *SECTIONS)
_EXAMPLES = """\
examples:
  python -m bench                                   all of it, about an hour
  python -m bench --quick                           a rough look in some minutes
  python -m bench --only decode_8,decode_16         these works, their rows replaced in the files
  python -m bench --resume                          the run that was interrupted goes on behind its last row
  python -m bench --only own --json                 our own figures only
  python -m bench --split 0:17,17:30                another cut than the default
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_common_flags(parser)
    parser.add_argument(
        "--rounds", type=positive, metavar="N", help="how often a round that is not steady is tried (default: 3)"
    )
    parser.add_argument("--split", metavar="RANGES", help="the cut of the two stages, as in 0:17,17:30")
    parser.add_argument(
        "--only", type=names_of(NAMES), metavar="NAMES", help=f"some of {', '.join(NAMES)}, with commas between"
    )
    return parser


def plan_of(options: argparse.Namespace) -> tuple[Plan, tuple[str, ...]]:
    """What the flags ask for, and the names of all that is to be done."""
    chosen = options.only or (_QUICK if options.quick else NAMES)
    runs = options.runs or (2 if options.quick else 5)
    plan = Plan(
        model=options.model,
        works=tuple(work for work in WORKS if work.name in chosen),
        rules=Rules(runs=runs, max_rounds=1 if options.quick else options.rounds or Rules().max_rounds),
        tune=not options.quick,
        patience_s=2.0 if options.quick else 60.0,
        split=options.split,
        precision=options.precision,
    )
    return plan, chosen


def run(options: argparse.Namespace) -> None:
    plan, chosen = plan_of(options)
    progress = clocked_progress()
    record = record_of("bench", options, progress)
    bench = SideBySide(plan, record, progress)
    bench.prepare()
    served = ""
    with bench.cluster(2, 1) as cluster, StagewireSide(cluster, seed=1) as side:
        served = cluster.status().stages[0].info.precision
        bench.two_stages(side)
        if "own" in chosen:
            own_figures(bench, side, plan.model, plan.rules.runs, progress)
        if "warm" in chosen:
            record.step("warm", lambda: warm(bench, side, plan.rules.runs, progress))
    if "single_stage" in chosen:
        record.step("single_stage", bench.one_stage)
    if "accuracy" in chosen:
        record.step("accuracy", lambda: accuracy(bench, plan.model, served, progress))
    finish(record, options)


def main() -> int:
    return exit_code(run, build_parser().parse_args())


if __name__ == "__main__":
    sys.exit(main())
