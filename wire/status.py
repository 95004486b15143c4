"""The status report: what the broker knows of its pool, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.wire.codec import Message, message
from stagewire.wire.control import StageInfo
from stagewire.wire.counters import StageCounters
from stagewire.wire.frontend import ModelInfo


@dataclass(frozen=True, slots=True)
class StageStatus:
    """A registered stage. `pipeline` is the epoch that it serves, None for a spare.

    `counters` came with its last heartbeat; None before the first.
    """

    info: StageInfo
    pipeline: str | None
    silent_s: float
    step_age_s: float | None
    counters: StageCounters | None = None


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """A chain of stages, head first; `state` is assembling, serving or dissolving."""

    epoch: str
    state: str
    stage_ids: tuple[str, ...]
    num_requests: int
    capacity: int


@message(40)
@dataclass(frozen=True, slots=True)
class Status(Message):
    """Answer to `GetStatus`. `num_clients` are those besides the one that asks.

    `waiting_for` says in words what keeps a pipeline from being whole, or is empty. Snapshots of anonymous clients are
    freed when these have been gone for `snapshot_expiry_s`.
    """

    incarnation: int
    uptime_s: float
    models: tuple[ModelInfo, ...]
    stages: tuple[StageStatus, ...]
    pipelines: tuple[PipelineStatus, ...]
    num_clients: int
    num_requests_waiting: int
    num_requests_running: int
    num_bad_messages: int
    waiting_for: str
    snapshot_expiry_s: float
