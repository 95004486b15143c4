"""Every metric of Stagewire, once: code, reference page, rules and dashboards all refer to this table.

Names follow vLLM's where the meaning is the same, so that queries port by renaming. No metric has a label per request,
session or path. Which stage a series belongs to is told by the label `stage` that discovery gives its target.
Durations are measured inside one process, since clocks of two cannot be compared.
"""

from __future__ import annotations

from stagewire.monitoring.metric import (
    REQUEST_SECONDS,
    SEQUENCES,
    SHORT_SECONDS,
    STEP_SECONDS,
    TOKEN_SECONDS,
    TOKENS,
    Buckets,
    Kind,
    Metric,
    Source,
)

METRICS: dict[str, Metric] = {}
"""All of them by name, in the order of the reference page."""

FOREIGN = {
    "up": "Prometheus' own: whether the last scrape of a target succeeded",
    "process_cpu_seconds_total": "of the process, from the Prometheus client library",
    "process_resident_memory_bytes": "likewise",
    "process_start_time_seconds": "likewise",
}
"""Metrics that are not ours and that rules and dashboards use all the same."""


def _add(
    kind: Kind, source: Source, name: str, unit: str, text: str, labels: tuple[str, ...] = (), buckets: Buckets = ()
) -> Metric:
    metric = METRICS[f"stagewire_{name}"] = Metric(f"stagewire_{name}", kind, source, unit, text, labels, buckets)
    return metric


def _counter(source: Source, name: str, unit: str, text: str, *labels: str) -> Metric:
    return _add(Kind.COUNTER, source, name, unit, text, labels)


def _gauge(source: Source, name: str, unit: str, text: str, *labels: str) -> Metric:
    return _add(Kind.GAUGE, source, name, unit, text, labels)


def _histogram(source: Source, name: str, buckets: Buckets, unit: str, text: str, *labels: str) -> Metric:
    return _add(Kind.HISTOGRAM, source, name, unit, text, labels, buckets)


_B, _S, _H, _T = Source.BROKER, Source.STAGE, Source.HEAD, Source.TAIL

# --- the broker: requests ---

REQUESTS_ACCEPTED = _counter(_B, "requests_accepted_total", "requests", "Requests that were admitted.")
REQUESTS_REFUSED = _counter(
    _B, "requests_refused_total", "requests", "Requests that admission refused, by error code.", "code"
)
REQUEST_SUCCESS = _counter(
    _B, "request_success_total", "requests", "Requests that ended without an error; cancelled ones, too.",
    "finished_reason",
)  # fmt: skip
REQUEST_FAILURES = _counter(
    _B, "request_failures_total", "requests", "Accepted requests that ended with an error, by its code.", "code"
)
NUM_REQUESTS_RUNNING = _gauge(
    _B, "num_requests_running", "requests", "Requests that were given to a pipeline and have not ended."
)
NUM_REQUESTS_WAITING = _gauge(
    _B, "num_requests_waiting", "requests",
    "Requests in the broker's queue. no_pipeline: none serves; capacity: all that serve are full.", "reason",
)  # fmt: skip
NUM_REQUESTS = _gauge(
    _B, "num_requests", "requests",
    "Accepted requests that have not ended. pushed: no head has acknowledged it yet; cancelling: the ring will end it.",
    "state",
)  # fmt: skip
QUEUE_LIMIT = _gauge(_B, "max_requests_waiting", "requests", "How many may wait before admission answers queue_full.")
QUEUED_BYTES = _gauge(_B, "queued_prompt_bytes", "bytes", "Prompts held for requests that no head has acknowledged.")
BROKER_QUEUE_TIME = _histogram(
    _B, "broker_queue_time_seconds", REQUEST_SECONDS, "seconds",
    "From a request's admission until it is given to a pipeline, by the broker's clock.",
)  # fmt: skip
E2E_LATENCY = _histogram(
    _B, "e2e_request_latency_seconds", REQUEST_SECONDS, "seconds",
    "From a request's admission until the broker hears of its ending, of those that a pipeline got. The broker's "
    "clock; the return of tokens to the client is not in it.",
)  # fmt: skip
NUM_CLIENTS = _gauge(_B, "num_clients", "clients", "Clients that the broker knows.")
BAD_MESSAGES = _counter(_B, "bad_messages_total", "messages", "Messages of peers that could not be read.")
UNDELIVERED_MESSAGES = _counter(
    _B, "undelivered_messages_total", "messages", "Messages whose receiver was not connected, or whose epoch was over."
)

# --- the broker: stages and pipelines ---

