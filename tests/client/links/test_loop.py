"""The client against a broker and tails with real sockets: what PAIR and the network do to it, and what it leaves."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from support.client_peers import CLIENT, EPOCH, WAIT_S, Broker, Context, Tail, dispatched, length, tails_context

from stagewire.client import Client, ClientSettings, ErrorCode, FinishReason, Generation, RequestRefused, StagewireError
from stagewire.wire.codec import VERSION, Message, decode_frame
from stagewire.wire.frontend import (
    BrokerWelcome,
    Cancel,
    ClientBye,
    ClientHello,
    Generate,
    HelloRefused,
    OfferReturn,
    RelayToTail,
)
from stagewire.wire.request import ReturnOffer
from stagewire.wire.returns import ReturnAck, ReturnHello, ReturnItem, ReturnNext, ReturnTokens, TailHello
from stagewire.wire.sampling import SamplingParams

pytestmark = pytest.mark.processes


@pytest.fixture
def context() -> Iterator[Context]:
    with tails_context() as made:
        yield made


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    made.on_generate = dispatched()
    yield made
    made.close()


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(settings=ClientSettings(endpoint=broker.endpoint, client_id=CLIENT)) as made:
        yield made


def generate(client: Client) -> Generation:
    return client.session().generate(prompt_token_ids=[1, 2, 3], sampling=SamplingParams())


def first_offer(broker: Broker) -> ReturnOffer:
    """The one that the first request consumes."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if broker.offer is not None:
            return broker.offer
        time.sleep(0.01)
    raise AssertionError("the client made no offer")


def linked(context: Context, broker: Broker) -> tuple[Tail, ReturnHello]:
    tail = Tail(context, first_offer(broker))
    tail.greet()
    return tail, tail.expect(ReturnHello)


def test_tokens_come_over_a_direct_link_and_are_acknowledged(context: Context, broker: Broker, client: Client) -> None:
    """The hello is mutual and names the next endpoint; what the caller has taken is acknowledged, the ending too."""
    generation = generate(client)
    tail, hello = linked(context, broker)
    assert (hello.link, hello.tail_nonce) == (1, b"tail")
    assert hello.next_offer is not None
    tail.tokens(generation.request_id, 0, 5, 6)
    tail.tokens(generation.request_id, 2, 7, ending=length(3))
    assert [event.token_id for event in generation] == [5, 6, 7]
    result = generation.result
    assert (result.token_ids, result.finish_reason, result.usage.cached_tokens) == ((5, 6, 7), FinishReason.LENGTH, 2)
    acks = [tail.expect(ReturnAck).items[0]]
    while not acks[-1].ended:
        acks.append(tail.expect(ReturnAck).items[0])
    assert acks[-1].num_tokens == 3


def test_only_what_the_caller_took_is_acknowledged(context: Context, broker: Broker, client: Client) -> None:
    """So a slow caller fills its window, and its request pauses at the tail."""
    generation = generate(client)
    tail, _ = linked(context, broker)
    tail.tokens(generation.request_id, 0, 5, 6, 7)
    assert next(generation).token_id == 5
    assert tail.expect(ReturnAck).items[0].num_tokens == 1
    assert tail.receive(0.3) is None


def test_a_stranger_that_connects_first_and_stays_silent_costs_one_endpoint(
    context: Context, broker: Broker, client: Client
) -> None:
    """After two seconds its socket is thrown away, and the broker has a new offer."""
    broker.on_generate = lambda _waits: []
    generation = generate(client)
    offer = first_offer(broker)
    stranger = Tail(context, offer)
    started = time.monotonic()
    while (fresh := broker.expect(OfferReturn).offer).generation == offer.generation:
        pass
    assert 1.5 < time.monotonic() - started < 4
    assert fresh.endpoint != offer.endpoint
    stranger.close()
    tail = Tail(context, fresh)
    tail.greet()
    assert tail.expect(ReturnHello).link == 1
    tail.tokens(generation.request_id, 0, 5, ending=length(1))
    assert generation.wait(WAIT_S).token_ids == (5,)


