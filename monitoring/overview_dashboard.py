"""The dashboard that is looked at first: what is asked, how fast it is answered, what fails, what stands."""

from __future__ import annotations

from stagewire.monitoring import metrics as m
from stagewire.monitoring.metric import Metric
from stagewire.monitoring.panels import Dashboard, Panel, Query, Row, heatmap, lines, number, stacked
from stagewire.monitoring.queries import average, heat, now, quantile, rate, ratio


def _quantiles(title: str, description: str, metric: Metric) -> Panel:
    queries = [Query(quantile(q, metric), f"p{round(q * 100)}") for q in (0.5, 0.95, 0.99)]
    return lines(title, description, *queries, unit="s")


_AT_A_GLANCE = Row(
    "At a glance",
    (
        number("Requests ended", "Per second, well or not.",
               f"{rate(m.REQUEST_SUCCESS)} + {rate(m.REQUEST_FAILURES)}", "reqps"),
        number("Tokens generated", "Per second.", rate(m.GENERATION_TOKENS)),
        number("First token, p95", "From the head's clock.", quantile(0.95, m.TIME_TO_FIRST_TOKEN), "s"),
        number("Prompt tokens from caches", "Share of usage.cached_tokens.",
               ratio(rate(m.PROMPT_TOKENS_CACHED), rate(m.PROMPT_TOKENS)), "percentunit"),
        number("Pipelines that serve", "Whole chains of stages.", now(m.PIPELINES, where='state="serving"')),
        number("Stages up", "Registered and heard.", now(m.STAGE_UP)),
    ),
)  # fmt: skip

_LATENCY = Row(
    "Latency",
    (
        _quantiles(
            "Time to the first token",
            "From arrival at the head; the broker's queue is beside it.",
            m.TIME_TO_FIRST_TOKEN,
        ),
        _quantiles("Time between tokens", "As the head hears of them.", m.INTER_TOKEN_LATENCY),
        _quantiles("Whole requests", "From admission to the ending, by the broker's clock.", m.E2E_LATENCY),
        heatmap("First tokens", "How many took how long.", heat(m.TIME_TO_FIRST_TOKEN)),
        heatmap("Times between tokens", "How many took how long.", heat(m.INTER_TOKEN_LATENCY)),
        stacked(
            "Where a request's time goes",
            "On average: in the broker's queue, in the head's, until the first token, after it.",
            Query(average(m.BROKER_QUEUE_TIME), "broker's queue"),
            Query(average(m.REQUEST_QUEUE_TIME), "head's queue"),
            Query(average(m.REQUEST_PREFILL_TIME), "prefill"),
            Query(average(m.REQUEST_DECODE_TIME), "decode"),
            unit="s",
        ),
        _quantiles("Time per output token", "One observation for each request.", m.TIME_PER_OUTPUT_TOKEN),
    ),
)

_REQUESTS = Row(
    "Requests",
    (
        stacked(
            "Endings",
            "Per second, by reason, or by error code.",
            Query(rate(m.REQUEST_SUCCESS, "finished_reason"), "{{finished_reason}}"),
            Query(f"{rate(m.REQUEST_FAILURES, 'code')} > 0", "{{code}}"),
            unit="reqps",
        ),
        lines(
            "Admission",
            "Per second: accepted, and refused by error code.",
            Query(rate(m.REQUESTS_ACCEPTED), "accepted"),
            Query(f"{rate(m.REQUESTS_REFUSED, 'code')} > 0", "{{code}}"),
            unit="reqps",
        ),
        stacked(
            "Requests in the house",
            "Those that run, and those that wait for a pipeline.",
            Query(now(m.NUM_REQUESTS_RUNNING), "running"),
            Query(now(m.NUM_REQUESTS_WAITING, "reason"), "waiting: {{reason}}"),
        ),
        lines("Requests by state", "As the broker knows them.", Query(now(m.NUM_REQUESTS, "state"), "{{state}}")),
        lines(
            "The queue against its limit",
            "Beyond it, admission answers queue_full.",
            Query(now(m.NUM_REQUESTS_WAITING), "waiting"),
            Query(now(m.QUEUE_LIMIT), "limit"),
        ),
        lines("Prompts that wait", "Bytes held for them.", Query(now(m.QUEUED_BYTES), "held"), unit="bytes"),
        stacked("Sequences at the heads", "By state.", Query(now(m.NUM_SEQUENCES, "state"), "{{state}}")),
        lines(
            "Tokens",
            "Per second. Prompts count when their request ends.",
            Query(rate(m.PROMPT_TOKENS), "prompt"),
            Query(rate(m.PROMPT_TOKENS_CACHED), "prompt, cached"),
            Query(rate(m.GENERATION_TOKENS), "generated"),
        ),
        lines(
            "Lengths",
            "Tokens of a request, on average and at the 95th percentile.",
            Query(average(m.REQUEST_PROMPT_TOKENS), "prompt"),
            Query(average(m.REQUEST_GENERATION_TOKENS), "generated"),
            Query(quantile(0.95, m.REQUEST_PROMPT_TOKENS), "prompt, p95"),
            Query(quantile(0.95, m.REQUEST_GENERATION_TOKENS), "generated, p95"),
        ),
    ),
)

_PROCESSES = Row(
    "Pipelines and processes",
    (
        lines("Stages", "1: up. 0: lost.", Query(now(m.STAGE_UP, "stage"), "{{stage}}")),
        stacked("Pipelines", "By state.", Query(now(m.PIPELINES, "state"), "{{state}}")),
        lines(
            "Losses",
            "Per second: stages, and pipelines with all that ran on them.",
            Query(rate(m.STAGES_LOST), "stages"),
            Query(f"{rate(m.EPOCHS_LOST, 'code')} > 0", "pipelines: {{code}}"),
            Query(rate(m.EPOCHS), "assemblies"),
        ),
        lines("Clients", "That the broker knows.", Query(now(m.NUM_CLIENTS), "clients")),
        lines(
            "Messages that came to nothing",
            "Per second: unreadable ones, and ones that nobody could take.",
            Query(rate(m.BAD_MESSAGES), "unreadable"),
            Query(rate(m.UNDELIVERED_MESSAGES), "undelivered"),
        ),
        lines("Processes scraped", "1: the last scrape succeeded.", Query('up{job="stagewire"}', "{{instance}}")),
        lines(
            "Processor time",
            "Cores that each process keeps busy.",
            Query('rate(process_cpu_seconds_total{job="stagewire"}[$__rate_interval])', "{{instance}}"),
        ),
        lines(
            "Memory", "Resident.", Query('process_resident_memory_bytes{job="stagewire"}', "{{instance}}"), unit="bytes"
        ),
        lines("Weights", "Memory that they take.", Query(now(m.WEIGHT_BYTES, "stage"), "{{stage}}"), unit="bytes"),
    ),
)

OVERVIEW = Dashboard(
    "stagewire-overview",
    "Stagewire: overview",
    "What is asked, how fast it is answered, what fails, what stands.",
    (_AT_A_GLANCE, _LATENCY, _REQUESTS, _PROCESSES),
)
