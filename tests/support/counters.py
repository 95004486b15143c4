"""Counters of a stage and a head at some moment."""

from __future__ import annotations

from stagewire.wire.counters import HeadCounters, StageCounters

START = StageCounters(
    uptime_s=10.0, idle_s=4.0, num_steps=100, num_prefill_tokens=500, num_decode_tokens=90, prefill_s=2.0, decode_s=1.0,
    plan_s=0.1, sample_s=0.2, codec_s=0.1, num_queued_steps=0, num_used_blocks=3, num_cached_blocks=7,
    head=None, tail=None,
)  # fmt: skip


HEAD = HeadCounters(num_waiting=0, num_running=2, num_round_trips=100, round_trips_s=5.0, hops_s=0.5)
