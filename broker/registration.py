"""How stages come and how they are missed: registering, taking over a name, heartbeats, silence and hangs."""

from __future__ import annotations

from stagewire.broker.assembler import Assembler
from stagewire.broker.dispatch import Dispatch
from stagewire.broker.events import Peer
from stagewire.broker.peers import Challenger, StageRecord
from stagewire.broker.pipeline import Pipeline, PipelineState
from stagewire.broker.settings import is_loopback
from stagewire.broker.state import BrokerState
from stagewire.wire.control import AssemblyReport, Heartbeat, Register, Registered, RegisterRefused, StageBye, StageInfo
from stagewire.wire.counted import counted
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import WhoAreYou
from stagewire.wire.limits import MAX_NAME_CHARS

_MAX_INCARNATION = 1 << 63
_MAX_STAGES = 4096
_MAX_SIZE = 2**31 - 1
"""Of whatever a stage counts: sums and products of these still fit into a message."""


class Registration:
    """Owns who is in the pool."""

    def __init__(self, state: BrokerState, assembler: Assembler, dispatch: Dispatch) -> None:
        self._state, self._assembler, self._dispatch = state, assembler, dispatch

    # --- coming ---

    def register(self, peer: Peer, message: Register, now: float) -> None:
        info = message.info
        defect = defect_of(info) or report_defect_of(message.assembly)
        known = self._state.pool.get(info.stage_id)
        sender = self._state.pool.by_peer(peer)
        if sender and sender is not known:
            defect = ErrorCode.INVALID_REQUEST, f"this connection is stage {sender.info.stage_id}"
        if known is None and len(self._state.pool) >= self._state.settings.max_stages:
            defect = (
                ErrorCode.CLIENT_LIMIT,
                f"the pool holds {counted(self._state.settings.max_stages, 'stage')} already",
            )
        if defect:
            self._refuse(peer, info.stage_id, *defect)
        elif known and known.info.run != info.run:
            self._challenge(known, peer, message, now)
        elif known and known.info != info:
            self._take_over(known, peer, message, now)
        else:
            self._welcome(peer, message, known, now)

    def _challenge(self, known: StageRecord, peer: Peer, message: Register, now: float) -> None:
        """Another process bears the name: a restarted stage if the first is dead, else an impostor.

        Within `takeover_s` of the first one's last word nobody can tell, so the newcomer waits.
        """
        if now - known.heard_at > self._state.settings.takeover_s:
            self._take_over(known, peer, message, now)
        else:
            # Of several newcomers the last: an earlier one may be dead, or is asked again at its next heartbeat.
            known.challenger = Challenger(peer, message)

    def _take_over(self, known: StageRecord, peer: Peer, message: Register, now: float) -> None:
        self._assembler.lose(known, f"replaced by run {message.info.run:x}", now)
        self._welcome(peer, message, None, now)

    def _welcome(self, peer: Peer, message: Register, known: StageRecord | None, now: float) -> None:
        state = self._state
        if message.assembly:
            state.rise_above(message.assembly.epoch)
        stage = known or state.pool.add(peer, message.info, now)
        if stage.peer != peer:
            state.pool.connect(stage, peer)
        stage.heard_at = now
        state.models.saw(message.info)
        state.measures.stage_came(message.info.stage_id)
        layers = f"{message.info.layer_start}:{message.info.layer_end}"
        state.note("stage_registered", stage=message.info.stage_id, run=f"{message.info.run:x}", layers=layers)
        keep = self._reconcile(stage, message.assembly, now)
        state.to_stage(stage, Registered(state.incarnation, keep))

    def _refuse(self, peer: Peer, stage_id: str, code: ErrorCode, detail: str) -> None:
        self._state.answer(peer, RegisterRefused(code, detail))
        self._state.note("stage_refused", stage=repr(stage_id[:64]), code=code.value, detail=repr(detail))

    # --- what it serves and what we believe it serves ---

    def _reconcile(self, stage: StageRecord, report: AssemblyReport | None, now: float) -> Epoch | None:
        """The assembly that the stage shall keep."""
        if stage.epoch is None:
            return self._recall(stage, report, now) if report else None
        pipeline = self._state.pipelines[stage.epoch]
        if report and report.epoch == stage.epoch:
            self._assembler.assembled(stage, report.epoch)
            return None if pipeline.state is PipelineState.DISSOLVING else report.epoch
        if pipeline.state is PipelineState.ASSEMBLING:
            # `Assemble` is still on its way to it.
            return pipeline.epoch
        self._assembler.dissolved(stage, pipeline.epoch, now)
        return None

    def _recall(self, stage: StageRecord, report: AssemblyReport, now: float) -> Epoch | None:
        """A stage that we do not know serves an assembly of before our start, or of before it was lost."""
        pipeline = self._state.pipelines.get(report.epoch)
        if pipeline is None:
            pipeline = self._assembler.begin(report.epoch, report.num_stages, PipelineState.REPORTED)
        if not _has_place_for(pipeline, report):
            return None
        self._assembler.join(pipeline, report.stage_index, stage)
        for running in report.requests:
            self._dispatch.adopt(running, report.epoch, now)
            pipeline.introduced.add(running.client_id)
        if self._state.collecting:
            return report.epoch
        # Whatever it was, its loss was counted when it was lost, or by another broker.
        detail = "it registered too late to be adopted"
        self._assembler.break_up(pipeline, ErrorCode.STAGE_LOST, detail, now, is_counted=False)
        return None

    # --- living and leaving ---

    def heartbeat(self, peer: Peer, message: Heartbeat, now: float) -> None:
        stage = self._state.pool.get(message.stage_id)
        if stage is None or stage.info.run != message.run:
            if not (stage and stage.challenger and stage.challenger.message.info.run == message.run):
                self._state.answer(peer, WhoAreYou())
            return
        stage.heard_at, stage.step_age_s = now, message.step_age_s
        if message.counters is None or message.counters.is_sound:
            stage.counters = message.counters
        if stage.peer is None:
            self._state.answer(peer, WhoAreYou())
        if stage.challenger:
            self._refuse(stage.challenger.peer, message.stage_id, *_in_use(stage.challenger.message))
            stage.challenger = None

    def bye(self, message: StageBye, now: float) -> None:
        stage = self._state.pool.get(message.stage_id)
        if stage and stage.info.run == message.run:
            self._assembler.lose(stage, "it left", now, is_missed=False)

    def check_silence(self, now: float) -> None:
        """Lose who is silent or hangs; let a newcomer have the name of one that is silent for long enough."""
        settings = self._state.settings
        for stage in self._state.pool:
            silent_s = now - stage.heard_at
            if stage.challenger and silent_s > settings.takeover_s:
                self._take_over(stage, stage.challenger.peer, stage.challenger.message, now)
            elif silent_s > settings.stage_silence_s:
                self._assembler.lose(stage, f"silent for {silent_s:.1f} s", now)
            elif stage.step_age_s is not None and stage.step_age_s > settings.step_hang_s:
                self._assembler.lose(stage, f"it hangs in a step since {stage.step_age_s:.0f} s", now)


def _in_use(message: Register) -> tuple[ErrorCode, str]:
    return ErrorCode.IDENTITY_IN_USE, f"another stage named {message.info.stage_id!r:.80} is alive"


def _has_place_for(pipeline: Pipeline, report: AssemblyReport) -> bool:
    is_free = report.stage_index not in pipeline.members
    return pipeline.state is PipelineState.REPORTED and pipeline.num_stages == report.num_stages and is_free


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
