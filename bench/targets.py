"""What the project wants to reach, so that the page can say what falls short. Ratios, by work and peer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.results import Row


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A row below its target."""

    row: Row
    target: float


TARGETS: dict[tuple[str, str], float] = {
    ("prefill_512", "llama.cpp"): 4.0,
    ("prefill_512", "llama.cpp-q4_0"): 1.7,
    ("prefill_512", "llama.cpp-bf16"): 1.6,
    ("prefill_2048", "llama.cpp"): 4.0,
    ("prefill_2048", "llama.cpp-q4_0"): 1.7,
    ("prefill_2048", "llama.cpp-bf16"): 1.6,
    ("decode_8", "llama.cpp"): 3.2,
    ("decode_8", "llama.cpp-q4_0"): 1.8,
    ("decode_16", "llama.cpp"): 3.5,
    ("decode_16", "llama.cpp-q4_0"): 1.6,
    ("decode_1", "llama.cpp"): 1.7,
    ("decode_1", "llama.cpp-q4_0"): 0.9,
    ("decode_1", "llama.cpp-rpc"): 1.8,
    ("decode_1_at_2048", "llama.cpp"): 1.8,
    ("decode_1_at_2048", "llama.cpp-q4_0"): 1.8,
    ("decode_1_at_6144", "llama.cpp"): 2.0,
    ("decode_1_at_6144", "llama.cpp-q4_0"): 2.0,
    ("overhead_per_token", "limit"): 1.0,
    ("inter_token_p99_while_6000_prefill", "limit"): 1.0,
    ("kl_to_float32", "llama.cpp"): 1 / 1.1,
    ("time_per_token_4x10ms", "floor"): 1 / 1.03,
    ("warm_ttft_4096", "cold"): 60.0,
    ("warm_ttft_4096_resident", "llama.cpp"): 1 / 1.3,
    ("warm_ttft_4096_shared", "llama.cpp"): 1 / 2,
    ("restore_4096", "limit"): 1.0,
    ("cold_4096", "without_cache"): 1 / 1.03,
}
"""Where the peer is `limit` or `floor`, 1 is exactly at it."""

OVERHEAD_LIMIT_MS = 0.5
MIXED_LOAD_LIMIT = 4.0
"""The p99 of running sequences under a long prefill, as a multiple of their p50 without it."""


RESTORE_LIMIT = 0.01
"""What restoring may cost, as a share of computing the same."""


def shortfalls(rows: Iterable[Row]) -> list[Shortfall]:
    wanted = ((row, TARGETS.get((row.work, row.peer))) for row in rows)
    return [Shortfall(row, target) for row, target in wanted if target is not None and row.ratio < target]
