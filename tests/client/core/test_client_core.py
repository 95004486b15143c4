"""The client's decisions, event by event: a request's life, as whole instruction lists."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.client_core import DONE, EPOCH, GENERATE, SETTINGS, Client, hello, offer, streaming, tokens, welcomed

from stagewire.client.core.events import (
    BindOffer,
    CancelRequest,
    Close,
    CloseSocket,
    Consumed,
    DeliverEnding,
    DeliverMilestone,
    DeliverTokens,
    HoldRequest,
    Instruction,
    LinkConnected,
    LinkDisconnected,
    Milestone,
    SendBroker,
    SendLink,
    StopRequest,
    Submit,
    Tick,
)
from stagewire.client.core.requests import TRANSITIONS, RequestState, RequestTrigger
from stagewire.wire.codec import decode, encode
from stagewire.wire.errors import ErrorCode, InvalidTransition
from stagewire.wire.frontend import Accepted, Cancel, ClientBye, ClientPing, Dispatched, Ended, OfferReturn, Refused
from stagewire.wire.machine import Machine
from stagewire.wire.request import Ending, FinishReason, Usage
from stagewire.wire.returns import Acknowledgement, ReturnAck, ReturnAction, ReturnControl, ReturnHello

# --- a request's life -----------------------------------------------------------------------------------------


def test_a_request_from_submission_to_its_acknowledged_ending() -> None:
    """Accepted, dispatched, linked, streamed; acknowledged as far as the caller took it."""
    client = welcomed()
    assert client.on(Submit(GENERATE)) == [BindOffer(1), SendBroker(OfferReturn(offer(1))), SendBroker(GENERATE)]
    assert client.hear(Accepted("r", 7)) == [DeliverMilestone("r", Milestone.ACCEPTED)]
    assert client.hear(Dispatched("r", EPOCH, 1)) == [DeliverMilestone("r", Milestone.DISPATCHED)]
    client.on(LinkConnected(1))
    assert client.link(hello(1)) == [BindOffer(2), SendLink(1, ReturnHello(1, b"tail-1", offer(2)))]
    client.on(Tick(), 0.9)
    assert client.link(tokens(0, 5, 6)) == [DeliverTokens("r", (5, 6), ())]
    ack = Acknowledgement("r", 2, ended=False)
    assert client.on(Consumed("r", 2, ended=False), 1.0) == [SendLink(1, ReturnAck((ack,)))]
    assert client.link(tokens(2, 7, ending=DONE)) == [DeliverTokens("r", (7,), ()), DeliverEnding("r", DONE)]
    assert client.on(Consumed("r", 3, ended=True), 1.01) == []
    ack = Acknowledgement("r", 3, ended=True)
    assert client.on(Tick(), 1.06) == [SendLink(1, ReturnAck((ack,)))]
    assert not client.core.is_busy


def test_tokens_that_are_here_already_are_dropped_and_a_skipped_number_ends_the_link() -> None:
    """The tail sends all of it again on its next."""
    client = streaming()
    client.link(tokens(0, 5, 6))
    assert client.link(tokens(1, 6, 7)) == [DeliverTokens("r", (7,), ())]
    assert client.link(tokens(0, 5)) == []
    assert client.link(tokens(4, 9)) == [CloseSocket(1)]
    assert client.link(tokens(3, 8)) == [], "of a socket that is gone"
    assert client.link(hello(2, generation=2), 2)[-1] == SendLink(2, ReturnHello(2, b"tail-2", offer(3)))
    assert client.link(tokens(0, 5, 6, 7, 8, 9), 2) == [DeliverTokens("r", (8, 9), ())]


def test_the_first_ending_whose_total_is_here_counts() -> None:
    """One that speaks of tokens which are missing does not; later ones are acknowledged and forgotten."""
    client = streaming()
    client.link(tokens(0, 5, 6))
    assert client.hear(Ended("r", DONE)) == []
    assert client.link(tokens(2, 7, ending=DONE))[-1] == DeliverEnding("r", DONE)
    lost = Ending(FinishReason.FAILED, None, Usage(2, 0), (), ErrorCode.STAGE_LOST)
    assert client.hear(Ended("r", lost)) == []
    assert client.on(Consumed("r", 3, ended=True), 2.0) == [
        SendLink(1, ReturnAck((Acknowledgement("r", 3, ended=True),)))
    ]
    again = client.link(tokens(0, 5, 6, 7, ending=DONE), now=3.0)
    assert again == [SendLink(1, ReturnAck((Acknowledgement("r", 3, ended=True),)))]


def test_half_a_window_is_acknowledged_at_once() -> None:
    """Else every 50 ms at most."""
    client = streaming()
    client.link(tokens(0, *range(200)))
    client.on(Consumed("r", 1, ended=False))
    assert client.on(Consumed("r", 100, ended=False), 1.02) == []
    out = client.on(Consumed("r", 129, ended=False), 1.03)
    assert out == [SendLink(1, ReturnAck((Acknowledgement("r", 129, ended=False),)))]


def test_a_refusal_counts_until_a_pipeline_has_the_request() -> None:
    """From then on the pipeline ends it."""
    client = welcomed()
    client.on(Submit(GENERATE))
    ending = Ending(FinishReason.FAILED, 0, Usage(2, 0), (), ErrorCode.QUEUE_FULL, "full")
    refused = Refused("r", ErrorCode.QUEUE_FULL, "full")
    assert client.hear(refused) == [DeliverEnding("r", ending, refused=True)]
    assert not client.core.is_busy
    assert streaming().hear(refused) == []


def test_a_cancel_takes_the_shortest_way_and_then_every_way() -> None:
    """Before anything was sent there is no way to go: the end is here."""
    unsent = Client()
    unsent.on(Submit(GENERATE))
    (ended,) = unsent.on(CancelRequest("r", discard=False))
    assert isinstance(ended, DeliverEnding)
    assert ended.ending.finish_reason is FinishReason.CANCELLED

    queued = welcomed()
    queued.on(Submit(GENERATE))
    assert queued.on(CancelRequest("r", discard=False)) == [SendBroker(Cancel("r"))]

    client = streaming()
    on_link = SendLink(1, ReturnControl("r", ReturnAction.CANCEL))
    assert client.on(CancelRequest("r", discard=False)) == [on_link]
    assert client.on(CancelRequest("r", discard=False)) == []
    assert [one for one in client.on(Tick(), 2.1) if one != SendBroker(ClientPing())] == [
        on_link,
        SendBroker(Cancel("r")),
    ]


def test_a_discarded_request_is_acknowledged_without_a_reader() -> None:
    """So that its window never fills, and its tail forgets it."""
    client = streaming()
    client.on(CancelRequest("r", discard=True))
    cancelled = Ending(FinishReason.CANCELLED, 2, Usage(2, 2))
    out = client.link(tokens(0, 5, 6, ending=cancelled), now=2.0)
    ack = ReturnAck((Acknowledgement("r", 2, ended=True),))
    assert out == [DeliverEnding("r", cancelled), SendLink(1, ack)]
    assert not client.core.is_busy


def test_a_stop_string_asks_for_an_ending_that_says_so_and_waits_for_it() -> None:
    """Tokens after it go to nobody, and are acknowledged; the ending is told."""
    client = streaming()
    client.link(tokens(0, 5, 6, 7))
    stop = SendLink(1, ReturnControl("r", ReturnAction.CANCEL, stop_after=2))
    ack = SendLink(1, ReturnAck((Acknowledgement("r", 3, ended=False),)))
    assert client.on(StopRequest("r", 2), 1.06) == [stop, ack]
    assert client.link(tokens(3, 8)) == []
    ending = Ending(FinishReason.STOP, 5, Usage(2, 2))
    ack = SendLink(1, ReturnAck((Acknowledgement("r", 5, ended=True),)))
    assert client.link(tokens(4, 9, ending=ending), now=2.0) == [DeliverEnding("r", ending), ack]
    assert not client.core.is_busy


@pytest.mark.parametrize("is_linked", [True, False])
def test_the_ending_of_a_stop_string_is_asked_for_again_on_every_way_and_not_waited_for_without_end(
    is_linked: bool,
) -> None:
    """After five seconds the answer, which the caller has, ends here; without a path it begins at the broker."""
    client = streaming()
    client.link(tokens(0, 5, 6, 7))
    at_broker: Instruction = SendBroker(Cancel("r", stop_after=2))
    on_link: list[Instruction] = (
        [SendLink(1, ReturnControl("r", ReturnAction.CANCEL, stop_after=2))] if is_linked else []
    )
    if not is_linked:
        client.on(LinkDisconnected(1))
    out = client.on(StopRequest("r", 2), 1.01)
    assert out[:1] == (on_link or [at_broker])
    again = [one for one in client.on(Tick(), 2.1) if one == at_broker or one in on_link]
    assert again == [*on_link, at_broker]
    assert not [one for one in client.on(Tick(), 5.9) if isinstance(one, DeliverEnding)]
    ended = [one for one in client.on(Tick(), 6.2) if isinstance(one, DeliverEnding)]
    assert ended == [DeliverEnding("r", Ending(FinishReason.STOP, 3, Usage(2, 3)))]


def test_a_stop_string_in_the_last_tokens_of_an_answer_that_has_ended_asks_for_nothing() -> None:
    """Its ending is there; the tail is told that it can forget it."""
    client = streaming()
    client.link(tokens(0, 5, 6, 7, ending=DONE))
    ack = SendLink(1, ReturnAck((Acknowledgement("r", 3, ended=True),)))
    assert client.on(StopRequest("r", 2), 1.06) == [ack]
    assert not client.core.is_busy


def test_a_pause_is_said_again_when_the_tail_may_not_have_heard_it() -> None:
    """Before the request's first token it ignores one, and a new link has heard none."""
    client = streaming()
    pause = ReturnControl("r", ReturnAction.PAUSE)
    assert client.on(HoldRequest("r", paused=True)) == [SendLink(1, pause)]
    assert client.link(tokens(0, 5)) == [SendLink(1, pause), DeliverTokens("r", (5,), ())]
    client.on(LinkDisconnected(1))
    assert client.link(hello(2, generation=2), 2)[-1] == SendLink(2, pause)
    resume = ReturnControl("r", ReturnAction.RESUME)
    assert client.on(HoldRequest("r", paused=False)) == [SendLink(2, resume)]


