"""The tail's return link: dial, hello, send, send again; the relay when no dial succeeds."""

from __future__ import annotations

from itertools import count

import pytest

from stagewire.stage.tail.link_instructions import CloseLink, Dial, LinkEnd, SendLink, SendRelay, TellHead
from stagewire.stage.tail.return_link import DIAL_AGAIN_S, DIAL_S, ReturnLink
from stagewire.wire.epoch import Epoch
from stagewire.wire.request import Ending, FinishReason, ReturnOffer, Usage
from stagewire.wire.returns import (
    Acknowledgement,
    ReturnAck,
    ReturnAction,
    ReturnControl,
    ReturnHello,
    ReturnItem,
    ReturnNext,
    ReturnTokens,
    TailHello,
)
from stagewire.wire.ring import CancelRequest, Flow

EPOCH = Epoch(1, 1)
OFFER = ReturnOffer("tcp://127.0.0.1:1", b"offer-1", 1)
NEXT = ReturnOffer("tcp://127.0.0.1:2", b"offer-2", 2)
ENDING = Ending(FinishReason.STOP, 3, Usage(4, 3))


def new_link(dial_timeout_s: float = DIAL_S) -> ReturnLink:
    numbers = count(1)
    return ReturnLink(EPOCH, "c", lambda: b"tail-%d" % next(numbers), count(1), dial_timeout_s)


def dial(link: int, offer: ReturnOffer) -> Dial:
    return Dial("c", link, offer.endpoint, TailHello(EPOCH, "c", link, offer.nonce, b"tail-%d" % link))


def relay_hello(link: int) -> SendRelay:
    return SendRelay("c", TailHello(EPOCH, "c", link, b"", b"tail-%d" % link))


def reply(link: int, next_offer: ReturnOffer | None = None) -> ReturnHello:
    return ReturnHello(link, b"tail-%d" % link, next_offer)


def item(first: int, *token_ids: int, ending: Ending | None = None, request_id: str = "r") -> ReturnItem:
    return ReturnItem(request_id, first, token_ids, (), ending)


def ack(num_tokens: int, ended: bool = False) -> ReturnAck:
    return ReturnAck((Acknowledgement("r", num_tokens, ended),))


def established() -> ReturnLink:
    link = new_link()
    link.open("r", OFFER, 0.0)
    link.receive(1, reply(1, NEXT), 0.1)
    return link


def test_the_first_request_dials_and_nothing_is_sent_before_the_reply() -> None:
    """Tokens that come meanwhile go out with the reply, in one message."""
    link = new_link()
    assert link.open("r", OFFER, 0.0) == [dial(1, OFFER)]
    assert link.deliver([item(0, 7)], 0.1) == []
    assert link.deliver([item(1, 8)], 0.2) == []
    assert link.receive(1, reply(1, NEXT), 0.3) == [SendLink("c", 1, ReturnTokens((item(0, 7, 8),)))]
    assert link.path == "direct"


def test_an_established_link_sends_one_message_for_a_step() -> None:
    """All of a client's streams share it."""
    link = established()
    assert link.open("q", None, 0.2) == []
    items = [item(0, 7), item(0, 9, request_id="q")]
    assert link.deliver(items, 0.3) == [SendLink("c", 1, ReturnTokens(tuple(items)))]


def test_a_broken_link_is_replaced_without_the_broker() -> None:
    """The tail dials the next offer at once and sends what is unacknowledged again."""
    link = established()
    link.deliver(
        [
            item(0, 7),
        ],
        0.2,
    )
    link.deliver([item(1, 8)], 0.3)
    link.receive(1, ack(1), 0.4)
    assert link.lose(1, 0.5) == [dial(2, NEXT)]
    assert link.deliver([item(2, 9, ending=ENDING)], 0.6) == []
    assert link.receive(2, reply(2), 0.7) == [SendLink("c", 2, ReturnTokens((item(1, 8, 9, ending=ENDING),)))]


