"""The client's decisions about its broker: greetings, repetitions, restarts, and silence that nobody waits for."""

from __future__ import annotations

from dataclasses import replace

from support.client_core import GENERATE, Client, dispatched, offer, streaming, tokens, welcomed

from stagewire.client.core.events import (
    Ask,
    BindOffer,
    BrokerConnected,
    BrokerDisconnected,
    CloseSocket,
    DeliverEnding,
    LeaveBroker,
    LinkDisconnected,
    NoReply,
    Reply,
    SendBroker,
    Submit,
    Tick,
)
from stagewire.wire.cache_reports import AskCaches, Caches
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import (
    Accepted,
    BadMessage,
    BrokerPong,
    BrokerWelcome,
    ClientHello,
    ClientPing,
    Ended,
    GetStatus,
    HelloRefused,
    OfferReturn,
    WhoAreYou,
)
from stagewire.wire.request import Ending, FinishReason, Usage
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.status import Status

# --- the broker -----------------------------------------------------------------------------------------------


def test_a_hello_offers_the_endpoint_of_a_request_that_waits() -> None:
    """Nothing else is said to a broker that has not welcomed us; what is sent before there is one is lost."""
    client = Client()
    assert client.on(Submit(GENERATE)) == [BindOffer(1), SendBroker(OfferReturn(offer(1)))]
    assert client.on(BrokerConnected()) == [SendBroker(ClientHello("c", b"client", offer(1)))]
    assert client.hear(BrokerWelcome(1, ())) == [SendBroker(GENERATE)]


def test_a_client_without_requests_binds_no_endpoint() -> None:
    """The first request does, and the broker has the offer before it."""
    client = Client()
    assert client.on(BrokerConnected()) == [SendBroker(ClientHello("c", b"client", None))]
    assert client.hear(BrokerWelcome(1, ())) == []
    assert client.on(Ask(1, GetStatus(), 9.0)) == [SendBroker(GetStatus())]
    assert client.on(Submit(GENERATE)) == [BindOffer(1), SendBroker(OfferReturn(offer(1))), SendBroker(GENERATE)]


def test_hello_and_generate_and_ping_are_repeated_every_second() -> None:
    """Until they are answered."""
    client = Client()
    client.on(BrokerConnected())
    assert client.on(Tick(), 0.9) == []
    assert client.on(Tick(), 1.2) == [SendBroker(ClientHello("c", b"client", None))]
    client.hear(BrokerWelcome(1, ()))
    client.on(Submit(GENERATE))
    assert client.on(Tick(), 2.3) == [SendBroker(ClientPing()), SendBroker(GENERATE)]
    client.hear(Accepted("r", 7))
    assert client.on(Tick(), 3.5) == [SendBroker(ClientPing())]


def test_a_restarted_broker_gets_what_has_not_started_with_its_seed() -> None:
    """However the restart shows; what streams is left alone."""
    client = streaming()
    client.link(tokens(0, 5))
    waiting = replace(GENERATE, request_id="w")
    client.on(Submit(waiting))
    client.hear(Accepted("w", 8))
    said_hello = SendBroker(ClientHello("c", b"client", None))
    assert client.hear(BrokerPong(2)) == [said_hello]
    assert client.hear(WhoAreYou()) == []
    seeded = replace(waiting, sampling=SamplingParams(seed=8))
    assert client.hear(BrokerWelcome(2, ())) == [SendBroker(seeded)]
    assert client.on(Tick(), 2.5) == [SendBroker(ClientPing()), SendBroker(seeded)]
    client.hear(Accepted("w", 8))
    assert client.on(Tick(), 3.6) == [SendBroker(ClientPing())]


def test_the_same_broker_on_a_new_connection_is_asked_for_all_answers_again() -> None:
    """An ending may have been lost with the old one; it knows the request and runs nothing twice."""
    client = streaming()
    client.link(tokens(0, 5))
    client.on(BrokerDisconnected())
    client.on(BrokerConnected())
    seeded = replace(GENERATE, sampling=SamplingParams(seed=7))
    assert client.hear(BrokerWelcome(1, ())) == [SendBroker(seeded)]
    lost = Ending(FinishReason.FAILED, None, Usage(2, 0), (), ErrorCode.STAGE_LOST)
    assert client.hear(Ended("r", lost)) == [DeliverEnding("r", lost)]


