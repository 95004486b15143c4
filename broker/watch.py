"""The broker as Prometheus sees it: its samples, and the list of all processes to scrape."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from stagewire.broker.measures import EXPIRED
from stagewire.broker.pipeline import PipelineState
from stagewire.broker.requests import RequestState
from stagewire.broker.state import BrokerState
from stagewire.monitoring import metrics as m
from stagewire.monitoring.endpoint import MetricsEndpoint, Page, identity
from stagewire.monitoring.exposition import CONTENT_TYPE, Exposition
from stagewire.monitoring.metric import Metric, Sample
from stagewire.sockets.connection import cannot_bind
from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import FinishReason
from stagewire.wire.snapshots import SnapshotAction

_SUCCESS = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED)
_STATES = (RequestState.QUEUED, RequestState.PUSHED, RequestState.ACKNOWLEDGED, RequestState.CANCELLING)
_REFUSALS = (
    ErrorCode.INVALID_REQUEST,
    ErrorCode.CONTEXT_OVERFLOW,
    ErrorCode.DECODE_SEED_MISSING,
    ErrorCode.TOKEN_OUT_OF_VOCABULARY,
    ErrorCode.UNKNOWN_MODEL,
    ErrorCode.SNAPSHOT_LIMIT,
    ErrorCode.QUEUE_FULL,
    ErrorCode.CLIENT_LIMIT,
    ErrorCode.QUEUE_TIMEOUT,
    ErrorCode.NO_PIPELINE,
    ErrorCode.SHUTTING_DOWN,
)
_FAILURES = (
    ErrorCode.STAGE_LOST,
    ErrorCode.PREFILL_FAILED,
    ErrorCode.DECODE_FAILED,
    ErrorCode.RESTORE_INCOMPLETE,
    ErrorCode.CLIENT_GONE,
    ErrorCode.PROTOCOL_ERROR,
    ErrorCode.INTERNAL,
)
_PIPELINE_STATES = (
    PipelineState.REPORTED,
    PipelineState.ASSEMBLING,
    PipelineState.SERVING,
    PipelineState.DISSOLVING,
)


def watch(state: BrokerState, port: int) -> MetricsEndpoint:
    """Serves `/metrics` and `/sd`, and at `/` who this is, until it is closed.

    Raises:
        SettingsError: the port cannot be bound (PORT_IN_USE: another process has it).
    """
    try:
        endpoint = MetricsEndpoint(port)
    except OSError as error:
        raise cannot_bind(f"metrics_port={port}", error) from error
    exposition = Exposition(lambda: broker_samples(state))
    endpoint.serve(
        {
            "/metrics": Page(CONTENT_TYPE, exposition.page),
            "/": identity("broker", frontend=state.settings.frontend_endpoint, control=state.settings.control_endpoint),
            "/sd": Page("application/json", lambda: targets(state, endpoint.address)),
        }
    )
    return endpoint


def broker_samples(state: BrokerState) -> Iterator[Sample]:
    """All of the broker's metrics now; series are there from the start, so that the first event is an increase.

    May be called from another thread: it looks at copies.
    """
    yield from _requests(state)
    yield from _pool(state)
    yield Sample(m.NUM_CLIENTS, (), len(state.clients))
    yield Sample(m.BAD_MESSAGES, (), state.num_bad_messages)
    yield Sample(m.UNDELIVERED_MESSAGES, (), state.num_undelivered)


def _requests(state: BrokerState) -> Iterator[Sample]:
    measures, num_waiting = state.measures, len(state.waiting)
    yield Sample(m.REQUESTS_ACCEPTED, (), measures.num_accepted)
    yield from _by_code(m.REQUESTS_REFUSED, measures.refused, _REFUSALS)
    yield from _by_code(m.REQUEST_FAILURES, measures.failed, (*_REFUSALS, *_FAILURES))
    for reason in _SUCCESS:
        yield Sample(m.REQUEST_SUCCESS, (reason.value,), measures.succeeded[reason])
    yield Sample(m.NUM_REQUESTS_RUNNING, (), len(state.requests) - num_waiting)
    is_serving = any(pipeline.is_serving for pipeline in list(state.pipelines.values()))
    yield Sample(m.NUM_REQUESTS_WAITING, ("capacity",), num_waiting if is_serving else 0)
    yield Sample(m.NUM_REQUESTS_WAITING, ("no_pipeline",), 0 if is_serving else num_waiting)
    by_state = Counter(request.state for request in state.requests)
    for request_state in _STATES:
        yield Sample(m.NUM_REQUESTS, (request_state.value,), by_state[request_state])
    yield Sample(m.QUEUE_LIMIT, (), state.settings.max_queued)
    yield Sample(m.QUEUED_BYTES, (), state.requests.payload_bytes)
    yield Sample(m.BROKER_QUEUE_TIME, (), measures.queue_s)
    yield Sample(m.E2E_LATENCY, (), measures.e2e_s)


def _pool(state: BrokerState) -> Iterator[Sample]:
    measures = state.measures
    up = {stage.info.stage_id for stage in state.pool}
    for stage_id in sorted(up):
        yield Sample(m.STAGE_UP, (stage_id,), 1)
    for stage_id in sorted(set(measures.missed.copy()) - up):
        yield Sample(m.STAGE_UP, (stage_id,), 0)
    yield Sample(m.STAGES_LOST, (), measures.num_stages_lost)
    by_state = Counter(pipeline.state for pipeline in list(state.pipelines.values()))
    for pipeline_state in _PIPELINE_STATES:
        yield Sample(m.PIPELINES, (pipeline_state.value,), by_state[pipeline_state])
    yield Sample(m.EPOCHS, (), state.num_epochs)
    yield from _by_code(m.EPOCHS_LOST, measures.lost_epochs, _FAILURES)
    for operation in (*(action.value for action in SnapshotAction), EXPIRED):
        yield Sample(m.SNAPSHOT_OPERATIONS, (operation,), measures.snapshot_operations[operation])


def _by_code(metric: Metric, counts: Counter[ErrorCode], usual: tuple[ErrorCode, ...]) -> Iterator[Sample]:
    """The usual codes from the start, others from their first time on."""
    seen = counts.copy()
    for code in (*usual, *(code for code in seen if code not in usual)):
        yield Sample(metric, (code.value,), seen[code])


def targets(state: BrokerState, own_address: str) -> bytes:
    """What Prometheus' `http_sd_configs` reads: this broker, and every stage that has an endpoint.

    A stage's series keep their name when it comes back on another port: `instance` is its id, not its address.
    """
    groups: list[dict[str, object]] = [{"targets": [own_address], "labels": {"role": "broker"}}]
    for stage in sorted(state.pool, key=lambda stage: stage.info.stage_id):
        if stage.info.metrics_address:
            stage_id = stage.info.stage_id
            labels = {"role": "stage", "stage": stage_id, "instance": stage_id}
            groups.append({"targets": [stage.info.metrics_address], "labels": labels})
    return json.dumps(groups).encode()
