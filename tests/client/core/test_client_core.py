"""The client's decisions, event by event: whole instruction lists, and times that nobody waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stagewire.client.core.client_core import ClientCore
from stagewire.client.core.events import (
    Answer,
    AnswerError,
    Ask,
    BindOffer,
    BrokerConnected,
    BrokerDisconnected,
    BrokerMessage,
    CancelRequest,
    Close,
    CloseSocket,
    Consumed,
    DeliverEnding,
    DeliverMilestone,
    DeliverTokens,
    Event,
    HoldRequest,
    Instruction,
    LinkConnected,
    LinkDisconnected,
    LinkMessage,
    Milestone,
    Note,
    OfferBound,
    OfferFailed,
    SendBroker,
    SendLink,
    Submit,
    Tick,
)
from stagewire.client.core.requests import TRANSITIONS, RequestState, RequestTrigger
from stagewire.client.core.return_pipeline import RELAY
from stagewire.client.settings import ClientSettings
from stagewire.wire.caches import AskCaches, Caches
from stagewire.wire.codec import Message, decode, encode
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode, InvalidTransition
from stagewire.wire.frontend import (
    Accepted,
    BadMessage,
    BrokerPong,
    BrokerWelcome,
    Cancel,
    ClientBye,
    ClientHello,
    ClientPing,
    Dispatched,
    Ended,
    Generate,
    GetStatus,
    HelloRefused,
    OfferReturn,
    Refused,
    RelayToClient,
    RelayToTail,
    WhoAreYou,
)
from stagewire.wire.machine import Machine
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
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.status import Status
from stagewire.wire.tensor import Blob, TokenIds

EPOCH = Epoch(1, 1)
SETTINGS = ClientSettings(client_id="c", connect_timeout_s=5.0, silence_timeout_s=30.0)
GENERATE = Generate("r", "s", None, SamplingParams(), 9, (), False, TokenIds.of([1, 2]))
DONE = Ending(FinishReason.LENGTH, 3, Usage(2, 3))


def offer(generation: int) -> ReturnOffer:
    return ReturnOffer(f"tcp://127.0.0.1:{generation}", b"nonce-%d" % generation, generation)


class Client:
    """A core, its time, and endpoints that bind at once; log lines are left out of what it says."""

    def __init__(self, settings: ClientSettings = SETTINGS) -> None:
        self.core = ClientCore(settings, b"client")
        self.now = 0.0
        self.said = self.bind(self.core.start())

    def on(self, event: Event, now: float | None = None) -> list[Instruction]:
        self.now = self.now if now is None else now
        out = self.bind(self.core.handle(event, self.now))
        self.core.check_invariants()
        return out

    def bind(self, instructions: list[Instruction]) -> list[Instruction]:
        out: list[Instruction] = []
        for one in instructions:
            out += [] if isinstance(one, Note) else [one]
            if isinstance(one, BindOffer):
                out += self.on(OfferBound(offer(one.generation)))
        return out

    def hear(self, message: Message, now: float | None = None) -> list[Instruction]:
        """From the broker."""
        return self.on(BrokerMessage(message), now)

    def relay(self, message: Message) -> list[Instruction]:
        return self.hear(RelayToClient("c", EPOCH, tuple(Blob(frame) for frame in encode(message))))

    def link(self, message: Message, generation: int = 1, now: float | None = None) -> list[Instruction]:
        return self.on(LinkMessage(generation, message), now)


def welcomed(settings: ClientSettings = SETTINGS) -> Client:
    client = Client(settings)
    client.on(BrokerConnected())
    client.hear(BrokerWelcome(1, ()))
    return client


def dispatched(client: Client | None = None) -> Client:
    client = client or welcomed()
    client.on(Submit(GENERATE))
    client.hear(Accepted("r", 7))
    client.hear(Dispatched("r", EPOCH, 1))
    return client


def streaming() -> Client:
    """Linked over generation 1; the broker has offer 2, the tail knows of 3; acknowledgements may go."""
    client = dispatched()
    client.link(hello(1))
    client.on(Tick(), 1.0)
    return client


def hello(link: int, generation: int = 1) -> TailHello:
    return TailHello(EPOCH, "c", link, b"nonce-%d" % generation if generation else b"", b"tail-%d" % link)


def tokens(first: int, *token_ids: int, ending: Ending | None = None, request_id: str = "r") -> ReturnTokens:
    return ReturnTokens((ReturnItem(request_id, first, token_ids, (), ending),))


def to_tail(message: Message) -> SendBroker:
    return SendBroker(RelayToTail("c", EPOCH, tuple(Blob(bytes(frame)) for frame in encode(message))))


# --- the broker -----------------------------------------------------------------------------------------------


def test_the_first_thing_is_an_endpoint_and_then_a_hello_that_offers_it() -> None:
    """Nothing but the hello is said to a broker that has not welcomed us."""
    client = Client()
    assert client.said == [BindOffer(1), SendBroker(OfferReturn(offer(1)))]
    assert client.on(Submit(GENERATE)) == []
    assert client.on(BrokerConnected()) == [SendBroker(ClientHello("c", b"client", offer(1)))]
    assert client.hear(BrokerWelcome(1, ())) == [SendBroker(GENERATE)]


def test_hello_and_generate_and_ping_are_repeated_every_second() -> None:
    """Until they are answered."""
    client = Client()
    client.on(BrokerConnected())
    assert client.on(Tick(), 0.9) == []
    assert client.on(Tick(), 1.2) == [SendBroker(ClientHello("c", b"client", offer(1)))]
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
    said_hello = SendBroker(ClientHello("c", b"client", offer(2)))
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
        AnswerError(1, code, why),
        CloseSocket(1),
    ]
    assert client.on(Submit(GENERATE)) == [DeliverEnding("r", ending, refused=True)]
    assert client.on(Ask(2, None, 9.0)) == [AnswerError(2, code, why)]
    assert client.on(BrokerConnected()) == []


def test_a_broker_that_cannot_read_the_hello_refuses_us() -> None:
    """Later bad messages are only counted: a timer sends again, or a silence ends it."""
    client = welcomed()
    client.on(Submit(GENERATE))
    assert client.hear(BadMessage(ErrorCode.PROTOCOL_ERROR, "what?")) == []
    assert client.core.num_violations == 1
    fresh = Client()
    fresh.on(BrokerConnected())
    assert fresh.hear(BadMessage(ErrorCode.PROTOCOL_ERROR, "what?")) == [CloseSocket(1)]


def test_questions_are_answered_once_or_time_out() -> None:
    """One reply answers all who asked; they are asked again every second."""
    client = welcomed()
    assert client.on(Ask(1, GetStatus(), 3.0)) == [SendBroker(GetStatus())]
    client.on(Ask(2, GetStatus(), 3.0))
    assert SendBroker(GetStatus()) in client.on(Tick(), 1.1)
    status = Status(1, 0.0, (), (), (), 1, 0, 0, 0, "")
    assert client.hear(status) == [Answer(1, status), Answer(2, status)]
    client.on(Ask(3, GetStatus(), 3.0))
    (error,) = [one for one in client.on(Tick(), 4.2) if isinstance(one, AnswerError)]
    assert (error.ticket, error.code) == (3, ErrorCode.UNREACHABLE)


def test_an_answer_about_caches_is_for_who_asked_for_it() -> None:
    """A report is no confirmation that anything was cleared."""
    client = welcomed()
    client.on(Ask(1, AskCaches(clear=False), 3.0))
    client.on(Ask(2, AskCaches(clear=True), 3.0))
    for ticket, clear in ((1, False), (2, True)):
        caches = Caches(clear, (), ())
        assert client.hear(caches) == [Answer(ticket, caches)]


# --- a request's life -----------------------------------------------------------------------------------------


def test_a_request_from_submission_to_its_acknowledged_ending() -> None:
    """Accepted, dispatched, linked, streamed; acknowledged as far as the caller took it."""
    client = welcomed()
    assert client.on(Submit(GENERATE)) == [SendBroker(GENERATE)]
    assert client.hear(Accepted("r", 7)) == [DeliverMilestone("r", Milestone.ACCEPTED)]
    assert client.hear(Dispatched("r", EPOCH, 1)) == [
        BindOffer(2),
        SendBroker(OfferReturn(offer(2))),
        DeliverMilestone("r", Milestone.DISPATCHED),
    ]
    client.on(LinkConnected(1))
    assert client.link(hello(1)) == [BindOffer(3), SendLink(1, ReturnHello(1, b"tail-1", offer(3)))]
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
    assert client.link(hello(2, generation=3), 3)[-1] == SendLink(3, ReturnHello(2, b"tail-2", offer(4)))
    assert client.link(tokens(0, 5, 6, 7, 8, 9), 3) == [DeliverTokens("r", (8, 9), ())]


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


def test_a_pause_is_said_again_when_the_tail_may_not_have_heard_it() -> None:
    """Before the request's first token it ignores one, and a new link has heard none."""
    client = streaming()
    pause = ReturnControl("r", ReturnAction.PAUSE)
    assert client.on(HoldRequest("r", paused=True)) == [SendLink(1, pause)]
    assert client.link(tokens(0, 5)) == [SendLink(1, pause), DeliverTokens("r", (5,), ())]
    client.on(LinkDisconnected(1))
    assert client.link(hello(2, generation=3), 3)[-1] == SendLink(3, pause)
    resume = ReturnControl("r", ReturnAction.RESUME)
    assert client.on(HoldRequest("r", paused=False)) == [SendLink(3, resume)]


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
        generation = 3 if link == 2 else generation + 1
        client.link(hello(link, generation), generation)
    endings = [one for one in client.on(Tick(), 2.0) if isinstance(one, DeliverEnding)]
    assert [one.ending.code for one in endings] == [ErrorCode.PROTOCOL_ERROR]