STAGE_UP = _gauge(
    _B, "stage_up", "boolean",
    "1: registered and heard. 0: lost, until it comes back or for 15 minutes. A stage that said goodbye has none.",
    "stage",
)  # fmt: skip
STAGES_LOST = _counter(_B, "stages_lost_total", "stages", "Stages that vanished, hung or were replaced.")
PIPELINES = _gauge(_B, "pipelines", "pipelines", "Chains of stages by state; only serving ones take requests.", "state")
EPOCHS = _counter(_B, "epochs_total", "epochs", "Assemblies that this broker has begun.")
EPOCHS_LOST = _counter(
    _B, "epochs_lost_total", "epochs", "Pipelines that ended, and their running requests with them, by code.", "code"
)
SNAPSHOT_OPERATIONS = _counter(
    _B, "snapshot_operations_total", "operations",
    "What was asked about snapshots, and (expire) snapshots freed because their anonymous client is gone.", "operation",
)  # fmt: skip

# --- the head: its clock sees a request arrive, and hears of each token when the client is sent it ---

TIME_TO_FIRST_TOKEN = _histogram(
    _H, "time_to_first_token_seconds", REQUEST_SECONDS, "seconds",
    "From a request's arrival at the head until the head hears of its first token. The broker's queue comes before.",
)  # fmt: skip
INTER_TOKEN_LATENCY = _histogram(
    _H, "inter_token_latency_seconds", TOKEN_SECONDS, "seconds",
    "Between two tokens of one request, as the head hears of them; the tail sends them to the client at that moment.",
)  # fmt: skip
TIME_PER_OUTPUT_TOKEN = _histogram(
    _H, "request_time_per_output_token_seconds", TOKEN_SECONDS, "seconds",
    "From the first token to the last, divided by the tokens after the first; one observation for each request.",
)  # fmt: skip
REQUEST_QUEUE_TIME = _histogram(
    _H, "request_queue_time_seconds", REQUEST_SECONDS, "seconds",
    "From a request's arrival at the head until its first step leaves.",
)  # fmt: skip
REQUEST_PREFILL_TIME = _histogram(
    _H, "request_prefill_time_seconds", REQUEST_SECONDS, "seconds",
    "From a request's first step until its first token.",
)  # fmt: skip
REQUEST_DECODE_TIME = _histogram(
    _H, "request_decode_time_seconds", REQUEST_SECONDS, "seconds", "From a request's first token until its last."
)
REQUEST_PROMPT_TOKENS = _histogram(
    _H, "request_prompt_tokens", TOKENS, "tokens", "Lengths of the prompts of requests that have ended."
)
REQUEST_GENERATION_TOKENS = _histogram(
    _H, "request_generation_tokens", TOKENS, "tokens", "Tokens generated by requests that have ended."
)
PROMPT_TOKENS = _counter(
    _H, "prompt_tokens_total", "tokens", "Prompt tokens of requests that have ended, cached or not."
)
PROMPT_TOKENS_CACHED = _counter(
    _H, "prompt_tokens_cached_total", "tokens",
    "Of these, what the caches of all stages held: the sum of usage.cached_tokens.",
)  # fmt: skip
GENERATION_TOKENS = _counter(_H, "generation_tokens_total", "tokens", "Tokens generated, counted one by one.")
PREEMPTIONS = _counter(_H, "num_preemptions_total", "sequences", "Sequences rewound for want of KV blocks.")
NUM_SEQUENCES = _gauge(
    _H, "num_sequences", "sequences", "Requests at the head. waiting: no blocks yet; ending: told the tail.", "state"
)
STEPS_IN_FLIGHT = _gauge(_H, "steps_in_flight", "steps", "Steps on their way around the ring.")
STEP_TRAVERSAL = _histogram(
    _H, "step_traversal_seconds", STEP_SECONDS, "seconds", "From a step's start at the head until its result is back."
)
HOP_TIME = _histogram(
    _H, "hop_seconds", STEP_SECONDS, "seconds",
    "Of each traversal what no stage accounts for: all hops together, the way back, and bookkeeping. One-way times "
    "cannot be measured, since clocks of two hosts cannot be compared.",
)  # fmt: skip
RESTORE_TIME = _histogram(
    _H, "restore_seconds", STEP_SECONDS, "seconds",
    "From the start of a step that restores until its result is back, with all of its forward passes. hit: all "
    "stages held what was asked for; partial: a part of it; miss: nothing.", "outcome",
)  # fmt: skip
FETCH_TIME = _histogram(
    _H, "kv_fetch_seconds", STEP_SECONDS, "seconds",
    "Reading blocks from files for a request, from the order until all stages have, or are not waited for any more.",
)  # fmt: skip
EXPORT_TIME = _histogram(
    _H, "snapshot_export_seconds", REQUEST_SECONDS, "seconds",
    "Writing a snapshot into files, from the client's order until all stages have written their parts.",
)  # fmt: skip
SNAPSHOT_SAVES = _counter(_H, "snapshot_saves_total", "snapshots", "Snapshots that all stages keep, when complete.")
SNAPSHOTS = _gauge(_H, "snapshots", "snapshots", "Snapshots that are kept, or asked for.")
SNAPSHOT_BLOCKS = _gauge(_H, "snapshot_blocks", "blocks", "KV blocks of each stage that snapshots pin.")

