"""One request as its client sees it: how far it is, which tokens it has, and what nobody has confirmed yet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from stagewire.wire.epoch import Epoch
from stagewire.wire.frontend import Generate
from stagewire.wire.machine import Machine
from stagewire.wire.request import Ending
from stagewire.wire.returns import Acknowledgement, ReturnItem


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
class Request:
    """One generation.

    Attributes:
        generate: what to send again; its seed is filled in once the broker has drawn one.
        asked_at: when it was last sent; None before the first time.
        waits_since: since when the broker owes an answer to it; None when it owes none.
        answered_session: the broker session that has answered it last.
        num_tokens: received, numbers 0 to `num_tokens - 1`; `num_taken` of them the caller has.
        num_acknowledged: what the tail was last told of `num_taken`.
        is_discarded: nobody reads its tokens any more.
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
        return replace(item, first_sequence=self.num_tokens, token_ids=item.token_ids[num_known:],
                       logprobs=item.logprobs[num_known:])  # fmt: skip

    def took(self, item: ReturnItem) -> None:
        """Book `item`, which `new_part` gave."""
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

    def check_invariants(self) -> None:
        assert 0 <= self.num_acknowledged <= self.num_taken <= self.num_tokens
        assert (self.ended_at is None) == self.is_live
        assert not (self.is_ending_taken and self.is_live)
        assert self.state is not RequestState.STREAMING or self.epoch is not None