def test_closing_cancels_all_and_says_goodbye() -> None:
    """Nothing happens after it."""
    client = streaming()
    out = client.on(Close())
    assert [type(one) for one in out] == [DeliverEnding, SendBroker, CloseSocket, CloseSocket, CloseSocket]
    assert out[1] == SendBroker(ClientBye())
    assert client.on(Submit(GENERATE)) == []


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


# --- return links ---------------------------------------------------------------------------------------------


def test_a_stranger_has_two_seconds() -> None:
    """Then its endpoint is replaced, with the broker or with the tail that it was for."""
    client = streaming()
    client.on(LinkConnected(2), 1.0)
    client.on(LinkConnected(3), 1.0)
    client.hear(BrokerPong(1), 2.9)
    assert CloseSocket(2) not in client.on(Tick(), 2.9)
    assert client.on(Tick(), 3.2) == [
        CloseSocket(2),
        BindOffer(4),
        SendBroker(OfferReturn(offer(4))),
        CloseSocket(3),
        BindOffer(5),
        SendLink(1, ReturnNext(offer(5))),
    ]


@pytest.mark.parametrize(
    "message",
    [
        TailHello(EPOCH, "c", 1, b"guessed", b"tail"),
        TailHello(EPOCH, "other", 1, b"nonce-2", b"tail"),
        ReturnAck(()),
        tokens(0, 5),
    ],
)
def test_anything_but_a_good_hello_ends_the_socket(message: Message) -> None:
    """A fresh one is offered instead."""
    client = streaming()
    assert client.link(message, 2) == [CloseSocket(2), BindOffer(4), SendBroker(OfferReturn(offer(4)))]


