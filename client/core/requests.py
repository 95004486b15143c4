"""One request as its client sees it: how far it is, which tokens it has, and what its tail must still be told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from stagewire.client.core.return_links import ReturnLinks
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import Generate
from stagewire.wire.machine import Machine
from stagewire.wire.request import Ending, FinishReason, Usage
from stagewire.wire.returns import RETURN_WINDOW, Acknowledgement, ReturnAck, ReturnItem

ACKNOWLEDGE_S = 0.05
HALF_WINDOW = RETURN_WINDOW // 2


class RequestState(str, Enum):
    SENT = "sent"
    ACCEPTED = "accepted"
    DISPATCHED = "dispatched"
    STREAMING = "streaming"
    ENDED = "ended"


class RequestTrigger(str, Enum):
    ACCEPT = "accept"
    DISPATCH = "dispatch"
    TOKENS = "tokens"
    END = "end"


_S, _T = RequestState, RequestTrigger
# The broker repeats its answers, and tokens take a shorter way than `Dispatched`.
TRANSITIONS: dict[tuple[RequestState, RequestTrigger], RequestState] = {
    (_S.SENT, _T.ACCEPT): _S.ACCEPTED,
    (_S.ACCEPTED, _T.ACCEPT): _S.ACCEPTED,
    (_S.DISPATCHED, _T.ACCEPT): _S.DISPATCHED,
    (_S.STREAMING, _T.ACCEPT): _S.STREAMING,
    (_S.SENT, _T.DISPATCH): _S.DISPATCHED,
    (_S.ACCEPTED, _T.DISPATCH): _S.DISPATCHED,
    (_S.DISPATCHED, _T.DISPATCH): _S.DISPATCHED,
    (_S.STREAMING, _T.DISPATCH): _S.STREAMING,
    (_S.SENT, _T.TOKENS): _S.STREAMING,
    (_S.ACCEPTED, _T.TOKENS): _S.STREAMING,
    (_S.DISPATCHED, _T.TOKENS): _S.STREAMING,
    (_S.STREAMING, _T.TOKENS): _S.STREAMING,
    (_S.SENT, _T.END): _S.ENDED,
    (_S.ACCEPTED, _T.END): _S.ENDED,
    (_S.DISPATCHED, _T.END): _S.ENDED,
    (_S.STREAMING, _T.END): _S.ENDED,
}


def _new_machine() -> Machine[RequestState, RequestTrigger]:
    return Machine("request", RequestState.SENT, TRANSITIONS)


@dataclass(slots=True)
class ClientRequest:
    """One generation.

    Attributes:
        generate: what to send again; its seed is filled in once the broker has drawn one.
        asked_at: when it was last sent; None before the first time.
        waits_since: since when the broker owes an answer to it; None when it owes none.
        answered_session: the broker session that has answered it last.
        num_tokens: received, numbers 0 to `num_tokens - 1`; `num_taken` of them the caller has.
        num_acknowledged: what the tail was last told of `num_taken`.
        is_discarded: nobody reads its tokens any more.
        cancelled_at: when its end was last asked for; a stop string, found at `stopped_at` in its first `stop_after`
            tokens, is one way to ask.
        hold: what the caller last asked for: pause (True), resume (False), nothing (None).
        num_gaps: how often its numbers were wrong.
        is_ending_taken: the caller has its ending.
    """

    generate: Generate
    submitted_at: float
    machine: Machine[RequestState, RequestTrigger] = field(default_factory=_new_machine)
    asked_at: float | None = None
    waits_since: float | None = None
    answered_session: int = 0
    epoch: Epoch | None = None
    num_tokens: int = 0
    num_taken: int = 0
    num_acknowledged: int = 0
    is_discarded: bool = False
    cancelled_at: float | None = None
    stop_after: int | None = None
    stopped_at: float | None = None
    hold: bool | None = None
    num_gaps: int = 0
    ended_at: float | None = None
    is_ending_taken: bool = False

    @property
    def request_id(self) -> str:
        return self.generate.request_id

    @property
    def state(self) -> RequestState:
        return self.machine.state

    @property
    def is_live(self) -> bool:
        return self.state is not RequestState.ENDED

    def accepted(self, seed: int) -> None:
        """The seed is fixed from the first acceptance on: a broker that never saw it must draw the same."""
        self.machine.fire(RequestTrigger.ACCEPT)
        if self.generate.sampling.seed is None:
            self.generate = replace(self.generate, sampling=replace(self.generate.sampling, seed=seed))

    def moved(self, epoch: Epoch) -> None:
        """The request runs in `epoch`, unless a later one is known."""
        if self.epoch is None or epoch > self.epoch:
            self.epoch = epoch

    def fits(self, item: ReturnItem) -> bool:
        """Whether the item keeps the rules: no number is skipped, and log probabilities belong to tokens."""
        return item.first_sequence <= self.num_tokens and len(item.logprobs) in (0, len(item.token_ids))

    def new_part(self, item: ReturnItem) -> ReturnItem:
        """The item without the tokens that are here already."""
        num_known = self.num_tokens - item.first_sequence
        if not num_known:
            return item
        return replace(item, first_sequence=self.num_tokens, token_ids=item.token_ids[num_known:],
                       logprobs=item.logprobs[num_known:])  # fmt: skip

    def took(self, item: ReturnItem) -> None:
        """Book `item`, which `new_part` gave."""
        if self.state is not RequestState.STREAMING:
            self.machine.fire(RequestTrigger.TOKENS)
        self.num_tokens += len(item.token_ids)
        if self.is_discarded:
            self.num_taken = self.num_tokens

    def is_ended_by(self, ending: Ending) -> bool:
        """The first ending whose total is what is here, or whose writer could not know it."""
        return self.is_live and ending.num_tokens in (None, self.num_tokens)

    def ended(self, now: float) -> None:
        self.machine.fire(RequestTrigger.END)
        self.ended_at = now
        self.is_ending_taken = self.is_discarded

    def consumed(self, num_tokens: int, ended: bool) -> bool:
        """What the caller has by now; False when that is no news."""
        before = self.num_taken, self.is_ending_taken
        self.num_taken = max(self.num_taken, min(num_tokens, self.num_tokens))
        self.is_ending_taken |= ended and not self.is_live
        return before != (self.num_taken, self.is_ending_taken)

    def acknowledgement(self) -> Acknowledgement:
        return Acknowledgement(self.request_id, self.num_taken, self.is_ending_taken)

    # --- the endings that a client writes itself, where nobody else can ---

    def failed(self, code: ErrorCode, detail: str) -> Ending:
        return Ending(FinishReason.FAILED, self.num_tokens, self._usage, (), code, detail)

    def cancelled(self) -> Ending:
        return Ending(FinishReason.CANCELLED, self.num_tokens, self._usage)

    def stopped(self) -> Ending:
        return Ending(FinishReason.STOP, self.num_tokens, self._usage)

    @property
    def _usage(self) -> Usage:
        return Usage(len(self.generate.prompt_token_ids), self.num_tokens)

    def check_invariants(self) -> None:
        assert 0 <= self.num_acknowledged <= self.num_taken <= self.num_tokens
        assert (self.ended_at is None) == self.is_live
        assert not (self.is_ending_taken and self.is_live)
        assert self.state is not RequestState.STREAMING or self.epoch is not None


class Acknowledgements:
    """When a tail is told which of its tokens have reached the caller: at most every 50 ms, or at half the window."""

    def __init__(self, links: ReturnLinks) -> None:
        self._links = links
        self._requests: dict[str, ClientRequest] = {}
        self._strays: dict[Epoch, list[Acknowledgement]] = {}
        self._sent_at = float("-inf")
        self._is_urgent = False

    def note(self, request: ClientRequest) -> None:
        """The caller has more of this request than its tail may know."""
        self._requests[request.request_id] = request
        self._is_urgent |= request.num_taken - request.num_acknowledged >= HALF_WINDOW

    def stray(self, epoch: Epoch, item: ReturnItem) -> None:
        """Nobody waits for this item: its tail need not keep it."""
        num_tokens = item.first_sequence + len(item.token_ids)
        ack = Acknowledgement(item.request_id, num_tokens, item.ending is not None)
        self._strays.setdefault(epoch, []).append(ack)

    def is_due(self, now: float) -> bool:
        has_any = bool(self._requests or self._strays)
        return has_any and (self._is_urgent or now - self._sent_at >= ACKNOWLEDGE_S)

    def flush(self, now: float) -> Iterator[tuple[Epoch, ReturnAck, list[ClientRequest]]]:
        """What is to be sent to each tail that can be reached, and the requests that it confirms.

        What cannot be sent is forgotten: a new link has all its requests noted again.
        """
        self._sent_at, self._is_urgent = now, False
        requests, self._requests = self._requests, {}
        strays, self._strays = self._strays, {}
        confirmed: dict[Epoch, list[ClientRequest]] = {epoch: [] for epoch in strays}
        for request in requests.values():
            if request.epoch is not None:
                confirmed.setdefault(request.epoch, []).append(request)
        for epoch, group in confirmed.items():
            if self._links.path(epoch) is None:
                continue
            items = [*strays.get(epoch, ()), *(request.acknowledgement() for request in group)]
            for request in group:
                request.num_acknowledged = request.num_taken
            yield epoch, ReturnAck(tuple(items)), group