@pytest.mark.parametrize("what", ["nonsense", "wrong nonce", "tokens at once"])
def test_who_does_not_greet_as_agreed_is_shut_out(context: Context, broker: Broker, client: Client, what: str) -> None:
    """At once, and the client goes on."""
    broker.on_generate = lambda _waits: []
    generate(client)
    offer = first_offer(broker)
    stranger = Tail(context, offer)
    if what == "nonsense":
        stranger.socket.send(b"hello?")
    elif what == "wrong nonce":
        stranger.send(TailHello(EPOCH, CLIENT, 1, b"guessed", b"tail"))
    else:
        stranger.send(ReturnTokens(()))
    assert stranger.is_closed_by_client()
    while broker.expect(OfferReturn).offer.generation == offer.generation:
        pass


def test_a_second_peer_on_a_connected_link_changes_nothing(context: Context, broker: Broker, client: Client) -> None:
    """Neither its coming, nor what it says, nor its going."""
    generation = generate(client)
    tail, _ = linked(context, broker)
    offer = first_offer(broker)
    second = Tail(context, offer)
    second.greet()
    assert second.receive(0.3) is None
    second.close()
    time.sleep(1.0)  # heartbeats find out that it is gone
    assert tail.socket.poll(0, zmq.POLLOUT)
    tail.tokens(generation.request_id, 0, 5, ending=length(1))
    assert generation.wait(WAIT_S).token_ids == (5,)


def test_a_tail_that_loses_its_link_sends_again_on_the_next(context: Context, broker: Broker, client: Client) -> None:
    """The caller sees no gap and no repetition."""
    generation = generate(client)
    tail, hello = linked(context, broker)
    tail.tokens(generation.request_id, 0, 5, 6)
    assert [next(generation).token_id, next(generation).token_id] == [5, 6]
    tail.close()
    assert hello.next_offer is not None
    tail = Tail(context, hello.next_offer, link=2)
    tail.greet()
    assert tail.expect(ReturnHello).next_offer is not None
    tail.tokens(generation.request_id, 1, 6, 7, 8, ending=length(4))
    assert [event.token_id for event in generation] == [7, 8]
    assert generation.result.token_ids == (5, 6, 7, 8)


def test_a_skipped_number_ends_the_link_and_not_the_request(context: Context, broker: Broker, client: Client) -> None:
    """What was missing comes on the next link."""
    generation = generate(client)
    tail, hello = linked(context, broker)
    tail.tokens(generation.request_id, 1, 6)
    assert tail.is_closed_by_client()
    assert hello.next_offer is not None
    tail = Tail(context, hello.next_offer, link=2)
    tail.greet()
    tail.expect(ReturnHello)
    tail.tokens(generation.request_id, 0, 5, 6, ending=length(2))
    assert generation.wait(WAIT_S).token_ids == (5, 6)


def test_a_spoiled_next_endpoint_is_replaced_over_the_link(context: Context, broker: Broker, client: Client) -> None:
    """`ReturnNext` names the new one."""
    generate(client)
    tail, hello = linked(context, broker)
    assert hello.next_offer is not None
    stranger = Tail(context, hello.next_offer)
    stranger.socket.send(b"hello?")
    assert tail.expect(ReturnNext).next_offer.generation > hello.next_offer.generation


def relayed(broker: Broker) -> Message:
    return decode_frame(broker.expect(RelayToTail).frame.data)


def test_a_tail_that_cannot_dial_comes_through_the_broker_and_returns_to_the_direct_path(
    context: Context, broker: Broker, client: Client
) -> None:
    """The reply to its hello names a fresh endpoint; the direct link is the higher and wins."""
    generation = generate(client)
    broker.expect(Generate)
    broker.relay(TailHello(EPOCH, CLIENT, 2, b"", b"nonce"))
    reply = relayed(broker)
    assert isinstance(reply, ReturnHello)
    assert (reply.link, reply.tail_nonce) == (2, b"nonce")
    tokens = Tail(context, reply.next_offer or first_offer(broker), link=3)
    broker.relay(_tokens(generation.request_id, 0, 5))
    assert next(generation).token_id == 5
    assert isinstance(relayed(broker), ReturnAck)
    tokens.greet()
    tokens.expect(ReturnHello)
    broker.relay(_tokens(generation.request_id, 1, 99))  # of the path that was given up
    tokens.tokens(generation.request_id, 1, 6, ending=length(2))
    assert generation.wait(WAIT_S).token_ids == (5, 6)