def test_an_offer_of_one_pipeline_is_none_of_anothers() -> None:
    """Even with the right nonce."""
    client = streaming()
    wrong = TailHello(Epoch(1, 2), "c", 1, b"nonce-3", b"tail")
    assert client.link(wrong, 3) == [CloseSocket(3), BindOffer(4), SendLink(1, ReturnNext(offer(4)))]


def test_of_two_links_the_higher_wins_whichever_comes_first() -> None:
    """The lower one's socket is closed."""
    client = streaming()
    assert client.link(hello(5, generation=3), 3) == [
        CloseSocket(1),
        BindOffer(4),
        SendLink(3, ReturnHello(5, b"tail-5", offer(4))),
    ]
    assert client.link(hello(4, generation=4), 4) == [
        CloseSocket(4),
        BindOffer(5),
        SendLink(3, ReturnNext(offer(5))),
    ]


def test_a_hello_may_come_before_the_broker_says_where_the_request_went() -> None:
    """The offer is spent all the same, and is not spent twice."""
    client = welcomed()
    client.on(Submit(GENERATE))
    assert client.link(hello(1)) == [
        BindOffer(2),
        SendBroker(OfferReturn(offer(2))),
        BindOffer(3),
        SendLink(1, ReturnHello(1, b"tail-1", offer(3))),
    ]
    assert client.link(tokens(0, 5)) == [DeliverTokens("r", (5,), ())]
    assert client.hear(Dispatched("r", EPOCH, 1)) == []


def test_a_tail_on_the_relay_is_given_a_fresh_endpoint() -> None:
    """Answered the same way, again if the reply was lost; over a direct link that is lower it wins."""
    client = streaming()
    client.on(LinkDisconnected(1))
    reply = to_tail(ReturnHello(2, b"tail-2", offer(4)))
    assert client.relay(hello(2, generation=0)) == [CloseSocket(3), BindOffer(4), reply]
    assert client.relay(hello(2, generation=0)) == [reply]
    assert client.relay(hello(1, generation=0)) == []
    assert client.relay(tokens(0, 5)) == [DeliverTokens("r", (5,), ())]
    assert client.link(hello(3, generation=4), 4)[-1] == SendLink(4, ReturnHello(3, b"tail-3", offer(5)))
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
    assert client.core.start() == [BindOffer(1)]
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
    assert CloseSocket(3) not in client.on(Tick(), 61.0)
    client.hear(BrokerPong(1), 63.0)
    assert CloseSocket(3) in client.on(Tick(), 63.0)


# --- our own faults -------------------------------------------------------------------------------------------


def test_a_transition_that_the_table_lacks_says_what_led_to_it() -> None:
    """It is our bug, so it is loud."""
    machine = Machine("request r", RequestState.SENT, TRANSITIONS)
    machine.fire(RequestTrigger.END)
    with pytest.raises(InvalidTransition) as error:
        machine.fire(RequestTrigger.TOKENS)
    assert error.value.history == [RequestTrigger.END]
    assert decode([bytes(frame) for frame in encode(GENERATE)]) == GENERATE