def test_what_nobody_waits_for_is_cancelled_at_the_tail_and_the_broker() -> None:
    """After this side has given up, or of another life of this client."""
    client = streaming()
    out = client.link(tokens(0, 5, request_id="unknown"), now=2.0)
    assert out == [
        SendLink(1, ReturnControl("unknown", ReturnAction.CANCEL)),
        SendLink(1, ReturnAck((Acknowledgement("unknown", 1, ended=False),))),
    ]
    assert client.hear(Accepted("unknown", 1)) == [SendBroker(Cancel("unknown"))]


def test_too_many_requests_are_refused_here() -> None:
    """Everything is bounded."""
    client = welcomed(replace(SETTINGS, max_requests=1))
    client.on(Submit(GENERATE))
    (refused,) = client.on(Submit(replace(GENERATE, request_id="second")))
    assert isinstance(refused, DeliverEnding)
    assert (refused.refused, refused.ending.code) == (True, ErrorCode.CLIENT_LIMIT)


def test_a_tail_that_sends_beyond_all_windows_fails_its_request() -> None:
    """What waits here is bounded, whatever a peer does."""
    client = streaming()
    client.link(tokens(0, *range(4097)))
    endings = [one for one in client.on(Tick(), 2.0) if isinstance(one, DeliverEnding)]
    assert [one.ending.code for one in endings] == [ErrorCode.PROTOCOL_ERROR]