# --- every stage: steps and links ---

STAGE_INFO = _gauge(
    _S, "stage_info", "always 1", "What a stage holds and what computes it.",
    "model_name", "layers", "precision", "kernel", "device",
)  # fmt: skip
WEIGHT_BYTES = _gauge(_S, "weight_bytes", "bytes", "Memory that the weights take.")
FORWARD_TIME = _histogram(
    _S, "stage_forward_seconds", STEP_SECONDS, "seconds",
    "Forward passes. mixed: decodes and prefill chunks in one step.", "phase",
)  # fmt: skip
SAMPLE_TIME = _histogram(_T, "stage_sample_seconds", SHORT_SECONDS, "seconds", "Drawing the tokens of one step.")
IDLE_TIME = _counter(
    _S, "stage_idle_seconds_total", "seconds", "Time in which the stage had nothing to do: the pipeline's bubble."
)
STEP_QUEUE_TIME = _histogram(
    _S, "step_queue_seconds", STEP_SECONDS, "seconds", "How long a step that had arrived waited for the stage."
)
STEP_TOKENS = _histogram(_S, "step_tokens", TOKENS, "tokens", "Rows of one forward pass: prefilled and decoded tokens.")
STEP_SEQUENCES = _histogram(_S, "step_sequences", SEQUENCES, "sequences", "Sequences in one forward pass: batch size.")
CODEC_TIME = _histogram(
    _S, "codec_seconds", SHORT_SECONDS, "seconds", "Booking a step and turning it into frames (encode), and back.",
    "direction",
)  # fmt: skip
HOP_BYTES = _counter(_S, "hop_bytes_total", "bytes", "Bytes of the ring's messages at this stage.", "direction")
HOP_MESSAGES = _counter(_S, "hop_messages_total", "messages", "The ring's messages at this stage.", "direction")
HOP_QUEUE_DEPTH = _gauge(_S, "hop_queue_depth", "steps", "Steps that have arrived and wait for the stage.")

# --- every stage: its KV cache ---

CACHE_QUERIES = _counter(
    _S, "prefix_cache_queries_total", "tokens",
    "Prompt tokens that the stage was asked for, once for each request: at a head all of a prompt but one; behind it "
    "what the stages before hold.",
)  # fmt: skip
CACHE_HITS = _counter(
    _S, "prefix_cache_hits_total", "tokens",
    "Of these what it held. ram: in memory; disk: read from files for whoever asked.", "tier",
)  # fmt: skip
CACHE_MISSES = _counter(_S, "prefix_cache_misses_total", "tokens", "Of these what it did not hold.")
RESTORES = _counter(
    _S, "restores_total", "slices",
    "Restores at this stage. forward_hit: all that was asked, passed on; direct_hit: the same at the tail, which "
    "answers the client from it; partial_hit: the same at the tail, but what follows is still being computed; "
    "direct_miss: a part was missing, and the head was told directly.", "outcome",
)  # fmt: skip
RESTORED_TOKENS = _counter(_S, "kv_restored_tokens_total", "tokens", "Tokens restored from the cache.")
RESTORED_BYTES = _counter(_S, "kv_restored_bytes_total", "bytes", "Their keys and values.")
RECORDED_TOKENS = _counter(_S, "kv_recorded_tokens_total", "tokens", "Tokens whose blocks became public.")
RECORDED_BYTES = _counter(_S, "kv_recorded_bytes_total", "bytes", "Their keys and values.")
EVICTIONS = _counter(_S, "kv_evictions_total", "blocks", "Resting blocks that were given up.")
EVICTED_TOKENS = _counter(_S, "kv_evicted_tokens_total", "tokens", "Tokens of the blocks that were given up.")
EVICTED_BYTES = _counter(_S, "kv_evicted_bytes_total", "bytes", "Their keys and values.")
KEY_COLLISIONS = _counter(_S, "kv_key_collisions_total", "lookups", "Keys that were found with other tokens.")
KV_USAGE = _gauge(
    _S, "kv_cache_usage_ratio", "0 to 1", "Of the KV pool what running sequences and snapshots hold. Rest is cache."
)
KV_BLOCKS = _gauge(
    _S, "kv_blocks", "blocks", "The KV pool. used: held by sequences; cached: at rest; free: empty.", "state"
)
KV_BYTES = _gauge(_S, "kv_bytes", "bytes", "Keys and values that are held, in memory and in files.", "tier")
KV_BUDGET_BYTES = _gauge(
    _S, "kv_budget_bytes", "bytes", "How much may be held there; 0: there is no such tier.", "tier"
)
DISK_BLOCKS = _counter(
    _S, "disk_blocks_total", "blocks",
    "Block files. dropped: not written for want of time, or after an error; failed: errors; set_aside: damaged.",
    "event",
)  # fmt: skip
