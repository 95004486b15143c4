"""Pipelines from beginning to end: assembling, serving, dissolving, and the fence after which nobody can send."""

from __future__ import annotations

from stagewire.broker.chain import find_chain, is_whole
from stagewire.broker.endings import Endings
from stagewire.broker.events import CloseFeed, ForgetPeer, OpenFeed
from stagewire.broker.peers import StageRecord
from stagewire.broker.pipeline import Pipeline, PipelineState, PipelineTrigger, kv_numerics
from stagewire.broker.state import BrokerState
from stagewire.wire.control import Assemble, Dissolve, Fault, StageInfo
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode

REPEAT_DISSOLVE_S = 0.5


class Assembler:
    """Owns every change of a pipeline's state and of a stage's membership."""

    def __init__(self, state: BrokerState, endings: Endings) -> None:
        self._state, self._endings = state, endings

    # --- assembling ---

    def assemble_free(self, now: float) -> None:
        """Make pipelines of free stages as long as they cover a model."""
        while not self._state.collecting and (chain := find_chain(self._state.pool.free())):
            self._assemble(chain, now)

    def begin(self, epoch: Epoch, num_stages: int, initial: PipelineState) -> Pipeline:
        pipeline = Pipeline.begin(epoch, num_stages, initial, self._state.settings.feed_credit)
        self._state.pipelines[epoch] = pipeline
        return pipeline

    def join(self, pipeline: Pipeline, stage_index: int, stage: StageRecord) -> None:
        pipeline.members[stage_index] = stage.info
        stage.epoch = pipeline.epoch

    def _assemble(self, chain: tuple[StageInfo, ...], now: float) -> None:
        pipeline = self.begin(self._state.next_epoch(), len(chain), PipelineState.ASSEMBLING)
        stages = [stage for info in chain if (stage := self._state.pool.get(info.stage_id))]
        for stage_index, stage in enumerate(stages):
            self.join(pipeline, stage_index, stage)
        self._wait_for_all(pipeline, now)
        next_endpoints = [*(info.data_endpoint for info in chain[1:]), None]
        for stage_index, (stage, next_endpoint) in enumerate(zip(stages, next_endpoints, strict=True)):
            message = Assemble(
                epoch=pipeline.epoch,
                stage_index=stage_index,
                num_stages=len(chain),
                feed_endpoint=pipeline.head.data_endpoint,
                next_endpoint=next_endpoint,
                num_blocks=pipeline.num_blocks,
                cache_blocks=pipeline.cache_blocks,
                numerics=kv_numerics(chain[: stage_index + 1]),
            )
            self._state.to_stage(stage, message)
        self._state.note("assembling", epoch=pipeline.epoch, stages=",".join(pipeline.stage_ids))

    def assembled(self, stage: StageRecord, epoch: Epoch) -> None:
        """A stage is ready; the last one lets requests in."""
        pipeline = self._state.pipelines.get(epoch)
        if pipeline is None or stage.epoch != epoch:
            self._state.to_stage(stage, Dissolve(epoch))
        elif pipeline.state is PipelineState.ASSEMBLING:
            pipeline.waiting.discard(stage.info.stage_id)
            if not pipeline.waiting:
                self._serve(pipeline)

    def _serve(self, pipeline: Pipeline) -> None:
        pipeline.machine.fire(PipelineTrigger.WHOLE)
        endpoint, run = pipeline.head.data_endpoint, self._state.incarnation
        self._state.out.append(OpenFeed(pipeline.epoch, endpoint, run))
        self._state.note("serving", epoch=pipeline.epoch, stages=",".join(pipeline.stage_ids))

    def settle_reported(self, now: float) -> None:
        """The grace period is over: adopt what is all there, dissolve the rest."""
        self._state.collecting = False
        for pipeline in list(self._state.pipelines.values()):
            members = tuple(pipeline.members[index] for index in sorted(pipeline.members))
            if pipeline.state is not PipelineState.REPORTED:
                continue
            if len(members) == pipeline.num_stages and is_whole(members):
                self._serve(pipeline)
                self._state.snapshot_expiry.adopted()
            else:
                self.break_up(pipeline, ErrorCode.STAGE_LOST, "the broker restarted and found it incomplete", now)

    # --- dissolving ---

    def break_up(
        self, pipeline: Pipeline, code: ErrorCode, detail: str, now: float, is_counted: bool = True
    ) -> None:  # fmt: skip
        """End the epoch; its requests end when it is fenced. `is_counted` among those that this broker has lost."""
        if pipeline.state is PipelineState.DISSOLVING:
            return
        if pipeline.is_serving:
            self._state.out.append(CloseFeed(pipeline.epoch))
        pipeline.machine.fire(PipelineTrigger.BROKEN)
        pipeline.code, pipeline.detail = code, detail
        self._state.measures.lost_epochs[code] += is_counted
        pipeline.cancels.clear()
        self._state.note("dissolving", epoch=pipeline.epoch, code=code.value, detail=repr(detail))
        self._wait_for_all(pipeline, now)
        self._send_dissolve(pipeline, now)
        self._fence_if_silent(pipeline, now)

    def fault(self, stage: StageRecord, message: Fault, now: float) -> None:
        pipeline = self._state.pipelines.get(message.epoch)
        if pipeline is None or stage.epoch != message.epoch:
            self._state.to_stage(stage, Dissolve(message.epoch))
        else:
            self.break_up(pipeline, message.code, f"stage {stage.info.stage_id}: {message.detail}", now)

    def dissolved(self, stage: StageRecord, epoch: Epoch, now: float) -> None:
        """A stage has left an epoch, asked or not, and is free."""
        pipeline = self._state.pipelines.get(epoch)
        if pipeline and stage.epoch == epoch:
            self._leave(stage, pipeline, f"stage {stage.info.stage_id} has left it", now)

    def lose(self, stage: StageRecord, reason: str, now: float, is_missed: bool = True) -> None:
        """A stage is gone: its pipeline ends, and need not wait for it. Nobody misses one that has said goodbye."""
        if is_missed:
            self._state.measures.stage_lost(stage.info.stage_id, now)
        self._state.note("stage_lost", stage=stage.info.stage_id, run=f"{stage.info.run:x}", reason=repr(reason))
        if stage.peer:
            self._state.out.append(ForgetPeer(stage.peer))
        self._state.pool.remove(stage)
        if stage.epoch is not None:
            pipeline = self._state.pipelines[stage.epoch]
            self._leave(stage, pipeline, f"stage {stage.info.stage_id} is lost: {reason}", now)

    def _leave(self, stage: StageRecord, pipeline: Pipeline, detail: str, now: float) -> None:
        stage.epoch = None
        pipeline.waiting.discard(stage.info.stage_id)
        if pipeline.state is PipelineState.DISSOLVING:
            self._fence_if_silent(pipeline, now)
        else:
            self.break_up(pipeline, ErrorCode.STAGE_LOST, detail, now)

    def _fence_if_silent(self, pipeline: Pipeline, now: float) -> None:
        if pipeline.waiting:
            return
        self._endings.end_with_pipeline(pipeline, now)
        pipeline.machine.fire(PipelineTrigger.FENCED)
        del self._state.pipelines[pipeline.epoch]
        self._state.note("fenced", epoch=pipeline.epoch)

    # --- time ---

    def check_deadlines(self, now: float) -> None:
        """Unanswered assemblies end; `Dissolve` is sent again, and who never answers it is lost."""
        for pipeline in list(self._state.pipelines.values()):
            if pipeline.state is PipelineState.ASSEMBLING and now >= pipeline.deadline:
                names = ", ".join(sorted(pipeline.waiting))
                unanswered = f"no answer for {self._state.settings.answer_s:g} s from {names}"
                self.break_up(pipeline, ErrorCode.STAGE_LOST, unanswered, now)
            elif pipeline.state is PipelineState.DISSOLVING and now >= pipeline.deadline:
                for stage in self._waited_for(pipeline):
                    self.lose(stage, "it does not answer Dissolve", now)
            elif pipeline.state is PipelineState.DISSOLVING and now >= pipeline.resend_at:
                self._send_dissolve(pipeline, now)

    def _wait_for_all(self, pipeline: Pipeline, now: float) -> None:
        present = [stage_id for stage_id in pipeline.stage_ids if self._state.pool.member(stage_id, pipeline.epoch)]
        pipeline.waiting = set(present)
        pipeline.deadline = now + self._state.settings.answer_s

    def _waited_for(self, pipeline: Pipeline) -> list[StageRecord]:
        found = [self._state.pool.member(stage_id, pipeline.epoch) for stage_id in sorted(pipeline.waiting)]
        return [stage for stage in found if stage]

    def _send_dissolve(self, pipeline: Pipeline, now: float) -> None:
        pipeline.resend_at = now + REPEAT_DISSOLVE_S
        for stage in self._waited_for(pipeline):
            self._state.to_stage(stage, Dissolve(pipeline.epoch))
