"""The dashboard of pipelines: which stage is the bottleneck, and what links cost; one row for each stage."""

from __future__ import annotations

from stagewire.monitoring import metrics as m
from stagewire.monitoring.panels import Dashboard, Query, Row, Variable, lines, stacked
from stagewire.monitoring.queries import average, now, quantile, rate, ratio

_STAGE = 'stage="$stage"'
_FORWARD = rate(m.FORWARD_TIME, "stage", "", "sum")

_WHOLE = Row(
    "The pipeline",
    (
        lines(
            "Share of time in forward passes",
            "The highest line is the bottleneck; cuts are even when all are alike.",
            Query(_FORWARD, "{{stage}}"),
            unit="percentunit",
        ),
        lines(
            "Share of time idle",
            "The pipeline's bubble.",
            Query(rate(m.IDLE_TIME, "stage"), "{{stage}}"),
            unit="percentunit",
        ),
        lines(
            "A step's way around",
            "From the head and back; and of that what no stage accounts for: the hops, all together.",
            Query(quantile(0.5, m.STEP_TRAVERSAL), "traversal, p50"),
            Query(quantile(0.95, m.STEP_TRAVERSAL), "traversal, p95"),
            Query(quantile(0.5, m.HOP_TIME), "hops, p50"),
            Query(quantile(0.95, m.HOP_TIME), "hops, p95"),
            unit="s",
        ),
        stacked(
            "Where a step's time goes",
            "On average: forward passes, waiting for a stage, sampling, hops.",
            Query(f"sum ({average(m.FORWARD_TIME, 'stage')})", "forward"),
            Query(f"sum ({average(m.STEP_QUEUE_TIME, 'stage')})", "waiting"),
            Query(average(m.SAMPLE_TIME), "sampling"),
            Query(average(m.HOP_TIME), "hops"),
            unit="s",
        ),
        lines("Steps in flight", "As many as stages keep all of them busy.", Query(now(m.STEPS_IN_FLIGHT), "steps")),
        lines(
            "Steps",
            "Per second; and what one holds on average.",
            Query(rate(m.STEP_TRAVERSAL, part="count"), "steps"),
            Query(average(m.STEP_TOKENS), "tokens in one"),
            Query(average(m.STEP_SEQUENCES), "sequences in one"),
        ),
    ),
)

_EACH = Row(
    "Stage $stage",
    (
        stacked(
            "Time",
            "Shares of a second: computing, sampling, encoding, decoding, idle. What is missing is bookkeeping.",
            Query(rate(m.FORWARD_TIME, "phase", _STAGE, "sum"), "forward: {{phase}}"),
            Query(rate(m.SAMPLE_TIME, "", _STAGE, "sum"), "sampling"),
            Query(rate(m.CODEC_TIME, "direction", _STAGE, "sum"), "{{direction}}"),
            Query(rate(m.IDLE_TIME, "", _STAGE), "idle"),
            unit="percentunit",
            width=6,
        ),
        lines(
            "Compute",
            "A forward pass, by what it holds.",
            Query(quantile(0.5, m.FORWARD_TIME, "phase", _STAGE), "{{phase}}, p50"),
            Query(quantile(0.95, m.FORWARD_TIME, "phase", _STAGE), "{{phase}}, p95"),
            unit="s",
            width=6,
        ),
        lines(
            "Idle and waiting",
            "Share of time idle; steps that wait here, and for how long.",
            Query(rate(m.IDLE_TIME, "", _STAGE), "idle"),
            Query(now(m.HOP_QUEUE_DEPTH, "", _STAGE), "steps that wait"),
            Query(quantile(0.95, m.STEP_QUEUE_TIME, "", _STAGE), "wait in seconds, p95"),
            width=6,
        ),
        lines(
            "Hop",
            "Bytes per second in and out, and per message.",
            Query(rate(m.HOP_BYTES, "direction", _STAGE), "{{direction}}"),
            Query(
                ratio(rate(m.HOP_BYTES, "direction", _STAGE), rate(m.HOP_MESSAGES, "direction", _STAGE)),
                "{{direction}}, per message",
            ),
            unit="bytes",
            width=6,
        ),
    ),
    repeat="stage",
)

PIPELINE = Dashboard(
    "stagewire-pipeline",
    "Stagewire: pipeline",
    "Which stage is the bottleneck, and what the links between stages cost.",
    (_WHOLE, _EACH),
    (Variable("stage", "stage", m.STAGE_INFO.name),),
)
