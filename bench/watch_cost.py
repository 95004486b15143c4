"""Prints what it costs a stage to be watched: processor time of a scrape, and of counting one step.

`python -m bench.watch_cost` makes the figures of docs/operations.md. The scrape is of a real cluster, the counting of
the very calls that the loop makes, one after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.request

import numpy as np
import psutil

from stagewire.cluster.local import LocalCluster
from stagewire.model.catalogue import DEFAULT_MODEL
from stagewire.stage.compute.operators import Batch, SequenceRows
from stagewire.stage.executor import Plan
from stagewire.stage.stage_epoch import TakenStep
from stagewire.stage.timing.head_times import RoundTrip
from stagewire.stage.timing.step_times import StageMeasures
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import Phase, SequenceResult, Slice, Step, StepResult
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import TokenIds

_NUM_SCRAPES = 300
_NUM_STEPS = 20_000
_TIMINGS = (StageTiming(0, 1, 0.01, 0.0, 0.001), StageTiming(1, 1, 0.01, 0.001, 0.001))


def _scrape(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        return len(answer.read())


def scrape_costs(model: str) -> None:
    """Of each process of a cluster that has worked: milliseconds of processor time per scrape, and its wall time."""
    with LocalCluster(model) as cluster, cluster.client() as client:
        prompt = list(range(300, 400))
        sampling = SamplingParams(temperature=0)
        client.session().generate(prompt_token_ids=prompt, sampling=sampling, max_tokens=32, ignore_eos=True).wait(60)
        with urllib.request.urlopen(f"http://{cluster.metrics_address}/sd", timeout=5) as answer:
            groups = json.loads(answer.read())
        print("| process | page | processor time of a scrape | time until it is there |\n|---|---|---|---|")
        for group in groups:
            name = group["labels"].get("stage", "broker")
            print(_scrape_cost(name, group["targets"][0], psutil.Process(cluster.pids[name])), flush=True)


def _scrape_cost(name: str, address: str, process: psutil.Process) -> str:
    """What the process takes anyway, idle, is measured before and taken off."""
    begun, idle_s = time.monotonic(), sum(process.cpu_times()[:2])
    time.sleep(2)
    idle_share = (sum(process.cpu_times()[:2]) - idle_s) / (time.monotonic() - begun)
    begun, busy_s, num_bytes = time.monotonic(), sum(process.cpu_times()[:2]), 0
    waits = []
    for _ in range(_NUM_SCRAPES):
        asked = time.monotonic()
        num_bytes = _scrape(address)
        waits.append(time.monotonic() - asked)
    taken_s = sum(process.cpu_times()[:2]) - busy_s - idle_share * (time.monotonic() - begun)
    wall_ms = 1000 * statistics.median(waits)
    return f"| {name} | {num_bytes / 1000:.0f} kB | {1000 * taken_s / _NUM_SCRAPES:.1f} ms | {wall_ms:.1f} ms |"


def step_cost(num_sequences: int) -> tuple[float, float]:
    """Microseconds of counting for one decode step: in any stage, and what a head has on top."""
    slices = tuple(Slice(seq_id, Phase.DECODE, 100, 1, True) for seq_id in range(num_sequences))
    step = Step(1, (), (), slices, (), (), TokenIds.of([5] * num_sequences), None)
    parts = [SequenceRows(row, 1, 100, np.arange(7, dtype=np.int32)) for row in range(num_sequences)]
    plan = Plan(step, Batch.of([5] * num_sequences, parts, range(num_sequences)), None, (), ())
    result = StepResult(1, tuple(SequenceResult(i, (5,), None) for i in range(num_sequences)), _TIMINGS)
    num_bytes = 244 + 4 * num_sequences + 2304
    measures = StageMeasures()
    for seq_id in range(num_sequences):
        measures.head.arrived(seq_id, 0.0)

    def stage() -> None:
        measures.received.add(0.0001, num_bytes)
        measures.sent.add(0.0001, num_bytes)
        measures.computed(TakenStep(step, 0.001), plan, _TIMINGS[1], is_tail=True)

    def head() -> None:
        measures.head.launched(step, 0, 1.0)
        measures.head.completed(result, RoundTrip(1.0, 0.1), 2.0)

    costs = []
    for count in (stage, head):
        begun = time.perf_counter()
        for _ in range(_NUM_STEPS):
            count()
        costs.append(1e6 * (time.perf_counter() - begun) / _NUM_STEPS)
    return costs[0], costs[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a .gguf file, or a name from the catalogue")
    options = parser.parse_args()
    scrape_costs(options.model)
    print("\n| sequences in a decode step | counting in a stage | on top in a head |\n|---|---|---|")
    for num_sequences in (1, 16, 64):
        stage_us, head_us = step_cost(num_sequences)
        print(f"| {num_sequences} | {stage_us:.0f} µs | {head_us:.0f} µs |", flush=True)


if __name__ == "__main__":
    main()