def test_numbers_that_stay_wrong_fail_the_request() -> None:
    """A tail gets eight links to find its senses."""
    client = streaming()
    generation = 1
    for link in range(2, 11):
        client.link(tokens(5, 1), generation)
        generation += 1
        client.link(hello(link, generation), generation)
    endings = [one for one in client.on(Tick(), 2.0) if isinstance(one, DeliverEnding)]
    assert [one.ending.code for one in endings] == [ErrorCode.PROTOCOL_ERROR]


def test_closing_cancels_all_and_says_goodbye() -> None:
    """Nothing happens after it."""
    client = streaming()
    out = client.on(Close())
    assert [type(one) for one in out] == [DeliverEnding, SendBroker, CloseSocket, CloseSocket]
    assert out[1] == SendBroker(ClientBye())
    assert client.on(Submit(GENERATE)) == []


# --- our own faults -------------------------------------------------------------------------------------------


def test_a_transition_that_the_table_lacks_says_what_led_to_it() -> None:
    """It is our bug, so it is loud."""
    machine = Machine("request r", RequestState.SENT, TRANSITIONS)
    machine.fire(RequestTrigger.END)
    with pytest.raises(InvalidTransition) as error:
        machine.fire(RequestTrigger.TOKENS)
    assert error.value.history == [RequestTrigger.END]
    assert decode([bytes(frame) for frame in encode(GENERATE)]) == GENERATE
