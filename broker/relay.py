"""Return-link messages that go through the broker, because the client cannot be dialled or asked for it."""

from __future__ import annotations

from stagewire.broker.clients import ClientRecord
from stagewire.broker.pipeline import Pipeline, PipelineState
from stagewire.broker.pool import StageRecord
from stagewire.broker.state import BrokerState
from stagewire.wire.epoch import Epoch
from stagewire.wire.frontend import RelayToClient, RelayToTail


class Relay:
    """Passes frames on unread, between a client and the tail of a living epoch, and keeps nothing.

    What cannot be passed on is counted: both ends of a return link repeat what was not acknowledged.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def to_tail(self, client: ClientRecord, message: RelayToTail) -> None:
        tail = self._tail_of(message.epoch)
        passed_on = RelayToTail(client.client_id, message.epoch, message.frames)
        if tail:
            self._state.to_stage(tail, passed_on)
        else:
            self._state.undelivered(passed_on, f"epoch={message.epoch}")

    def to_client(self, stage: StageRecord, message: RelayToClient) -> None:
        if self._tail_of(message.epoch) is stage:
            self._state.to_client(message.client_id, message)
        else:
            self._state.undelivered(message, f"epoch={message.epoch}")

    def _tail_of(self, epoch: Epoch) -> StageRecord | None:
        pipeline = self._state.pipelines.get(epoch)
        if pipeline is None or not _is_live(pipeline) or pipeline.tail is None:
            return None
        return self._state.pool.member(pipeline.tail.stage_id, epoch)


def _is_live(pipeline: Pipeline) -> bool:
    return pipeline.state in (PipelineState.SERVING, PipelineState.REPORTED)
