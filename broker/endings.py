"""How requests end: by the tail, by a cancel, by a limit, with their pipeline. Each ends once."""

from __future__ import annotations

from stagewire.broker.admission import context_refusal, model_refusal
from stagewire.broker.events import DropPayload
from stagewire.broker.pipeline import Pipeline
from stagewire.broker.requests import AcceptedRequest, RequestState, RequestTrigger
from stagewire.broker.state import BrokerState
from stagewire.wire.control import GenerateAck, RequestEnded
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import Dispatched, Ended
from stagewire.wire.request import Ending, FinishReason, Usage


class Endings:
    """Writes the endings that are the broker's to write, and notes those of the tail."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    # --- the tail's ---

    def tail_ended(self, message: RequestEnded, now: float) -> None:
        """The head reports an ending; for a request that is queued again after a restart it settles it too."""
        request = self._state.requests.get(message.request_id)
        if request and request.epoch is None and message.epoch in self._state.pipelines:
            self.reported(request, message.epoch)
        if request and request.epoch == message.epoch:
            self._state.measures.ended(request, message.finish_reason, message.code, now)
            self._finish(request, None, message.finish_reason.value, now)

    # --- the head's word on a request ---

    def head_answered(self, message: GenerateAck, now: float) -> None:
        """The head holds the request, or refuses it and nothing of it has run."""
        request = self._state.requests.get(message.request_id)
        if request is None:
            return
        if request.epoch is None and message.code is None and message.epoch in self._state.pipelines:
            self.reported(request, message.epoch)
        elif request.epoch == message.epoch and not request.dispatched:
            if message.code is None:
                self._dispatched(request)
            else:
                self._refused_by_head(request, message.code, message.detail, now)

    def reported(self, request: AcceptedRequest, epoch: Epoch) -> None:
        """A queued request turns out to be with a head already, from before this broker started."""
        request.machine.fire(RequestTrigger.REPORTED)
        self._state.waiting.remove(request.client_id, request.request_id)
        self._state.pipelines[epoch].requests[request.request_id] = None
        request.epoch = epoch
        self._announce(request)

    def _dispatched(self, request: AcceptedRequest) -> None:
        self._pipeline_of(request).credit.start_answered(request.request_id)
        if request.state is RequestState.PUSHED:
            request.machine.fire(RequestTrigger.ACKNOWLEDGE)
        self._announce(request)

    def _announce(self, request: AcceptedRequest) -> None:
        assert request.epoch is not None
        self._drop_payload(request)
        request.dispatched = True
        dispatched = Dispatched(request.request_id, request.epoch, request.offer_generation)
        self._state.to_client(request.client_id, dispatched)

    def _refused_by_head(self, request: AcceptedRequest, code: ErrorCode, detail: str, now: float) -> None:
        client = self._state.clients.get(request.client_id)
        if request.offer and client:
            self._pipeline_of(request).introduced.discard(request.client_id)
            client.give_back(request.offer)
        request.offer = None
        self.end(request, self._failure_or_cancel(request, code, detail), now)

    # --- the broker's ---

    def cancel(self, request: AcceptedRequest, queued_ending: Ending, now: float) -> None:
        """End it here with `queued_ending` if no head has it, else through the ring."""
        if request.state is RequestState.QUEUED:
            self.end(request, queued_ending, now)
        elif request.state is not RequestState.CANCELLING:
            request.machine.fire(RequestTrigger.CANCEL)
            self._drop_payload(request)
            self._pipeline_of(request).cancels[request.request_id] = None

    def cancel_all(self, client_id: str, queued_ending: Ending, now: float) -> None:
        for request in self._state.requests.of_client(client_id):
            self.cancel(request, queued_ending, now)

    def end_with_pipeline(self, pipeline: Pipeline, now: float) -> None:
        """The epoch is fenced: nobody else will end these.

        Endings that only its tail had written may have died with the tail, so their clients hear of it too;
        a client that has its ending already ignores another.
        """
        for request in [self._state.requests[request_id] for request_id in pipeline.requests]:
            if not request.dispatched:
                self._announce(request)
            self.end(request, self._failure_or_cancel(request, pipeline.code, pipeline.detail), now)
        for finished in self._state.finished.undelivered_of(pipeline.epoch):
            finished.ending = failure(ErrorCode.STAGE_LOST, pipeline.detail)
            self._state.to_client(finished.client_id, Ended(finished.request_id, finished.ending))

    def end_queued(self, code: ErrorCode, detail: str, now: float) -> None:
        for request_id in self._state.waiting.in_turn():
            request = self._state.requests[request_id]
            self.end(request, failure(code, detail, request.num_prompt_tokens), now)

    def expire(self, now: float) -> None:
        """End what has waited too long for a pipeline, or for room in one."""
        self._state.finished.expire(now)
        serving = {pipeline.head.model_name for pipeline in self._state.serving()}
        for request_id in self._state.waiting.in_turn():
            request = self._state.requests[request_id]
            if request.model in serving or (serving and request.model is None):
                request.pipeline_stood_at = now
            refusal = self._overdue(request, now)
            if refusal:
                self.end(request, failure(*refusal, request.num_prompt_tokens), now)

    def _overdue(self, request: AcceptedRequest, now: float) -> tuple[ErrorCode, str] | None:
        settings = self._state.settings
        if now - request.pipeline_stood_at > settings.no_pipeline_wait_s:
            lack = self._state.waiting_for(request.model)
            detail = f"no pipeline stood for {settings.no_pipeline_wait_s:g} s: {lack}"
            return model_refusal(request.model, self._state.models) or (ErrorCode.NO_PIPELINE, detail)
        if now - request.queued_at > settings.queue_timeout_s:
            detail = f"all pipelines were full for {settings.queue_timeout_s:g} s"
            return ErrorCode.QUEUE_TIMEOUT, detail
        return None

    def end_overlong(self, request: AcceptedRequest, now: float) -> None:
        """End a queued request that no standing model's context holds; it came before any stage."""
        models = self._state.models.named(request.model)
        refusal = context_refusal(request.num_prompt_tokens, request.max_tokens, models)
        if refusal:
            self.end(request, failure(*refusal, request.num_prompt_tokens), now)

    def end(self, request: AcceptedRequest, ending: Ending, now: float) -> None:
        """Write the ending of a request that no tail will end."""
        self._state.measures.ended(request, ending.finish_reason, ending.code, now)
        self._finish(request, ending, (ending.code or ending.finish_reason).value, now)
        self._state.to_client(request.client_id, Ended(request.request_id, ending))

    # --- both ---

    def _finish(self, request: AcceptedRequest, ending: Ending | None, reason: str, now: float) -> None:
        state = self._state
        if request.epoch is None:
            state.waiting.remove(request.client_id, request.request_id)
        elif ending is None and not request.dispatched:
            # Its acknowledgement was lost, but it must have run.
            self._announce(request)
        if request.epoch is not None:
            self._pipeline_of(request).forget(request.request_id)
        self._drop_payload(request)
        request.machine.fire(RequestTrigger.END)
        state.requests.remove(request)
        state.finished.add(request, ending, now)
        state.note("request_ended", request=request.request_id, client=request.client_id, reason=reason)

    def _failure_or_cancel(self, request: AcceptedRequest, code: ErrorCode, detail: str) -> Ending:
        if request.state is RequestState.CANCELLING:
            return as_asked(request)
        return failure(code, detail, request.num_prompt_tokens)

    def _drop_payload(self, request: AcceptedRequest) -> None:
        if request.payload_bytes:
            self._state.requests.drop_payload(request)
            self._state.out.append(DropPayload(request.request_id))

    def _pipeline_of(self, request: AcceptedRequest) -> Pipeline:
        assert request.epoch is not None
        return self._state.pipelines[request.epoch]


def failure(code: ErrorCode, detail: str, num_prompt_tokens: int = 0) -> Ending:
    """An ending whose writer cannot know how many tokens were delivered."""
    return Ending(FinishReason.FAILED, None, Usage(num_prompt_tokens, 0), (), code, detail)


def cancellation(num_prompt_tokens: int = 0) -> Ending:
    return Ending(FinishReason.CANCELLED, None, Usage(num_prompt_tokens, 0))


def as_asked(request: AcceptedRequest) -> Ending:
    """The ending that its client has asked for: a cancel, or a stop after the tokens that it has."""
    if request.stop_after is None:
        return cancellation(request.num_prompt_tokens)
    return Ending(FinishReason.STOP, None, Usage(request.num_prompt_tokens, request.stop_after))
