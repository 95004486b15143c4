"""The answer to `GetStatus`, read off the state; it changes nothing."""

from __future__ import annotations

from stagewire.broker.events import Peer
from stagewire.broker.peers import StageRecord
from stagewire.broker.pipeline import Pipeline
from stagewire.broker.state import BrokerState
from stagewire.wire.status import PipelineStatus, StageStatus, Status


def status_of(state: BrokerState, asker: Peer, now: float) -> Status:
    """The report for `asker`, who is not counted among the clients: nobody is served just to be told so."""
    is_client = state.clients.by_peer(asker) is not None
    return Status(
        incarnation=state.incarnation,
        uptime_s=now - state.started_at,
        models=state.models.all(),
        stages=tuple(_stage(stage, now) for stage in state.pool),
        pipelines=tuple(_pipeline(pipeline) for pipeline in state.pipelines.values()),
        num_clients=len(state.clients) - is_client,
        num_requests_waiting=len(state.waiting),
        num_requests_running=len(state.requests) - len(state.waiting),
        num_bad_messages=state.num_bad_messages,
        waiting_for=state.waiting_for(),
        snapshot_expiry_s=state.settings.snapshot_expiry_s,
    )


def _stage(stage: StageRecord, now: float) -> StageStatus:
    serves = str(stage.epoch) if stage.epoch else None
    silent_s = max(0.0, now - stage.heard_at)
    return StageStatus(stage.info, serves, silent_s, stage.step_age_s, stage.counters)


def _pipeline(pipeline: Pipeline) -> PipelineStatus:
    state, epoch = pipeline.state.value, str(pipeline.epoch)
    return PipelineStatus(epoch, state, pipeline.stage_ids, len(pipeline.requests), pipeline.capacity)
