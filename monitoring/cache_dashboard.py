"""The dashboard of KV caches: whether they earn their memory, at which stage, and what they give up."""

from __future__ import annotations

from stagewire.monitoring import metrics as m
from stagewire.monitoring.panels import Dashboard, Query, Row, Variable, lines, number, stacked
from stagewire.monitoring.queries import average, now, quantile, rate, ratio

_STAGE = 'stage=~"$stage"'

_REUSE = Row(
    "What is reused",
    (
        number("Prompt tokens from caches", "Of all prompt tokens: usage.cached_tokens.",
               ratio(rate(m.PROMPT_TOKENS_CACHED), rate(m.PROMPT_TOKENS)), "percentunit"),
        number("Prompt tokens computed", "Per second.", f"{rate(m.PROMPT_TOKENS)} - {rate(m.PROMPT_TOKENS_CACHED)}"),
        number("KV pool in use", "Of the fullest stage.", f"max({m.KV_USAGE.name})", "percentunit"),
        number("Evictions", "Blocks per second, all stages.", rate(m.EVICTIONS)),
        number("Snapshots", "Kept, or asked for.", now(m.SNAPSHOTS)),
        number("Preemptions", "Sequences rewound per second.", rate(m.PREEMPTIONS)),
        lines(
            "Hit rate by stage",
            "Tokens held, of those asked for. Stages behind the head are asked only for what the head holds.",
            Query(ratio(rate(m.CACHE_HITS, "stage", _STAGE), rate(m.CACHE_QUERIES, "stage", _STAGE)), "{{stage}}"),
            unit="percentunit",
        ),
        stacked(
            "Tokens asked for",
            "Per second: held in memory, read from files, or missing.",
            Query(rate(m.CACHE_HITS, "tier", _STAGE), "held: {{tier}}"),
            Query(rate(m.CACHE_MISSES, "", _STAGE), "missing"),
        ),
        lines(
            "Restores",
            "Per second, by outcome: forward_hit, partial_hit and direct_hit went through, direct_miss fell back.",
            Query(rate(m.RESTORES, "outcome", _STAGE), "{{outcome}}"),
        ),
        lines(
            "What restoring takes",
            "A restore's step, by what it found, and blocks from files, by the head's clock; all stages together.",
            Query(average(m.RESTORE_TIME, "outcome"), "restore, mean: {{outcome}}"),
            Query(quantile(0.95, m.RESTORE_TIME), "restore, p95"),
            Query(quantile(0.95, m.FETCH_TIME), "from files, p95"),
            unit="s",
        ),
    ),
)  # fmt: skip

_TRAFFIC = Row(
    "What comes and goes",
    (
        lines(
            "Tokens",
            "Per second: restored, recorded for later, given up.",
            Query(rate(m.RESTORED_TOKENS, "stage", _STAGE), "restored: {{stage}}"),
            Query(rate(m.RECORDED_TOKENS, "stage", _STAGE), "recorded: {{stage}}"),
            Query(rate(m.EVICTED_TOKENS, "stage", _STAGE), "evicted: {{stage}}"),
        ),
        lines(
            "Bytes",
            "Per second: the keys and values of those tokens.",
            Query(rate(m.RESTORED_BYTES, "stage", _STAGE), "restored: {{stage}}"),
            Query(rate(m.RECORDED_BYTES, "stage", _STAGE), "recorded: {{stage}}"),
            Query(rate(m.EVICTED_BYTES, "stage", _STAGE), "evicted: {{stage}}"),
            unit="Bps",
        ),
        lines(
            "Evictions",
            "Blocks per second.",
            Query(rate(m.EVICTIONS, "stage", _STAGE), "{{stage}}"),
        ),
    ),
)

_MEMORY = Row(
    "Memory and files",
    (
        stacked("Blocks", "Of the KV pools.", Query(now(m.KV_BLOCKS, "state", _STAGE), "{{state}}")),
        lines(
            "Use",
            "Blocks that sequences and snapshots hold. At 1 requests wait, or are preempted.",
            Query(f"{m.KV_USAGE.name}{{{_STAGE}}}", "{{stage}}"),
            unit="percentunit",
        ),
        lines(
            "Bytes against the budget",
            "Held, and what may be.",
            Query(now(m.KV_BYTES, "tier", _STAGE), "held: {{tier}}"),
            Query(now(m.KV_BUDGET_BYTES, "tier", _STAGE), "budget: {{tier}}"),
            unit="bytes",
        ),
        lines("Block files", "Per second.", Query(rate(m.DISK_BLOCKS, "event", _STAGE), "{{event}}")),
        lines(
            "Snapshots",
            "Saved per second, and what clients asked about them; blocks that they pin.",
            Query(rate(m.SNAPSHOT_SAVES), "saved"),
            Query(rate(m.SNAPSHOT_OPERATIONS, "operation"), "{{operation}}"),
            Query(now(m.SNAPSHOT_BLOCKS), "blocks pinned"),
        ),
        lines(
            "Exports of snapshots",
            "From the order until all stages have written their parts.",
            Query(quantile(0.95, m.EXPORT_TIME), "p95"),
            Query(average(m.EXPORT_TIME), "mean"),
            unit="s",
        ),
        lines(
            "Key collisions",
            "Lookups that found other tokens under their key; they count as misses.",
            Query(rate(m.KEY_COLLISIONS, "stage", _STAGE), "{{stage}}"),
        ),
    ),
)

CACHE = Dashboard(
    "stagewire-kv-cache",
    "Stagewire: KV cache",
    "Whether caches earn their memory, at which stage, and what they give up.",
    (_REUSE, _TRAFFIC, _MEMORY),
    (Variable("stage", "stage", m.STAGE_INFO.name),),
)