def test_a_refused_hello_ends_everything_for_good() -> None:
    """Requests, questions, sockets; and whatever is asked later."""
    client = welcomed()
    client.on(Submit(GENERATE))
    client.on(Ask(1, GetStatus(), 9.0))
    code, why = ErrorCode.IDENTITY_IN_USE, "taken"
    ending = Ending(FinishReason.FAILED, 0, Usage(2, 0), (), code, why)
    assert client.hear(HelloRefused(code, why)) == [
        DeliverEnding("r", ending, refused=True),
        NoReply(1, code, why),
        CloseSocket(1),
        LeaveBroker(),
    ]
    assert client.on(Submit(GENERATE)) == [DeliverEnding("r", ending, refused=True)]
    assert client.on(Ask(2, None, 9.0)) == [NoReply(2, code, why)]
    assert client.on(BrokerConnected()) == []


def test_a_broker_that_cannot_read_the_hello_refuses_us() -> None:
    """Later bad messages are only counted: a timer sends again, or a silence ends it."""
    client = welcomed()
    client.on(Submit(GENERATE))
    assert client.hear(BadMessage(ErrorCode.PROTOCOL_ERROR, "what?")) == []
    assert client.core.num_violations == 1
    fresh = Client()
    fresh.on(BrokerConnected())
    assert fresh.hear(BadMessage(ErrorCode.PROTOCOL_ERROR, "what?")) == [LeaveBroker()]


def test_questions_are_answered_once_or_time_out() -> None:
    """One reply answers all who asked; they are asked again every second."""
    client = welcomed()
    assert client.on(Ask(1, GetStatus(), 3.0)) == [SendBroker(GetStatus())]
    client.on(Ask(2, GetStatus(), 3.0))
    assert SendBroker(GetStatus()) in client.on(Tick(), 1.1)
    status = Status(1, 0.0, (), (), (), 1, 0, 0, 0, "", 300.0)
    assert client.hear(status) == [Reply(1, status), Reply(2, status)]
    client.on(Ask(3, GetStatus(), 3.0))
    (error,) = [one for one in client.on(Tick(), 4.2) if isinstance(one, NoReply)]
    assert (error.ticket, error.code) == (3, ErrorCode.UNREACHABLE)


def test_an_answer_about_caches_is_for_who_asked_for_it() -> None:
    """A report is no confirmation that anything was cleared."""
    client = welcomed()
    client.on(Ask(1, AskCaches(clear=False), 3.0))
    client.on(Ask(2, AskCaches(clear=True), 3.0))
    for ticket, clear in ((1, False), (2, True)):
        caches = Caches(clear, (), ())
        assert client.hear(caches) == [Reply(ticket, caches)]


# --- silence --------------------------------------------------------------------------------------------------


def code_at(client: Client, now: float) -> list[ErrorCode | None]:
    return [one.ending.code for one in client.on(Tick(), now) if isinstance(one, DeliverEnding)]


def test_a_broker_that_was_never_there_refuses_after_the_connect_timeout() -> None:
    """Nothing was sent, so nothing has run."""
    client = Client()
    client.on(Submit(GENERATE))
    assert code_at(client, 4.9) == []
    (refused,) = [one for one in client.on(Tick(), 5.2) if isinstance(one, DeliverEnding)]
    assert (refused.refused, refused.ending.code) == (True, ErrorCode.UNREACHABLE)


def test_a_request_outlives_its_brokers_silence_by_the_timeout_only() -> None:
    """Queued or dispatched: its ending can only come from there."""
    client = dispatched()
    client.on(BrokerDisconnected(), 10.0)
    assert code_at(client, 29.9) == []
    assert code_at(client, 30.3) == [ErrorCode.UNREACHABLE]


def test_an_unanswered_request_ends_though_the_broker_lives() -> None:
    """It answers pings and never the request."""
    client = welcomed()
    client.on(Submit(GENERATE))
    for second in range(1, 31):
        client.hear(BrokerPong(1), float(second))
        assert code_at(client, second + 0.5) == ([] if second < 30 else [ErrorCode.UNREACHABLE])


def test_a_stream_needs_no_broker_and_dies_with_its_link() -> None:
    """A tail that lives comes back on another link; one that does not for 30 s is gone."""
    client = streaming()
    client.link(tokens(0, 5))
    client.on(BrokerDisconnected())
    assert code_at(client, 1000.0) == []
    client.on(LinkDisconnected(1))
    assert code_at(client, 1029.9) == []
    assert code_at(client, 1030.3) == [ErrorCode.UNREACHABLE]
