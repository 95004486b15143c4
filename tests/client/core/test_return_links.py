"""The client's decisions about return links: who may greet on one, and which of two counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.client_core import (
    DONE,
    EPOCH,
    GENERATE,
    SETTINGS,
    Client,
    hello,
    offer,
    offering,
    streaming,
    to_tail,
    tokens,
    welcomed,
)

from stagewire.client.core.client_core import ClientCore
from stagewire.client.core.events import (
    BindOffer,
    BrokerConnected,
    BrokerDisconnected,
    CloseSocket,
    Consumed,
    DeliverEnding,
    DeliverTokens,
    LinkConnected,
    LinkDisconnected,
    OfferFailed,
    SendBroker,
    SendLink,
    Submit,
    Tick,
)
from stagewire.client.core.return_ends import RELAY
from stagewire.wire.codec import Message, encode_frame
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import BrokerPong, BrokerWelcome, ClientHello, Dispatched, OfferReturn, RelayToClient
from stagewire.wire.returns import ReturnAck, ReturnHello, ReturnNext, TailHello
from stagewire.wire.tensor import Blob

# --- return links ---------------------------------------------------------------------------------------------


def test_a_stranger_has_two_seconds() -> None:
    """Then its endpoint is replaced, with the broker or with the tail that it was for."""
    client = offering()
    client.on(LinkConnected(1), 1.0)
    client.on(LinkConnected(3), 1.0)
    client.hear(BrokerPong(1), 2.9)
    assert CloseSocket(1) not in client.on(Tick(), 2.9)
    assert client.on(Tick(), 3.2) == [
        CloseSocket(1),
        BindOffer(4),
        SendBroker(OfferReturn(offer(4))),
        CloseSocket(3),
        BindOffer(5),
        SendLink(2, ReturnNext(offer(5))),
    ]


@pytest.mark.parametrize(
    "message",
    [
        TailHello(EPOCH, "c", 1, b"guessed", b"tail"),
        TailHello(EPOCH, "other", 1, b"nonce-1", b"tail"),
        ReturnAck(()),
        tokens(0, 5),
    ],
)
def test_anything_but_a_good_hello_ends_the_socket(message: Message) -> None:
    """A fresh one is offered instead."""
    client = offering()
    assert client.link(message, 1) == [CloseSocket(1), BindOffer(4), SendBroker(OfferReturn(offer(4)))]


def test_an_offer_of_one_pipeline_is_none_of_anothers() -> None:
    """Even with the right nonce."""
    client = streaming()
    wrong = TailHello(Epoch(1, 2), "c", 1, b"nonce-2", b"tail")
    assert client.link(wrong, 2) == [CloseSocket(2), BindOffer(3), SendLink(1, ReturnNext(offer(3)))]


def test_of_two_links_the_higher_wins_whichever_comes_first() -> None:
    """The lower one's socket is closed."""
    client = streaming()
    assert client.link(hello(5, generation=2), 2) == [
        CloseSocket(1),
        BindOffer(3),
        SendLink(2, ReturnHello(5, b"tail-5", offer(3))),
    ]
    assert client.link(hello(4, generation=3), 3) == [
        CloseSocket(3),
        BindOffer(4),
        SendLink(2, ReturnNext(offer(4))),
    ]


def test_a_hello_may_come_before_the_broker_says_where_the_request_went() -> None:
    """The offer is spent all the same, and is not spent twice."""
    client = welcomed()
    client.on(Submit(GENERATE))
    assert client.link(hello(1)) == [BindOffer(2), SendLink(1, ReturnHello(1, b"tail-1", offer(2)))]
    assert client.link(tokens(0, 5)) == [DeliverTokens("r", (5,), ())]
    assert client.hear(Dispatched("r", EPOCH, 1)) == []


def test_an_endpoint_is_bound_for_a_request_that_may_need_one() -> None:
    """Not for the next one of many at once, nor while a link stands; again when that is gone."""
    client = welcomed()
    many = [replace(GENERATE, request_id=f"r{number}") for number in range(4)]
    assert client.on(Submit(many[0]))[:1] == [BindOffer(1)]
    assert client.on(Submit(many[1])) == [SendBroker(many[1])]
    client.hear(Dispatched("r0", EPOCH, 1))
    client.link(hello(1))
    assert client.on(Submit(many[2])) == [SendBroker(many[2])]
    client.on(LinkDisconnected(1))
    assert client.on(Submit(many[3])) == [BindOffer(3), SendBroker(OfferReturn(offer(3))), SendBroker(many[3])]