def test_a_failed_dial_goes_through_the_broker() -> None:
    """The relay greets in the same way, once a second, and learns the next offer, which is dialled."""
    link = new_link()
    link.open("r", OFFER, 0.0)
    link.deliver([item(0, 7)], 0.1)
    assert link.lose(1, 0.2) == [relay_hello(2)]
    assert link.tick(1.0) == []
    assert link.tick(1.2) == [relay_hello(2)]
    assert link.receive(None, reply(2, NEXT), 1.3) == [
        SendRelay("c", ReturnTokens((item(0, 7),))),
        dial(3, NEXT),
    ]
    assert link.path == "broker"
    assert link.receive(3, reply(3), 1.4) == [SendLink("c", 3, ReturnTokens((item(0, 7),)))]
    assert link.path == "direct"


@pytest.mark.parametrize("timeout_s", [0.25, DIAL_S, 30.0])
def test_a_silent_stranger_is_given_up_after_the_deadline(timeout_s: float) -> None:
    """A dial that looks successful but gets no reply is closed; the relay takes over. How long is a setting."""
    link = new_link(timeout_s)
    link.open("r", OFFER, 0.0)
    assert link.tick(timeout_s - 0.1) == []
    assert link.tick(timeout_s) == [CloseLink("c", 1), relay_hello(2)]


def test_a_reply_with_a_wrong_nonce_closes_the_link() -> None:
    """Whoever answers must have read the hello."""
    link = new_link()
    link.open("r", OFFER, 0.0)
    assert link.receive(1, ReturnHello(1, b"guess", None), 0.1) == [CloseLink("c", 1), relay_hello(2)]


def test_anything_else_closes_the_link() -> None:
    """A client has no business sending tokens."""
    link = established()
    assert link.receive(1, ReturnTokens(()), 0.2) == [CloseLink("c", 1), dial(2, NEXT)]
    assert link.path is None


def test_a_client_without_endpoints_is_served_through_the_broker() -> None:
    """No offer at all: the relay at once."""
    link = new_link()
    assert link.open("r", None, 0.0) == [relay_hello(1)]
    assert link.receive(None, reply(1), 0.1) == []
    assert link.deliver([item(0, 7)], 0.2) == [SendRelay("c", ReturnTokens((item(0, 7),)))]


def test_the_relay_is_greeted_again_when_nothing_comes_back() -> None:
    """Nothing tells of a loss there: five silent seconds with tokens owed, or another broker."""
    link = new_link()
    link.open("r", None, 0.0)
    link.receive(None, reply(1), 0.1)
    link.deliver([item(0, 7)], 0.2)
    assert link.tick(5.0) == []
    assert link.tick(5.2) == [relay_hello(2)]
    assert link.receive(None, reply(2), 5.3) == [SendRelay("c", ReturnTokens((item(0, 7),)))]
    assert link.reset_relay(5.4) == [relay_hello(3)]


def test_a_newer_next_offer_replaces_the_old_one() -> None:
    """A stranger had spoiled the first: the highest generation wins, an older one is ignored."""
    link = established()
    newer = ReturnOffer("tcp://127.0.0.1:3", b"offer-3", 3)
    assert link.receive(1, ReturnNext(newer), 0.2) == []
    assert link.receive(1, ReturnNext(NEXT), 0.3) == []
    assert link.lose(1, 0.4) == [dial(2, newer)]


def test_a_full_window_pauses_the_request_and_room_resumes_it() -> None:
    """At 256 unacknowledged tokens, and again under 128; the head is told once each time."""
    link = established()
    out = [i for n in range(256) for i in link.deliver([item(n, 1)], 0.2)]
    assert [i for i in out if isinstance(i, TellHead)] == [TellHead(Flow("r", True))]
    assert link.receive(1, ack(128), 0.3) == []
    assert link.receive(1, ack(129), 0.4) == [TellHead(Flow("r", False))]


def test_the_client_may_cancel_pause_and_resume() -> None:
    """Both ways of pausing share one switch; unknown requests are ignored."""
    link = established()
    assert link.receive(1, ReturnControl("r", ReturnAction.CANCEL), 0.2) == [TellHead(CancelRequest("r"))]
    assert link.receive(1, ReturnControl("r", ReturnAction.PAUSE), 0.3) == [TellHead(Flow("r", True))]
    assert link.receive(1, ReturnControl("r", ReturnAction.PAUSE), 0.4) == []
    assert link.receive(1, ReturnControl("r", ReturnAction.RESUME), 0.5) == [TellHead(Flow("r", False))]
    assert link.receive(1, ReturnControl("x", ReturnAction.CANCEL), 0.6) == []