def _tokens(request_id: str, first: int, *token_ids: int) -> ReturnTokens:
    return ReturnTokens((ReturnItem(request_id, first, token_ids, (), None),))


@pytest.mark.parametrize("setting", [{"return_path": "broker"}, {"return_host": "192.0.2.1"}])
def test_a_client_without_an_endpoint_says_so(broker: Broker, setting: dict[str, str]) -> None:
    """Asked for, or because nothing can be bound: neither its hello nor its request makes an offer."""
    settings = ClientSettings(endpoint=broker.endpoint, client_id=CLIENT, **setting)  # type: ignore[arg-type]
    with Client(settings=settings) as client:
        client.connect()
        generate(client)
        broker.expect(Generate)
        assert broker.hello is not None and broker.hello.offer is None
        assert broker.offer is None


def test_a_restarted_broker_is_greeted_and_asked_again(context: Context, broker: Broker, client: Client) -> None:
    """What had not started is sent anew, with the seed that was drawn; what streams goes on."""
    streaming = generate(client)
    tail, _ = linked(context, broker)
    tail.tokens(streaming.request_id, 0, 5)
    assert next(streaming).token_id == 5
    broker.on_generate = lambda one: dispatched()(one)[:1]
    waiting = generate(client)
    while (sent := broker.expect(Generate)).request_id != waiting.request_id:
        pass
    client.status()  # its admission came before this answer
    broker.close()
    tail.tokens(streaming.request_id, 1, 6)
    assert next(streaming).token_id == 6
    again = Broker(2, broker.endpoint)
    asked = again.expect(Generate)
    assert (asked.request_id, asked.sampling) == (waiting.request_id, sent.sampling)
    assert asked.sampling.seed is not None
    assert not again.has(Generate, 0.3)
    again.close()


def test_an_identity_in_use_ends_everything_with_its_reason(broker: Broker) -> None:
    """What waits and what comes later."""
    broker.on_hello = lambda _hello: HelloRefused(ErrorCode.IDENTITY_IN_USE, "taken")
    with Client(settings=ClientSettings(endpoint=broker.endpoint, client_id=CLIENT)) as client:
        for _ in range(2):
            with pytest.raises(RequestRefused) as refused:
                next(generate(client))
            assert refused.value.code is ErrorCode.IDENTITY_IN_USE
        with pytest.raises(StagewireError) as unwelcome:
            client.connect()
        assert unwelcome.value.code is ErrorCode.IDENTITY_IN_USE


def test_a_broker_of_another_version_is_named(broker: Broker) -> None:
    """Nothing is guessed."""
    broker.on_hello = lambda _hello: BrokerWelcome(1, ())
    head, body = b"SW\x63\x14", b"\x92\x01\x90"
    with Client(settings=ClientSettings(endpoint=broker.endpoint, client_id=CLIENT)) as client:
        generation = generate(client)
        broker.expect(ClientHello)
        broker.send_frames([head, body])
        with pytest.raises(StagewireError) as error:
            generation.__next__()
        assert error.value.code is ErrorCode.PROTOCOL_VERSION


def test_bad_bytes_from_the_broker_change_nothing(context: Context, broker: Broker, client: Client) -> None:
    """They are counted and logged."""
    client.connect()
    for frames in (
        [b""],
        [b"SW" + bytes([VERSION]) + b"\xff", b"\xc0"],
        [b"SW" + bytes([VERSION]) + b"\x16", b"\xff" * 100],
    ):
        broker.send_frames(frames)
    generation = generate(client)
    tail, _ = linked(context, broker)
    tail.tokens(generation.request_id, 0, 5, ending=length(1))
    assert generation.wait(WAIT_S).token_ids == (5,)


