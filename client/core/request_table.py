"""All requests of a client: what the broker and the tails say of them, what to repeat, when to give up."""

# Over 300 lines: whoever changes a request's state must see all that may.

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace

from stagewire.client.core.broker_link import BrokerLink
from stagewire.client.core.diagnosis import Diagnosis
from stagewire.client.core.events import (
    Consumed,
    DeliverEnding,
    DeliverMilestone,
    DeliverTokens,
    Instruction,
    Milestone,
    SendBroker,
    StopRequest,
)
from stagewire.client.core.requests import Acknowledgements, ClientRequest, RequestState, RequestTrigger
from stagewire.client.core.return_links import ReturnLinks
from stagewire.client.core.silence import overdue_ending
from stagewire.client.settings import ClientSettings
from stagewire.wire.counted import counted
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import Accepted, Cancel, Dispatched, Ended, Generate, Refused
from stagewire.wire.note import Note
from stagewire.wire.request import Ending
from stagewire.wire.returns import ReturnAction, ReturnControl, ReturnItem
from stagewire.wire.tensor import TokenIds

REPEAT_S = 1.0
RETENTION_S = 60.0
"""How long an ending that nobody takes, or that its tail cannot be told of, is remembered."""
_MAX_RECENT = 8192


class RequestTable:
    """Requests by id, each with exactly one ending."""

    def __init__(self, settings: ClientSettings, broker: BrokerLink, links: ReturnLinks, diagnosis: Diagnosis) -> None:
        self._settings, self._broker, self._links, self._diagnosis = settings, broker, links, diagnosis
        self._acks = Acknowledgements(links)
        self._requests: dict[str, ClientRequest] = {}
        # Ended by their peers, so that a late answer of the broker needs no reaction.
        self._recent: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def busy_epochs(self) -> set[Epoch]:
        return {request.epoch for request in self._live() if request.epoch is not None}

    def _live(self) -> Iterator[ClientRequest]:
        return (request for request in list(self._requests.values()) if request.is_live)

    # --- from the caller --------------------------------------------------------------------------------------

    def submit(self, generate: Generate, now: float) -> list[Instruction]:
        error = self._broker.refusal
        if error is not None:
            return self._refuse(generate, error.code, error.detail)
        if len(self) >= self._settings.max_requests:
            detail = f"this client has {counted(len(self), 'request')}; at most {self._settings.max_requests}"
            return self._refuse(generate, ErrorCode.CLIENT_LIMIT, detail)
        request = self._requests[generate.request_id] = ClientRequest(generate, submitted_at=now)
        return self._ask(request, now) if self._broker.is_welcomed else []

    def _refuse(self, generate: Generate, code: ErrorCode, detail: str) -> list[Instruction]:
        """The ending of a request that was never admitted."""
        ending = ClientRequest(generate, submitted_at=0.0).failed(code, detail)
        return [DeliverEnding(generate.request_id, ending, refused=True)]

    def cancel(self, request_id: str, discard: bool, now: float) -> list[Instruction]:
        """End a request; what was sent to it before its ending still counts."""
        request = self._requests.get(request_id)
        if request is None:
            return []
        if discard:
            self._discard(request)
        if not request.is_live or request.cancelled_at is not None:
            return []
        if request.asked_at is None:
            return self._end(request, request.cancelled(), now)
        return self._ask_for_end(request, now)

    def stop(self, event: StopRequest, now: float) -> list[Instruction]:
        """End a request whose first tokens are the answer; its ending is still told."""
        request = self._requests.get(event.request_id)
        if request is None:
            return []
        self._discard(request)
        if not request.is_live:
            return []
        request.stop_after, request.stopped_at = event.num_tokens, now
        return self._ask_for_end(request, now) if request.cancelled_at is None else []

    def _discard(self, request: ClientRequest) -> None:
        """Nobody reads its tokens any more, so nobody waits for its acknowledgements but its tail."""
        request.is_discarded = True
        request.num_taken, request.is_ending_taken = request.num_tokens, not request.is_live
        self._acks.note(request)

    def _ask_for_end(self, request: ClientRequest, now: float) -> list[Instruction]:
        request.cancelled_at = now
        path = self._links.path(request.epoch)
        return self._cancel_on_link(request) if path is not None else [self._cancel_at_broker(request)]

    def hold(self, request_id: str, paused: bool) -> list[Instruction]:
        request = self._requests.get(request_id)
        if request is None or not request.is_live:
            return []
        request.hold = paused
        return self._send_hold(request)

    def consumed(self, event: Consumed) -> None:
        request = self._requests.get(event.request_id)
        if request is not None and request.consumed(event.num_tokens, event.ended):
            self._acks.note(request)

    # --- from the broker --------------------------------------------------------------------------------------

    def welcomed(self, same_broker: bool, now: float) -> list[Instruction]:
        """A new session: answers may have been lost with the last one, so ask for them.

        A broker that has restarted may not know a request and would run it; what streams is left alone.
        """
        out: list[Instruction] = []
        for request in self._live():
            request.waits_since = None
            if request.state is RequestState.STREAMING and not same_broker:
                request.answered_session = self._broker.session
            else:
                out += self._ask(request, now)
        return out

    def accepted(self, message: Accepted) -> list[Instruction]:
        request = self._answered(message.request_id)
        if request is None:
            return self._unwanted(message.request_id)
        is_first = request.state is RequestState.SENT
        request.accepted(message.seed)
        return [DeliverMilestone(message.request_id, Milestone.ACCEPTED)] if is_first else []

    def dispatched(self, message: Dispatched) -> list[Instruction]:
        request = self._answered(message.request_id)
        if request is None:
            return self._unwanted(message.request_id)
        is_first = request.state in (RequestState.SENT, RequestState.ACCEPTED)
        request.machine.fire(RequestTrigger.DISPATCH)
        request.moved(message.epoch)
        return [DeliverMilestone(message.request_id, Milestone.DISPATCHED)] if is_first else []

    def refused(self, message: Refused, now: float) -> list[Instruction]:
        """Not admitted; once it is with a pipeline, only that ends it."""
        request = self._answered(message.request_id)
        if request is None or request.state not in (RequestState.SENT, RequestState.ACCEPTED):
            return []
        self._remember(request)
        ending = request.failed(message.code, message.detail)
        return self._end(request, ending, now, refused=True)

    def ended(self, message: Ended, now: float) -> list[Instruction]:
        request = self._answered(message.request_id)
        if request is None or not request.is_ended_by(message.ending):
            return []
        self._remember(request)
        return self._end(request, message.ending, now)

    # --- from a tail ------------------------------------------------------------------------------------------

    def fits(self, epoch: Epoch, item: ReturnItem) -> bool:
        """Whether the item keeps the rules, as far as they concern its request."""
        request = self._wanted(epoch, item)
        if request is None or request.fits(item):
            return True
        request.num_gaps += 1
        return False

    def _wanted(self, epoch: Epoch, item: ReturnItem) -> ClientRequest | None:
        """The live request that an item is for; none if a later pipeline runs it."""
        request = self._requests.get(item.request_id)
        if request is None or not request.is_live or (request.epoch is not None and epoch < request.epoch):
            return None
        return request

    def take(self, epoch: Epoch, item: ReturnItem, now: float) -> list[Instruction]:
        """What a tail has sent; `fits` has said that it may."""
        request = self._wanted(epoch, item)
        if request is None:
            return self._stray(epoch, item)
        was_streaming = request.state is RequestState.STREAMING
        request.moved(epoch)
        part = request.new_part(item)
        request.took(part)
        # A tail ignores a pause that comes before it knows the request.
        out = self._send_hold(request) if request.hold and not was_streaming else []
        if request.is_discarded:
            self._acks.note(request)
        elif part.token_ids:
            out.append(DeliverTokens(request.request_id, part.token_ids, part.logprobs))
        if item.ending is not None and request.is_ended_by(item.ending):
            self._remember(request)
            return out + self._end(request, item.ending, now)
        return out

    def link_up(self, epoch: Epoch) -> list[Instruction]:
        """A new path stands; what the last one was told may not have arrived."""
        out: list[Instruction] = []
        for request in self._requests.values():
            if request.epoch != epoch:
                continue
            if request.num_taken or request.is_ending_taken:
                self._acks.note(request)
            if request.is_live and request.hold is not None:
                out += self._send_hold(request)
            if request.is_live and request.cancelled_at is not None:
                out += self._cancel_on_link(request)
        return out

    def acknowledge(self, now: float) -> list[Instruction]:
        out: list[Instruction] = []
        if not self._acks.is_due(now):
            return out
        for epoch, ack, requests in self._acks.flush(now):
            out += self._links.send(epoch, ack)
            for request in (r for r in requests if r.is_ending_taken):
                self._requests.pop(request.request_id, None)
        return out

    def tick(self, now: float) -> list[Instruction]:
        """Ask again, cancel again, give up; forget endings that nobody took."""
        out: list[Instruction] = []
        for request in list(self._requests.values()):
            if request.ended_at is None:
                ending = overdue_ending(request, self._broker, self._links, self._diagnosis, self._settings, now)
                out += self._repeat(request, now) if ending is None else self._abandon(request, ending, now)
            elif now - request.ended_at > RETENTION_S:
                del self._requests[request.request_id]
        return out

    def _repeat(self, request: ClientRequest, now: float) -> list[Instruction]:
        if not self._broker.is_welcomed or request.asked_at is None:
            return []
        out: list[Instruction] = []
        if request.answered_session != self._broker.session and now - request.asked_at >= REPEAT_S:
            out += self._ask(request, now)
        if request.cancelled_at is not None and now - request.cancelled_at >= REPEAT_S:
            request.cancelled_at = now
            out += [*self._cancel_on_link(request), self._cancel_at_broker(request)]
        return out

    def end_all(self, code: ErrorCode, detail: str, now: float) -> list[Instruction]:
        """The broker will not have us: everything ends for the same reason."""
        ends = [self._end(r, r.failed(code, detail), now, refused=not r.num_tokens) for r in self._live()]
        return [instruction for end in ends for instruction in end]

    def close(self, now: float) -> list[Instruction]:
        """The client leaves: its requests are cancelled by the broker, which hears of it."""
        return [instruction for request in self._live() for instruction in self._end(request, request.cancelled(), now)]

    def _ask(self, request: ClientRequest, now: float) -> list[Instruction]:
        request.asked_at = now
        if request.waits_since is None:
            request.waits_since = now
        return [SendBroker(request.generate)]

    def _answered(self, request_id: str) -> ClientRequest | None:
        """The live request that the broker speaks of; it owes us no answer now."""
        request = self._requests.get(request_id)
        if request is None or not request.is_live:
            return None
        request.answered_session, request.waits_since = self._broker.session, None
        return request

    def _unwanted(self, request_id: str) -> list[Instruction]:
        """The broker runs what has ended here: it must not."""
        return [] if request_id in self._recent else [SendBroker(Cancel(request_id))]

    def _stray(self, epoch: Epoch, item: ReturnItem) -> list[Instruction]:
        self._acks.stray(epoch, item)
        cancel = ReturnControl(item.request_id, ReturnAction.CANCEL)
        return [] if item.ending is not None else self._links.send(epoch, cancel)

    def _cancel_on_link(self, request: ClientRequest) -> list[Instruction]:
        return self._control(request, ReturnControl(request.request_id, ReturnAction.CANCEL, request.stop_after))

    @staticmethod
    def _cancel_at_broker(request: ClientRequest) -> Instruction:
        return SendBroker(Cancel(request.request_id, request.stop_after))

    def _send_hold(self, request: ClientRequest) -> list[Instruction]:
        action = ReturnAction.PAUSE if request.hold else ReturnAction.RESUME
        return self._control(request, ReturnControl(request.request_id, action))

    def _control(self, request: ClientRequest, message: ReturnControl) -> list[Instruction]:
        return [] if request.epoch is None else self._links.send(request.epoch, message)

    def _abandon(self, request: ClientRequest, ending: Ending, now: float) -> list[Instruction]:
        """End it here, and there, should anybody hear it."""
        is_unsent = request.asked_at is None
        farewell = [] if is_unsent else [*self._cancel_on_link(request), self._cancel_at_broker(request)]
        return farewell + self._end(request, ending, now, refused=is_unsent)

    def _end(self, request: ClientRequest, ending: Ending, now: float, refused: bool = False) -> list[Instruction]:
        request.ended(now)
        # The prompt was only kept to be sent again.
        request.generate = replace(request.generate, prompt_token_ids=TokenIds())
        if request.epoch is None:
            del self._requests[request.request_id]
        elif request.is_discarded:
            self._acks.note(request)
        reason = (ending.code or ending.finish_reason).value
        note = Note("request_ended", f"request={request.request_id} reason={reason} tokens={request.num_tokens}")
        return [DeliverEnding(request.request_id, ending, refused), note]

    def _remember(self, request: ClientRequest) -> None:
        self._recent[request.request_id] = None
        if len(self._recent) > _MAX_RECENT:
            self._recent.popitem(last=False)

    def check_invariants(self) -> None:
        assert len(self) <= self._settings.max_requests
        assert len(self._recent) <= _MAX_RECENT
        for request_id, request in self._requests.items():
            assert request.request_id == request_id
            request.check_invariants()
