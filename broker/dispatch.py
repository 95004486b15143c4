"""From `Generate` to a head: admission, the choice of a pipeline, pushing and pushing again."""

from __future__ import annotations

from stagewire.broker.admission import Occupancy, Refusal, content_refusal, fits, room_refusal
from stagewire.broker.endings import Endings, cancellation
from stagewire.broker.events import Asked, KeepPayload, PushCancel, PushStart
from stagewire.broker.peers import ClientRecord
from stagewire.broker.pipeline import Key, Pipeline, snapshot_key
from stagewire.broker.requests import AcceptedRequest, RequestState, RequestTrigger, queued_request, running_request
from stagewire.broker.state import BrokerState
from stagewire.wire.codec import Message
from stagewire.wire.control import RunningRequest
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import Accepted, Dispatched, Refused
from stagewire.wire.request import ReturnOffer

REPEAT_START_S = 1.0


class Dispatch:
    """Gives each admitted request to one pipeline."""

    def __init__(self, state: BrokerState, endings: Endings) -> None:
        self._state, self._endings = state, endings

    # --- admission ---

    def admit(self, client: ClientRecord, asked: Asked, now: float) -> None:
        """Accept or refuse; a resend gets the answers that its first gets or got."""
        answers = self._earlier_answers(client.client_id, asked)
        if answers is None:
            refusal = self._refusal(client.client_id, asked)
            answers = [self._refuse(client, asked, refusal)] if refusal else [self._accept(client, asked, now)]
        for answer in answers:
            self._state.to_client(client.client_id, answer)

    def _earlier_answers(self, client_id: str, asked: Asked) -> list[Message] | None:
        state = self._state
        running, finished = state.requests.get(asked.request_id), state.finished.get(asked.request_id)
        known = running or finished
        if known and known.client_id != client_id:
            detail = "request_id belongs to another client"
            return [Refused(asked.request_id, ErrorCode.INVALID_REQUEST, detail)]
        if running:
            return self._answers_so_far(running, asked)
        if finished:
            return finished.answers(asked.seed)
        refused = state.finished.refusal(asked.request_id, client_id)
        return [refused] if refused else None

    def _answers_so_far(self, request: AcceptedRequest, asked: Asked) -> list[Message]:
        if request.seed is None:
            request.seed = asked.seed
        answers: list[Message] = [Accepted(request.request_id, request.seed)]
        if request.dispatched and request.epoch:
            answers.append(Dispatched(request.request_id, request.epoch, request.offer_generation))
        return answers

    def _refusal(self, client_id: str, asked: Asked) -> Refusal | None:
        state = self._state
        if state.stopping:
            return Refusal(ErrorCode.SHUTTING_DOWN, "the broker is shutting down")
        taken = Occupancy(
            num_queued=len(state.waiting),
            payload_bytes=state.requests.payload_bytes,
            num_of_client=state.requests.num_of_client(client_id),
            memory_full=state.finished.is_full(len(state.requests)),
        )
        return content_refusal(asked, state.models) or room_refusal(asked, taken, state.settings)

    def _refuse(self, client: ClientRecord, asked: Asked, refusal: Refusal) -> Refused:
        refused = Refused(asked.request_id, *refusal)
        self._state.finished.refuse(client.client_id, refused)
        self._state.measures.refused[refusal.code] += 1
        self._state.note("request_refused", client=client.client_id, code=refusal.code.value)
        return refused

    def _accept(self, client: ClientRecord, asked: Asked, now: float) -> Accepted:
        state = self._state
        state.measures.num_accepted += 1
        state.requests.add(queued_request(client.client_id, asked, now))
        state.waiting.add(client.client_id, asked.request_id)
        state.out.append(KeepPayload(asked.request_id, asked.payload))
        state.note("request_accepted", request=asked.request_id, client=client.client_id)
        return Accepted(asked.request_id, asked.seed)

    def adopt(self, running: RunningRequest, epoch: Epoch, now: float) -> None:
        """A head reports a request from before this broker started."""
        state = self._state
        known = state.requests.get(running.request_id)
        if known and known.state is RequestState.QUEUED:
            self._endings.reported(known, epoch)
        elif known is None:
            if state.clients.get(running.client_id) is None:
                # Its hello is due; if that never comes, silence cancels the request.
                state.clients.add(running.client_id, None, now)
            request = running_request(running, epoch, now)
            state.requests.add(request)
            state.pipelines[epoch].requests[running.request_id] = None
            # Ended here while its head was away: the head has still to hear of it.
            if state.finished.get(running.request_id):
                self._endings.cancel(request, cancellation(), now)

    # --- pushing ---

    def pump(self, now: float) -> None:
        """Push all that has room: cancels first, they make more."""
        serving = self._state.serving()
        for pipeline in serving:
            self._push_cancels(pipeline)
        roomy = [pipeline for pipeline in serving if pipeline.has_room()]
        if not roomy or self._state.collecting:
            return
        for request_id in self._state.waiting.in_turn():
            request = self._state.requests[request_id]
            chosen = self._choose(request, roomy)
            if chosen is None:
                self._endings.end_overlong(request, now)
                continue
            self._start(request, chosen, now)
            roomy = [pipeline for pipeline in roomy if pipeline.has_room()]
            if not roomy:
                return

    def _push_cancels(self, pipeline: Pipeline) -> None:
        while pipeline.cancels and pipeline.credit.may_send():
            request_id = next(iter(pipeline.cancels))
            del pipeline.cancels[request_id]
            pipeline.credit.take_cancel(request_id)
            stop_after = self._state.requests[request_id].stop_after
            self._state.out.append(PushCancel(pipeline.epoch, request_id, stop_after))

    def _choose(self, request: AcceptedRequest, roomy: list[Pipeline]) -> Pipeline | None:
        """The session's last pipeline, where its prefix is cached; else the least loaded."""
        able = [pipeline for pipeline in roomy if self._can_serve(pipeline, request)]
        last = self._state.sessions.epoch_of(self._place_of(request))
        own = [pipeline for pipeline in able if pipeline.epoch == last]
        return min(own or able, key=lambda one: (len(one.requests) / one.capacity, one.epoch), default=None)

    @staticmethod
    def _place_of(request: AcceptedRequest) -> Key:
        """What must be where the request goes: the snapshot that it restores, or its session."""
        return snapshot_key(request.client_id, request.restores) if request.restores else request.session

    def _can_serve(self, pipeline: Pipeline, request: AcceptedRequest) -> bool:
        head = pipeline.head
        is_model = request.model in (None, head.model_name)
        return is_model and fits(request.num_prompt_tokens, request.max_tokens, head.context_length)

    def _start(self, request: AcceptedRequest, pipeline: Pipeline, now: float) -> None:
        request.machine.fire(RequestTrigger.PUSH)
        self._state.waiting.take(request.client_id, request.request_id)
        self._state.measures.dispatched(request, now)
        self._state.sessions.saw(request.session, pipeline.epoch)
        if request.makes:
            self._state.sessions.saw(snapshot_key(request.client_id, request.makes), pipeline.epoch)
            self._state.snapshot_expiry.made(request.client_id)
        pipeline.requests[request.request_id] = None
        request.epoch, request.pushed_at = pipeline.epoch, now
        request.offer = self._introduce(request.client_id, pipeline)
        self._push(request, pipeline, now)

    def _introduce(self, client_id: str, pipeline: Pipeline) -> ReturnOffer | None:
        client = self._state.clients.get(client_id)
        if client is None or client_id in pipeline.introduced:
            return None
        pipeline.introduced.add(client_id)
        return client.take_offer()

    def _push(self, request: AcceptedRequest, pipeline: Pipeline, now: float) -> None:
        assert request.seed is not None
        request.repeated_at = now
        pipeline.credit.take_start(request.request_id)
        self._state.out.append(
            PushStart(
                pipeline.epoch,
                request.request_id,
                request.client_id,
                request.session_id,
                request.seed,
                request.offer,
                request.pushed_at - request.queued_at,
            )
        )

    def repeat(self, now: float) -> list[Epoch]:
        """Push again what no head has acknowledged; returns the epochs whose head never will."""
        overdue = []
        for pipeline in self._state.serving():
            pushed = [self._state.requests[request_id] for request_id in pipeline.requests]
            pushed = [request for request in pushed if request.state is RequestState.PUSHED]
            for request in pushed:
                if now - request.repeated_at >= REPEAT_START_S and pipeline.credit.may_send():
                    self._push(request, pipeline, now)
            if any(now - request.pushed_at > self._state.settings.step_hang_s for request in pushed):
                overdue.append(pipeline.epoch)
        return overdue