def test_without_a_broker_a_request_is_refused_in_bounded_time() -> None:
    """Nothing of it has run, so it may be tried again."""
    settings = ClientSettings(endpoint="tcp://127.0.0.1:9", connect_timeout_s=0.5)
    with Client(settings=settings) as client:
        with pytest.raises(RequestRefused) as refused:
            next(generate(client))
        assert refused.value.code is ErrorCode.UNREACHABLE
        assert refused.value.retryable
        with pytest.raises(StagewireError) as unanswered:
            client.status()
        assert unanswered.value.code is ErrorCode.UNREACHABLE


def test_a_stream_whose_broker_and_tail_are_gone_fails(context: Context, broker: Broker) -> None:
    """After the silence that the settings allow; what came before stays."""
    settings = ClientSettings(endpoint=broker.endpoint, client_id=CLIENT, silence_timeout_s=1.0)
    with Client(settings=settings) as client:
        generation = generate(client)
        tail, _ = linked(context, broker)
        tail.tokens(generation.request_id, 0, 5)
        assert next(generation).token_id == 5
        tail.close()
        broker.close()
        result = generation.wait(WAIT_S, check=False)
    assert (result.finish_reason, result.token_ids) == (FinishReason.FAILED, (5,))
    assert result.error is not None
    assert result.error.code is ErrorCode.UNREACHABLE


# --- what a client leaves -------------------------------------------------------------------------------------


def num_threads() -> int:
    return sum(thread.name == "stagewire-client" for thread in threading.enumerate())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_closed_clients_leave_no_thread_and_no_descriptor(context: Context, broker: Broker) -> None:
    """Also with a link up and a request running; the broker hears the goodbye."""
    before = 0
    for round_ in range(5):
        broker.hello = broker.offer = None
        with Client(settings=ClientSettings(endpoint=broker.endpoint, client_id=CLIENT)) as client:
            generation = generate(client)
            tail, _ = linked(context, broker)
        assert generation.wait(1).finish_reason is FinishReason.CANCELLED
        broker.expect(ClientBye)
        tail.close()
        assert num_threads() == 0
        # The test's own sockets have opened all that they keep once the first round is over.
        before = before if round_ else settled_descriptors()
    assert settled_descriptors() <= before


def settled_descriptors() -> int:
    """Closing happens in the background: the lowest count of half a second."""
    counts = []
    for _ in range(25):
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
        time.sleep(0.02)
    return min(counts)


def test_a_client_that_nobody_refers_to_ends(broker: Broker) -> None:
    """Forgetting to close leaks nothing; a generation keeps its client."""
    client = Client(settings=ClientSettings(endpoint=broker.endpoint, client_id=CLIENT))
    generation = generate(client)
    broker.expect(Generate)
    del client
    assert gc.collect() >= 0 and num_threads() == 1
    del generation
    gc.collect()
    broker.expect(ClientBye)
    deadline = time.monotonic() + WAIT_S
    while num_threads() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert num_threads() == 0


def test_a_dropped_generation_is_cancelled_upstream(broker: Broker, client: Client) -> None:
    """As a loop that is left early does."""
    generation = generate(client)
    request_id = broker.expect(Generate).request_id
    del generation
    gc.collect()
    assert broker.expect(Cancel).request_id == request_id


def test_an_interpreter_that_forgets_to_close_exits(broker: Broker) -> None:
    """At once, with nothing on its standard error."""
    code = (
        "import sys; from stagewire.client import Client, SamplingParams; client = Client(sys.argv[1])\n"
        "generation = client.session().generate(prompt_token_ids=[1], sampling=SamplingParams())\n"
        "client.connect(); print('done')"
    )
    started = time.monotonic()
    command = [sys.executable, "-c", code, broker.endpoint]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert time.monotonic() - started < 15