@pytest.mark.parametrize("stop_after", [0, 3, 256])
def test_a_cancel_because_of_a_stop_string_reaches_the_head_as_such(stop_after: int) -> None:
    """With the number of tokens that are the answer."""
    control = ReturnControl("r", ReturnAction.CANCEL, stop_after)
    assert established().receive(1, control, 0.2) == [TellHead(CancelRequest("r", stop_after))]


def test_an_ending_is_kept_until_it_is_acknowledged() -> None:
    """Tokens alone are not enough; the ending must have reached the caller."""
    link = established()
    link.deliver([item(0, 1, 2, 3, ending=ENDING)], 0.2)
    link.receive(1, ack(3), 0.3)
    assert link.lose(1, 0.4) == [dial(2, NEXT)]
    assert link.receive(2, reply(2), 0.5) == [SendLink("c", 2, ReturnTokens((item(3, ending=ENDING),)))]
    link.receive(2, ack(3, ended=True), 0.6)
    link.lose(2, 0.7)
    assert link.is_idle


def test_nobody_fetches_an_ending_for_a_minute() -> None:
    """Then it is forgotten, and with it the link."""
    link = new_link()
    link.open("r", None, 0.0)
    link.deliver([item(0, ending=ENDING)], 1.0)
    link.tick(61.0)
    assert not link.is_idle
    link.tick(61.1)
    assert link.is_idle


def test_nonsense_in_an_acknowledgement_changes_nothing() -> None:
    """More than was sent, less than before, an ending that was not written."""
    link = established()
    link.deliver([item(0, 1, 2)], 0.2)
    for bad in (ack(99), ack(0), ack(1, ended=True)):
        link.receive(1, bad, 0.3)
    link.lose(1, 0.4)
    assert link.receive(2, reply(2), 0.5) == [SendLink("c", 2, ReturnTokens((item(1, 2),)))]


def test_closing_forgets_all() -> None:
    """The epoch has ended: sockets go, tokens of it are never sent again."""
    link = established()
    link.deliver([item(0, 1)], 0.2)
    assert link.close() == [CloseLink("c", 1)]
    assert link.is_idle


# --- no room to dial ---


def test_without_room_to_dial_tokens_go_through_the_broker_and_the_offer_stays_good() -> None:
    """Nobody has seen it; it is tried again after a while, and never sooner for a newer one."""
    link = new_link()
    assert link.open("r", OFFER, 0.0) == [dial(1, OFFER)]
    assert link.lose(1, 0.0, LinkEnd.NO_ROOM) == [relay_hello(2)]
    assert link.receive(None, reply(2), 0.1) == []
    assert link.deliver([item(0, 5)], 0.2) == [SendRelay("c", ReturnTokens((item(0, 5),)))]
    assert link.receive(None, ReturnNext(NEXT), 1.0) == []
    assert link.tick(DIAL_AGAIN_S - 0.1) == []
    assert link.tick(DIAL_AGAIN_S) == [dial(3, NEXT)]
    assert link.receive(3, reply(3), DIAL_AGAIN_S + 0.1) == [SendLink("c", 3, ReturnTokens((item(0, 5),)))]
    assert link.path == "direct"


def test_as_long_as_there_is_no_room_it_is_tried_again_and_again() -> None:
    """And the stream goes on, on the relay that stands."""
    link = new_link()
    link.open("r", OFFER, 0.0)
    link.lose(1, 0.0, LinkEnd.NO_ROOM)
    link.receive(None, reply(2), 0.1)
    for number in range(3, 6):
        now = (number - 2) * DIAL_AGAIN_S
        assert link.tick(now) == [dial(number, OFFER)]
        assert link.lose(number, now, LinkEnd.NO_ROOM) == []
        assert link.path == "broker"


def test_a_postponed_dial_that_is_not_the_present_one_changes_nothing() -> None:
    link = established()
    assert link.lose(2, 0.2, LinkEnd.NO_ROOM) == []
    assert link.path == "direct"
