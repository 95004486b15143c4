"""Processor time of each process for one token, over a steady stretch of decoding (Linux, `/proc`)."""

from __future__ import annotations

import os
from pathlib import Path

from bench.running import running_streams
from bench.stagewire_side import StagewireSide

_PROMPT_TOKENS = 16
_TIMED_TOKENS = {1: 700, 8: 300, 64: 100}
"""Of each stream, by their number: some seconds each, for the clock of `/proc` ticks a hundred times a second."""
NUM_STREAMS = tuple(_TIMED_TOKENS)
_STEADY_TOKENS = 8
_MOST_TOKENS = 4 * sum(_TIMED_TOKENS.values())
_KV_TOKENS = 24_000
_LOOK_S = 0.02


def used_s(stat: str) -> float:
    """User and system time in a line of `/proc/PID/stat`; the command in it may hold spaces and parentheses."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_ms_per_token(side: StagewireSide, num_streams: int) -> dict[str, float]:
    """Of head, tail, broker and client (this process): milliseconds per token that arrived, all streams counted."""
    return side.loop.run_until_complete(_cpu_ms_per_token(side, num_streams))


async def _cpu_ms_per_token(side: StagewireSide, num_streams: int) -> dict[str, float]:
    pids = {"head": side.cluster.pids["stage-0"], "tail": side.cluster.pids["stage-1"]}
    pids |= {"broker": side.cluster.pids["broker"], "client": os.getpid()}
    max_tokens = min(_MOST_TOKENS, _KV_TOKENS // num_streams)
    async with running_streams(side, num_streams, _PROMPT_TOKENS, max_tokens) as running:
        await running.until_each_has(_STEADY_TOKENS)
        used, num_tokens = _used(pids), running.num_tokens
        await running.until_each_has(running.longest + _TIMED_TOKENS[num_streams], _LOOK_S)
        later, num_tokens = _used(pids), running.num_tokens - num_tokens
    return {name: 1000 * (later[name] - used[name]) / num_tokens for name in pids}


def _used(pids: dict[str, int]) -> dict[str, float]:
    return {name: used_s(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")) for name, pid in pids.items()}
