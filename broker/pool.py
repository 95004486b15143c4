"""The registered stages: who they are, when they were last heard, and which pipeline each serves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stagewire.broker.events import Peer
from stagewire.broker.settings import is_loopback
from stagewire.wire.control import AssemblyReport, Register, StageInfo
from stagewire.wire.counters import StageCounters
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.limits import MAX_NAME_CHARS

_MAX_INCARNATION = 1 << 63
_MAX_STAGES = 4096


@dataclass(slots=True)
class Challenger:
    """A newcomer under the name of a stage that may be dead: the next heartbeat, or its absence, decides."""

    peer: Peer
    message: Register


@dataclass(slots=True)
class StageRecord:
    """One registered stage. `peer` is None while its connection is broken; `epoch` while it is free."""

    info: StageInfo
    peer: Peer | None
    heard_at: float
    epoch: Epoch | None = None
    step_age_s: float | None = None
    counters: StageCounters | None = None
    challenger: Challenger | None = None


class Pool:
    """Stages by name and by connection."""

    def __init__(self) -> None:
        self._by_id: dict[str, StageRecord] = {}
        self._by_peer: dict[Peer, str] = {}

    def __iter__(self) -> Iterator[StageRecord]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, stage_id: str) -> StageRecord | None:
        return self._by_id.get(stage_id)

    def by_peer(self, peer: Peer) -> StageRecord | None:
        return self._by_id.get(self._by_peer.get(peer, ""))

    def member(self, stage_id: str, epoch: Epoch) -> StageRecord | None:
        """The stage of that name if it serves that epoch; a restarted one does not."""
        stage = self._by_id.get(stage_id)
        return stage if stage and stage.epoch == epoch else None

    def add(self, peer: Peer, info: StageInfo, now: float) -> StageRecord:
        stage = self._by_id[info.stage_id] = StageRecord(info, None, now)
        self.connect(stage, peer)
        return stage

    def connect(self, stage: StageRecord, peer: Peer) -> None:
        """The stage speaks on this connection from now on."""
        self.disconnect(stage)
        stage.peer = peer
        self._by_peer[peer] = stage.info.stage_id

    def disconnect(self, stage: StageRecord) -> None:
        if stage.peer is not None:
            del self._by_peer[stage.peer]
            stage.peer = None

    def remove(self, stage: StageRecord) -> None:
        self.disconnect(stage)
        del self._by_id[stage.info.stage_id]

    def free(self) -> list[StageInfo]:
        return [stage.info for stage in self if stage.epoch is None and stage.peer]

    def check_invariants(self) -> None:
        for peer, stage_id in self._by_peer.items():
            assert self._by_id[stage_id].peer == peer
        connected = [stage for stage in self if stage.peer]
        assert len(connected) == len(self._by_peer)


_MAX_SIZE = 2**31 - 1
"""Of whatever a stage counts: sums and products of these still fit into a message."""


def defect_of(info: StageInfo) -> tuple[ErrorCode, str] | None:
    """Why a stage cannot join any pipeline, or None."""
    if not 0 <= info.layer_start < info.layer_end <= info.num_layers:
        layers = f"layers {info.layer_start}:{info.layer_end}"
        return ErrorCode.INVALID_LAYER_RANGE, f"{layers} are no range within 0:{info.num_layers}"
    for name in ("num_layers", "num_blocks", "block_size", "max_sequences", "context_length", "vocab_size"):
        if not 1 <= getattr(info, name) <= _MAX_SIZE:
            return ErrorCode.INVALID_SETTING, f"{name}={getattr(info, name)}: must be between 1 and {_MAX_SIZE}"
    for name in ("stage_id", "model_name", "model_digest"):
        if not 1 <= len(getattr(info, name)) <= MAX_NAME_CHARS:
            return ErrorCode.INVALID_SETTING, f"{name} must have 1 to {MAX_NAME_CHARS} characters"
    for name in ("stage_id", "model_name", "precision", "kernel", "device"):
        if not getattr(info, name).isprintable():
            return ErrorCode.INVALID_SETTING, f"{name} must have printable characters only"
    if not is_loopback(info.data_endpoint):
        detail = f"data_endpoint={info.data_endpoint:.80}: must be tcp://127.0.0.1:PORT"
        return ErrorCode.INVALID_SETTING, detail
    if info.metrics_address and not is_loopback(f"tcp://{info.metrics_address}"):
        detail = f"metrics_address={info.metrics_address:.80}: must be 127.0.0.1:PORT, or empty"
        return ErrorCode.INVALID_SETTING, detail
    return None


def report_defect_of(report: AssemblyReport | None) -> tuple[ErrorCode, str] | None:
    """Why a reported assembly cannot be one, or None."""
    if report and not report.stage_index < report.num_stages <= _MAX_STAGES:
        detail = f"stage_index={report.stage_index} of num_stages={report.num_stages}"
        return ErrorCode.PROTOCOL_ERROR, detail
    if report and report.epoch.incarnation >= _MAX_INCARNATION:
        return ErrorCode.PROTOCOL_ERROR, f"epoch {report.epoch}: the incarnation must be below 2**63"
    return None