def test_another_pipelines_tail_asks_through_the_broker_for_an_endpoint() -> None:
    """While a link to the first stands the broker has no offer to give; the way to the second is soon direct, too."""
    client = streaming()
    second, request = Epoch(1, 2), replace(GENERATE, request_id="other")
    client.on(Submit(request))
    client.hear(Dispatched("other", second, None))
    greeting = TailHello(second, "c", 1, b"", b"tail-1")
    out = client.hear(RelayToClient("c", second, Blob(encode_frame(greeting))))
    assert out[0] == BindOffer(3)
    direct = TailHello(second, "c", 2, b"nonce-3", b"tail-2")
    assert client.link(direct, 3)[-1] == SendLink(3, ReturnHello(2, b"tail-2", offer(4)))
    assert client.core._links.path(second) == 3 and client.core._links.path(EPOCH) == 1


def test_a_tail_on_the_relay_is_given_a_fresh_endpoint() -> None:
    """Answered the same way, again if the reply was lost; over a direct link that is lower it wins."""
    client = streaming()
    client.on(LinkDisconnected(1))
    reply = to_tail(ReturnHello(2, b"tail-2", offer(3)))
    assert client.relay(hello(2, generation=0)) == [CloseSocket(2), BindOffer(3), reply]
    assert client.relay(hello(2, generation=0)) == [reply]
    assert client.relay(hello(1, generation=0)) == []
    assert client.relay(tokens(0, 5)) == [DeliverTokens("r", (5,), ())]
    assert client.link(hello(3, generation=3), 3)[-1] == SendLink(3, ReturnHello(3, b"tail-3", offer(4)))
    assert client.relay(tokens(1, 6)) == [], "of the path that was given up"


def test_after_a_gap_the_relay_is_met_with_silence_until_its_tail_greets_anew() -> None:
    """Nothing is acknowledged on it, which makes the tail greet and send again."""
    client = streaming()
    client.on(LinkDisconnected(1))
    client.relay(hello(2, generation=0))
    client.relay(tokens(0, 5))
    assert client.relay(tokens(2, 7)) == []
    client.now = 5.0
    assert client.on(Consumed("r", 1, ended=False)) == []
    assert client.relay(tokens(1, 6)) == []
    client.relay(hello(3, generation=0))
    assert client.relay(tokens(0, 5, 6, 7)) == [DeliverTokens("r", (6, 7), ())]


def test_a_new_connection_to_the_broker_gives_up_the_relay() -> None:
    """What was on it may be lost; a direct link is untouched."""
    client = streaming()
    client.on(LinkDisconnected(1))
    client.relay(hello(2, generation=0))
    assert client.core._links.path(EPOCH) == RELAY
    client.on(BrokerDisconnected())
    client.on(BrokerConnected())
    client.hear(BrokerWelcome(1, ()))
    assert client.core._links.path(EPOCH) is None


def test_a_relay_that_was_given_up_before_its_broker_went_is_missed_all_the_same() -> None:
    """The new broker answers pings, and knows nothing of the request; its tail may be gone with the old one."""
    client = streaming()
    client.on(LinkDisconnected(1))
    client.relay(hello(2, generation=0))
    for incarnation in (1, 2):
        client.on(BrokerDisconnected())
        client.on(BrokerConnected())
        client.hear(BrokerWelcome(incarnation, ()))
    end = client.now + SETTINGS.silence_timeout_s
    client.hear(BrokerPong(2), end)
    assert not [one for one in client.on(Tick(), end) if isinstance(one, DeliverEnding)]
    client.hear(BrokerPong(2), end + 1)
    endings = [one.ending.code for one in client.on(Tick(), end + 1) if isinstance(one, DeliverEnding)]
    assert endings == [ErrorCode.UNREACHABLE]


def test_a_bind_that_fails_leaves_the_relay_and_is_tried_again() -> None:
    """The hello offers nothing; a reply names nothing."""
    client = Client.__new__(Client)
    client.core, client.now = ClientCore(SETTINGS, b"client"), 0.0
    assert client.core.handle(Submit(GENERATE), 0.0) == [BindOffer(1)]
    client.on(OfferFailed(1, "no port"))
    assert client.on(BrokerConnected()) == [SendBroker(ClientHello("c", b"client", None))]
    client.hear(BrokerWelcome(1, ()))
    assert BindOffer(2) in client.on(Tick(), 1.1)


def test_a_client_that_wants_the_broker_binds_nothing() -> None:
    """And names no endpoint to a tail."""
    client = welcomed(replace(SETTINGS, return_path="broker"))
    client.on(Submit(GENERATE))
    client.hear(Dispatched("r", EPOCH, None))
    assert client.relay(hello(1, generation=0)) == [to_tail(ReturnHello(1, b"tail-1", None))]


def test_a_pipeline_that_is_gone_is_forgotten_with_its_endpoints() -> None:
    """A minute after its last request, if no link stands."""
    client = streaming()
    client.link(tokens(0, 1, 2, 3, ending=DONE))
    client.on(Consumed("r", 3, ended=True), 2.0)
    client.on(LinkDisconnected(1))
    client.hear(BrokerPong(1), 61.0)
    assert CloseSocket(2) not in client.on(Tick(), 61.0)
    client.hear(BrokerPong(1), 63.0)
    assert CloseSocket(2) in client.on(Tick(), 63.0)
