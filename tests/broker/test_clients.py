"""Clients at the broker: identity, reconnecting, leaving, offers, the relay and model cards."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from support.broker_world import FIRST, LAST, CheckedCore, client_peer, failed, offer, stage_peer

from stagewire.broker.events import (
    DropPayload,
    ForgetPeer,
    Instruction,
    Overflowed,
    PushCancel,
    PushStart,
    Send,
    Unreachable,
)
from stagewire.broker.settings import BrokerSettings
from stagewire.wire.codec import Message
from stagewire.wire.control import GenerateAck, Register, StageBye
from stagewire.wire.counted import counted
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import (
    Accepted,
    BadMessage,
    BrokerPong,
    BrokerWelcome,
    Card,
    ClientBye,
    ClientHello,
    ClientPing,
    Dispatched,
    Ended,
    GetCard,
    HelloRefused,
    ModelInfo,
    OfferReturn,
    RelayToClient,
    RelayToTail,
    WhoAreYou,
)
from stagewire.wire.request import Ending, FinishReason, Usage
from stagewire.wire.tensor import Blob

EPOCH = Epoch(7, 1)
CARD = b"the card"
DIGEST = hashlib.sha256(CARD).hexdigest()


def to_client(name: str, *messages: Message) -> list[Instruction]:
    return [Send(client_peer(name), message) for message in messages]


def to_stage(name: str, *messages: Message) -> list[Instruction]:
    return [Send(stage_peer(name), message) for message in messages]


@pytest.fixture
def broker() -> CheckedCore:
    """Two stages serve EPOCH; client c holds offer 1 and runs request r1, which is acknowledged."""
    broker = CheckedCore()
    broker.settle()
    assert broker.serve(FIRST, LAST) == EPOCH
    broker.hello("c", generation=1)
    broker.ask("c", "r1")
    broker.acknowledge("r1", EPOCH)
    return broker


# --- identity ---


def test_a_hello_is_answered_with_what_is_served_and_a_ping_with_a_pong() -> None:
    broker = CheckedCore()
    broker.register(replace(FIRST, card_digest=DIGEST), LAST)
    model = ModelInfo("tiny", "d1", DIGEST, 100, 1000)
    assert broker.hello("c") == to_client("c", BrokerWelcome(7, (model,)))
    assert broker.from_client("c", ClientPing()) == to_client("c", BrokerPong(7))


def test_a_second_client_of_the_same_name_is_refused_until_the_first_is_gone(broker: CheckedCore) -> None:
    second = ClientHello("c", b"other", None)
    detail = "another client named 'c' was heard within 10 s"
    refused = to_client("second", HelloRefused(ErrorCode.IDENTITY_IN_USE, detail))
    assert broker.from_client("second", second) == refused
    broker.pass_time(9.0, alive=(FIRST, LAST))
    assert broker.from_client("second", second) == refused
    broker.pass_time(1.5, alive=(FIRST, LAST))
    welcome = broker.from_client("second", second)[0]
    assert isinstance(welcome, Send)
    assert isinstance(welcome.message, BrokerWelcome)


def test_names_have_limits_and_a_connection_is_one_client(broker: CheckedCore) -> None:
    for name, peer in (("", "x"), ("n" * 257, "y"), ("d", "c")):
        (answer,) = broker.from_client(peer, ClientHello(name, b"n", None))
        assert isinstance(answer, Send)
        assert isinstance(answer.message, HelloRefused)


def test_clients_beyond_the_limit_are_refused() -> None:
    broker = CheckedCore(BrokerSettings(max_clients=1))
    broker.hello("c")
    detail = "the broker has 1 client already"
    assert broker.hello("d") == to_client("d", HelloRefused(ErrorCode.CLIENT_LIMIT, detail))


@pytest.mark.parametrize(("max_connections", "num_stages", "num_clients"), [(3, 0, 3), (9, 2, 1), (11, 1, 7)])
def test_clients_beyond_the_open_files_are_refused_until_one_leaves(
    max_connections: int, num_stages: int, num_clients: int
) -> None:
    """Stages count four each and are not refused; a client that is known already is none too many."""
    broker = CheckedCore(max_connections=max_connections)
    for number in range(num_stages):
        broker.from_stage(f"s{number}", Register(replace(FIRST, stage_id=f"s{number}"), None))
    for number in range(num_clients):
        (answer,) = broker.hello(f"c{number}")
        assert isinstance(answer, Send) and isinstance(answer.message, BrokerWelcome)
    taken = f"the broker has {counted(num_clients, 'client')}, and no open files left for more"
    detail = f"{taken}: ask again later, or raise its limit (ulimit -n)"
    assert broker.hello("d") == to_client("d", HelloRefused(ErrorCode.CLIENT_LIMIT, detail))
    (again,) = broker.hello("c0")
    assert isinstance(again, Send) and isinstance(again.message, BrokerWelcome)
    broker.from_client("c0", ClientBye())
    (answer,) = broker.hello("d")
    assert isinstance(answer, Send) and isinstance(answer.message, BrokerWelcome)


# --- reconnecting and leaving ---


def test_a_client_that_reconnects_asks_again_for_what_the_broken_connection_may_have_lost(
    broker: CheckedCore,
) -> None:
    broker.ask("c", "r2")
    broker.handle(Unreachable(client_peer("c")))
    refused = broker.from_stage("s0", GenerateAck("r2", EPOCH, ErrorCode.INTERNAL, "no"))
    assert refused == [DropPayload("r2")], "nobody is there to hear of it"
    assert broker.from_client("c2", ClientPing()) == to_client("c2", WhoAreYou())
    broker.from_client("c2", ClientHello("c", b"n", offer(2)))
    told = to_client("c2", Accepted("r1", 42), Dispatched("r1", EPOCH, 1))
    assert broker.ask("c", "r1", peer=client_peer("c2")) == told
    told = to_client("c2", Accepted("r2", 42), Ended("r2", failed("internal", "no")))
    assert broker.ask("c", "r2", peer=client_peer("c2")) == told


def test_a_reconnected_client_takes_over_from_its_old_connection(broker: CheckedCore) -> None:
    told = broker.from_client("c2", ClientHello("c", b"n", None))
    assert told[0] == ForgetPeer(client_peer("c"))
    assert broker.from_client("c", ClientPing()) == to_client("c", WhoAreYou())
    assert broker.from_client("c2", ClientPing()) == to_client("c2", BrokerPong(7))


def test_a_client_that_leaves_or_falls_silent_or_does_not_read_has_its_requests_cancelled(
    broker: CheckedCore,
) -> None:
    gone = [ForgetPeer(client_peer("c")), PushCancel(EPOCH, "r1")]
    assert broker.from_client("c", ClientBye()) == gone
    broker.hello("d")
    broker.ask("d", "r2")
    broker.acknowledge("r2", EPOCH)
    silent = broker.pass_time(10.2, alive=(FIRST, LAST))
    assert silent == [ForgetPeer(client_peer("d")), PushCancel(EPOCH, "r2")]
    broker.hello("e")
    broker.ask("e", "r3")
    broker.acknowledge("r3", EPOCH)
    overflowed = broker.handle(Overflowed(client_peer("e")))
    assert overflowed == [ForgetPeer(client_peer("e")), PushCancel(EPOCH, "r3")]


def test_a_waiting_request_of_a_silent_client_ends_and_it_hears_so_when_it_comes_back() -> None:
    broker = CheckedCore()
    broker.hello("c")
    broker.ask("c", "r1")
    assert broker.pass_time(10.2) == [ForgetPeer(client_peer("c")), DropPayload("r1")]
    broker.hello("c")
    ended = Ended("r1", failed("client_gone", "the client was silent for 10 s", num_prompt_tokens=0))
    assert broker.ask("c", "r1") == to_client("c", Accepted("r1", 42), ended)


# --- offers ---


def test_an_offer_that_was_given_away_is_not_given_again(broker: CheckedCore) -> None:
    """The hello of a client that has not yet heard of it may still name it."""
    broker.hello("c", generation=1)
    broker.from_stage("s0", StageBye("s0", 1))
    broker.from_stage("s1", StageBye("s1", 1))
    second = broker.serve(FIRST, LAST)
    assert broker.ask("c", "r2")[-1] == PushStart(second, "r2", "c", "session", 42, None)


def test_a_new_offer_goes_with_the_first_request_to_the_next_epoch(broker: CheckedCore) -> None:
    assert broker.from_client("c", OfferReturn(offer(2))) == []
    assert broker.ask("c", "r2")[-1] == PushStart(EPOCH, "r2", "c", "session", 42, None)
    broker.from_stage("s0", StageBye("s0", 1))
    broker.from_stage("s1", StageBye("s1", 1))
    second = broker.serve(FIRST, LAST)
    assert broker.ask("c", "r3")[-1] == PushStart(second, "r3", "c", "session", 42, offer(2))


def test_a_client_that_left_is_introduced_again(broker: CheckedCore) -> None:
    broker.from_client("c", ClientBye())
    broker.from_client("c", ClientHello("c", b"another object", offer(1)))
    assert broker.ask("c", "r2")[-1] == PushStart(EPOCH, "r2", "c", "session", 42, offer(1))


# --- the relay ---

FRAME = Blob(b"a message")


def test_frames_pass_both_ways_between_a_client_and_the_tail(broker: CheckedCore) -> None:
    claimed = RelayToTail("somebody else", EPOCH, FRAME)
    assert broker.from_client("c", claimed) == to_stage("s1", RelayToTail("c", EPOCH, FRAME))
    back = RelayToClient("c", EPOCH, FRAME)
    assert broker.from_stage("s1", back) == to_client("c", back)


def test_frames_of_another_epoch_another_stage_or_for_nobody_are_not_passed_on(broker: CheckedCore) -> None:
    assert broker.from_client("c", RelayToTail("c", Epoch(7, 9), FRAME)) == []
    assert broker.from_stage("s0", RelayToClient("c", EPOCH, FRAME)) == []
    assert broker.from_stage("s1", RelayToClient("nobody", EPOCH, FRAME)) == []
    broker.from_stage("s0", StageBye("s0", 1))
    assert broker.from_client("c", RelayToTail("c", EPOCH, FRAME)) == []


# --- cards ---


def test_a_card_is_fetched_once_checked_and_given_to_whoever_asks() -> None:
    broker = CheckedCore()
    registered = broker.register(replace(FIRST, card_digest=DIGEST))
    assert registered[-1:] == to_stage("s0", GetCard(DIGEST))
    broker.hello("c")
    broker.hello("d")
    assert broker.from_client("c", GetCard(DIGEST)) == []
    card = Card(DIGEST, Blob(CARD))
    assert broker.from_stage("s0", card) == to_client("c", card)
    assert broker.from_stage("s0", card) == []
    assert broker.from_client("d", GetCard(DIGEST)) == to_client("d", card)
    assert broker.register(replace(FIRST, card_digest=DIGEST))[-1:] != to_stage("s0", GetCard(DIGEST))


def test_a_card_that_does_not_have_its_digest_is_answered_as_bad() -> None:
    broker = CheckedCore()
    broker.register(replace(FIRST, card_digest=DIGEST))
    (answer,) = broker.from_stage("s0", Card(DIGEST, Blob(b"another")))
    assert isinstance(answer, Send)
    assert isinstance(answer.message, BadMessage)


def test_whoever_asks_for_a_card_that_nobody_has_hears_so_after_5_s() -> None:
    broker = CheckedCore()
    broker.hello("c")
    assert broker.from_client("c", GetCard(DIGEST)) == []
    assert broker.pass_time(4.9) == []
    assert broker.pass_time(0.1) == to_client("c", Card(DIGEST, Blob()))


def test_a_lost_question_for_a_card_is_asked_again_for_the_next_client() -> None:
    broker = CheckedCore()
    broker.register(replace(FIRST, card_digest=DIGEST))
    broker.hello("c")
    broker.pass_time(1.0)
    assert broker.from_client("c", GetCard(DIGEST)) == to_stage("s0", GetCard(DIGEST))


# --- endings for those who were away ---


def test_a_bye_ends_what_waits_as_cancelled() -> None:
    broker = CheckedCore()
    broker.hello("c")
    broker.ask("c", "r1")
    broker.from_client("c", ClientBye())
    broker.hello("c")
    ended = Ended("r1", Ending(FinishReason.CANCELLED, None, Usage(0, 0)))
    assert broker.ask("c", "r1") == to_client("c", Accepted("r1", 42), ended)
