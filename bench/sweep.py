"""`python -m bench.sweep`: one to four stages, simulated delays on every link, against the floor of their sum."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.command_line import add_common_flags, clocked_progress, exit_code, finish, record_of
from bench.record import Record
from bench.results import MILLISECONDS, Figure, Row, row
from bench.stagewire_side import StagewireSide
from bench.token_cost import TokenCost, measure_token_cost
from stagewire.cluster.local import LocalCluster
from stagewire.sockets.condition import WireCondition

FLOOR = "floor"
STAGES = (1, 2, 3, 4)
DELAYS_MS = (0, 1, 5, 10, 20)
_EXAMPLES = """\
examples:
  python -m bench.sweep                               1 to 4 stages, 0 to 20 ms
  python -m bench.sweep --stages 4 --delays-ms 10     one point, its row replaced in the files
"""


@dataclass(frozen=True, slots=True)
class Point:
    """A pipeline of so many stages with the same delay on every link, the return to the head included."""

    num_stages: int
    delay_ms: float

    @property
    def work(self) -> str:
        return f"time_per_token_{self.num_stages}x{self.delay_ms:g}ms"

    def floor_s(self, cost: TokenCost) -> float:
        """What no pipeline can beat: a token passes every stage and every link of the ring once."""
        num_links = self.num_stages if self.num_stages > 1 else 0
        return cost.forward_s + num_links * self.delay_ms / 1000

    @property
    def conditions(self) -> dict[str, WireCondition]:
        if not self.delay_ms:
            return {}
        condition = WireCondition(delay_s=self.delay_ms / 1000)
        return {"feed": condition, "hop": condition}


def point_row(point: Point, cost: TokenCost, runs: int) -> Row:
    return row(point.work, FLOOR, MILLISECONDS, 1000 * cost.total_s, 1000 * point.floor_s(cost), runs)


def measure(point: Point, options: argparse.Namespace, runs: int) -> TokenCost:
    with (
        LocalCluster(
            options.model,
            stages=point.num_stages,
            threads=1,
            precision=options.precision,
            conditions=point.conditions,
        ) as cluster,
        StagewireSide(cluster, seed=3) as side,
    ):
        side.generate_together([side.prompts.draw(1)], 8)  # warms up
        return measure_token_cost(side, runs)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.sweep",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_common_flags(parser)
    parser.add_argument("--stages", type=_numbers, default=STAGES, metavar="N,...", help="(default: 1,2,3,4)")
    parser.add_argument(
        "--delays-ms", type=_numbers, default=DELAYS_MS, metavar="MS,...", help="(default: 0,1,5,10,20)"
    )
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def run(options: argparse.Namespace) -> None:
    progress = clocked_progress()
    record = record_of("sweep", options, progress)
    for point in [Point(stages, delay) for stages in options.stages for delay in options.delays_ms]:
        record.step(point.work, partial(_measure_point, point, record, options, progress))
    finish(record, options)


def _measure_point(
    point: Point, record: Record, options: argparse.Namespace, progress: Callable[[str], None]
) -> None:  # fmt: skip
    runs = options.runs or (1 if options.quick else 5)
    cost = measure(point, options, runs)
    measured = point_row(point, cost, runs)
    over = 1000 * (cost.total_s - point.floor_s(cost))
    what = f"{point.num_stages} stages, {point.delay_ms:g} ms: a token above its floor"
    record.rows.append(measured)
    record.measured.sweep.append(Figure(what, over, "ms"))
    progress(f"{point.work}: {measured.ours:.2f} ms, floor {measured.theirs:.2f} ms")


def main() -> int:
    return exit_code(run, build_parser().parse_args())


if __name__ == "__main__":
    sys.exit(main())
