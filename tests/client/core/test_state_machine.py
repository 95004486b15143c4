"""The client's core against a broker and tails that lose, repeat, delay and reorder what a network can.

The tail's side of the return link is the real one. Every request ends exactly once in bounded time, and its caller
gets exactly a prefix of what was sent: in order, no gap, no repetition.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stagewire.client.core.client_core import ClientCore
from stagewire.client.core.events import (
    BindOffer,
    BrokerConnected,
    BrokerDisconnected,
    BrokerMessage,
    CancelRequest,
    CloseSocket,
    Consumed,
    DeliverEnding,
    DeliverTokens,
    Event,
    HoldRequest,
    Instruction,
    LinkConnected,
    LinkDisconnected,
    LinkMessage,
    OfferBound,
    OfferFailed,
    SendBroker,
    SendLink,
    Submit,
    Tick,
)
from stagewire.client.settings import ClientSettings
from stagewire.stage.tail.return_link import (
    CloseLink,
    Dial,
    LinkInstruction,
    ReturnLink,
    SendRelay,
    TellHead,
)
from stagewire.stage.tail.return_link import SendLink as TailSend
from stagewire.wire.codec import Message, decode, encode
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import (
    Accepted,
    BrokerPong,
    BrokerWelcome,
    Cancel,
    ClientHello,
    ClientPing,
    Dispatched,
    Ended,
    Generate,
    OfferReturn,
    RelayToClient,
    RelayToTail,
    WhoAreYou,
)
from stagewire.wire.request import Ending, FinishReason, ReturnOffer, Usage
from stagewire.wire.returns import RETURN_WINDOW, ReturnItem, ReturnNext
from stagewire.wire.ring import CancelRequest as RingCancel
from stagewire.wire.ring import Flow
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import Blob, TokenIds

CLIENT = "c"
STEP_S = 0.2
BOUND_S = 120.0


def token(request_id: str, number: int) -> int:
    """What the model says: whoever computes it, the same."""
    return 1000 * int(request_id[1:]) + number


@dataclass
class Caller:
    """What one request's caller has got and taken."""

    num_planned: int
    token_ids: list[int] = field(default_factory=list)
    endings: list[DeliverEnding] = field(default_factory=list)
    num_taken: int = 0
    is_discarded: bool = False


@dataclass
class Running:
    """A request at a tail: what is still to be sent."""

    num_planned: int
    num_sent: int = 0
    is_paused: bool = False
    is_cancelled: bool = False


@dataclass
class Socket:
    """A bound PAIR: who is on it, and what is under way on that connection."""

    offer: ReturnOffer
    peer: tuple[Epoch, int] | None = None
    has_stranger: bool = False
    to_client: deque[Event] = field(default_factory=deque)
    to_tail: deque[Message] = field(default_factory=deque)


class Tail:
    """One pipeline's tail: the real return link, and requests that produce a token whenever they are told."""

    def __init__(self, epoch: Epoch) -> None:
        numbers = count(1)
        self.epoch = epoch
        self.link = ReturnLink(epoch, CLIENT, lambda: b"%d" % next(numbers), count(1))
        self.requests: dict[str, Running] = {}
        self.seen: set[str] = set()

    def start(self, request_id: str, num_planned: int, offer: ReturnOffer | None, now: float) -> list[LinkInstruction]:
        """The head starts no request twice."""
        if request_id in self.seen:
            return []
        self.seen.add(request_id)
        self.requests[request_id] = Running(num_planned)
        return self.link.open(request_id, offer, now)

    def step(self, now: float) -> list[LinkInstruction]:
        items = []
        for request_id, running in list(self.requests.items()):
            first, ids = running.num_sent, tuple[int, ...]()
            ending: Ending | None = None
            if not running.is_cancelled and not running.is_paused and running.num_sent < running.num_planned:
                ids = (token(request_id, first),)
                running.num_sent += 1
            if running.is_cancelled or running.num_sent == running.num_planned:
                reason = FinishReason.CANCELLED if running.is_cancelled else FinishReason.LENGTH
                ending = Ending(reason, running.num_sent, Usage(1, running.num_sent))
                del self.requests[request_id]
            if ids or ending:
                items.append(ReturnItem(request_id, first, ids, (), ending))
        return self.link.deliver(items, now) if items else []


class Broker:
    """A broker as far as one client sees it."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.connection = 0
        self.offer: ReturnOffer | None = None
        self.spent = 0
        self.waiting: dict[str, Generate] = {}
        self.running: dict[str, Dispatched] = {}
        self.ended: dict[str, list[Message]] = {}
        self.introduced: set[Epoch] = set()


class ClientMachine(RuleBasedStateMachine):
    """Everything that can happen to one client, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.callers: dict[str, Caller] = {}
        self.sockets: dict[int, Socket] = {}
        self.is_connected = False
        self.connection = 0
        self.to_broker: deque[Message] = deque()
        self.to_client: deque[Message] = deque()
        self.broker: Broker | None = Broker(1)
        self.incarnations = count(2)
        self.epochs = count(1)
        self.tail = Tail(Epoch(1, next(self.epochs)))
        self.can_bind = True
        self.can_dial = True

    @initialize(path=st.sampled_from(["direct", "broker"]), can_dial=st.booleans())
    def begin(self, path: Literal["direct", "broker"], can_dial: bool) -> None:
        self.can_dial = can_dial
        self.core = ClientCore(ClientSettings(client_id=CLIENT, return_path=path), b"nonce")
        self.perform(self.core.start())

    # --- the client's loop and caller -------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        instructions = self.core.handle(event, self.now)
        self.core.check_invariants()
        self.perform(instructions)

    def perform(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case SendBroker(message):
                    if self.is_connected:
                        self.to_broker.append(copied(message))
                case BindOffer(generation):
                    self.bind(generation)
                case CloseSocket(generation):
                    self.close_socket(generation)
                case SendLink(generation, message):
                    self.sockets[generation].to_tail.append(copied(message))
                case DeliverTokens(request_id, token_ids):
                    caller = self.callers[request_id]
                    assert not caller.endings, "a token after the ending"
                    assert not caller.is_discarded, "a token that nobody reads"
                    caller.token_ids.extend(token_ids)
                case DeliverEnding(request_id):
                    self.callers[request_id].endings.append(instruction)

    def bind(self, generation: int) -> None:
        if not self.can_bind:
            self.handle(OfferFailed(generation, "no port"))
            return
        offer = ReturnOffer(f"tcp://127.0.0.1:{generation}", b"nonce-%d" % generation, generation)
        self.sockets[generation] = Socket(offer)
        self.handle(OfferBound(offer))

    def close_socket(self, generation: int) -> None:
        socket = self.sockets.pop(generation)
        if socket.peer is not None and socket.peer[0] == self.tail.epoch:
            self.perform_tail(self.tail.link.lose(socket.peer[1], self.now))

    # --- the tail's loop --------------------------------------------------------------------------------------

    def perform_tail(self, instructions: list[LinkInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Dial(_, link, endpoint, hello):
                    self.dial(link, endpoint, copied(hello))
                case TailSend(_, link, message):
                    for socket in self.sockets.values():
                        if socket.peer == (self.tail.epoch, link):
                            socket.to_client.append(LinkMessage(socket.offer.generation, copied(message)))
                case CloseLink(_, link):
                    self.hang_up(link)
                case SendRelay(_, message):
                    frames = tuple(Blob(bytes(frame)) for frame in encode(message))
                    self.tell_client(RelayToClient(CLIENT, self.tail.epoch, frames))
                case TellHead(message):
                    self.tell_head(message)

    def dial(self, link: int, endpoint: str, hello: Message) -> None:
        socket = next((one for one in self.sockets.values() if one.offer.endpoint == endpoint), None)
        if not self.can_dial or socket is None:
            self.perform_tail(self.tail.link.lose(link, self.now))
        elif socket.peer is None and not socket.has_stranger:
            generation = socket.offer.generation
            socket.peer = (self.tail.epoch, link)
            socket.to_client += [LinkConnected(generation), LinkMessage(generation, hello)]
        # Else the handshake succeeds and nobody ever hears it: the dial's deadline ends it.

    def hang_up(self, link: int) -> None:
        for socket in self.sockets.values():
            if socket.peer == (self.tail.epoch, link):
                # What was sent before arrives before the end of the connection.
                socket.to_client.append(LinkDisconnected(socket.offer.generation))
                socket.peer = None
                socket.has_stranger = True

    def tell_head(self, message: Flow | RingCancel) -> None:
        running = self.tail.requests.get(message.request_id)
        if running is not None and isinstance(message, Flow):
            running.is_paused = message.paused
        elif running is not None:
            running.is_cancelled = True

    # --- the broker -------------------------------------------------------------------------------------------

    def tell_client(self, message: Message) -> None:
        if self.broker is not None and self.broker.connection == self.connection and self.is_connected:
            self.to_client.append(copied(message))

    def broker_receives(self, message: Message) -> None:
        broker = self.broker
        assert broker is not None
        if isinstance(message, ClientHello):
            broker.connection = self.connection
            self.take_offer(message.offer)
            self.tell_client(BrokerWelcome(broker.incarnation, ()))
        elif broker.connection != self.connection:
            self.to_client.append(WhoAreYou())
        elif isinstance(message, OfferReturn):
            self.take_offer(message.offer)
        elif isinstance(message, ClientPing):
            self.tell_client(BrokerPong(broker.incarnation))
        elif isinstance(message, Generate):
            self.broker_takes(message)
        elif isinstance(message, Cancel):
            self.broker_cancels(message.request_id)
        elif isinstance(message, RelayToTail) and message.epoch == self.tail.epoch:
            inner = decode([blob.data for blob in message.frames])
            self.perform_tail(self.tail.link.receive(None, inner, self.now))

    def take_offer(self, offer: ReturnOffer | None) -> None:
        assert self.broker is not None
        if offer is None or offer.generation > self.broker.spent:
            self.broker.offer = offer

    def broker_takes(self, generate: Generate) -> None:
        broker, request_id = self.broker, generate.request_id
        assert broker is not None
        if request_id not in broker.ended and request_id not in broker.running:
            broker.waiting.setdefault(request_id, generate)
        self.tell_client(Accepted(request_id, 7))
        if request_id in broker.running:
            self.tell_client(broker.running[request_id])
        for answer in broker.ended.get(request_id, ()):
            self.tell_client(answer)

    def broker_cancels(self, request_id: str) -> None:
        assert self.broker is not None
        if self.broker.waiting.pop(request_id, None):
            self.broker_ends(request_id, Ending(FinishReason.CANCELLED, None, Usage(1, 0)))
        elif request_id in self.tail.requests:
            self.tail.requests[request_id].is_cancelled = True

    def broker_ends(self, request_id: str, ending: Ending) -> None:
        assert self.broker is not None
        self.broker.ended[request_id] = [Ended(request_id, ending)]
        self.tell_client(Ended(request_id, ending))

    # --- rules: the caller ------------------------------------------------------------------------------------

    @rule(num_planned=st.sampled_from([0, 1, 3, 40, 3 * RETURN_WINDOW]))
    def submit(self, num_planned: int) -> None:
        request_id = f"r{len(self.callers)}"
        self.callers[request_id] = Caller(num_planned)
        sampling = SamplingParams(temperature=0.0)
        self.handle(Submit(Generate(request_id, "s", None, sampling, num_planned, (), False, TokenIds.of([1]))))

    def pick(self, which: int) -> str | None:
        return f"r{which % len(self.callers)}" if self.callers else None

    @rule(which=st.integers(0, 7), discard=st.booleans())
    def cancel(self, which: int, discard: bool) -> None:
        request_id = self.pick(which)
        if request_id:
            self.callers[request_id].is_discarded |= discard
            self.handle(CancelRequest(request_id, discard))

    @rule(which=st.integers(0, 7), paused=st.booleans())
    def hold(self, which: int, paused: bool) -> None:
        if request_id := self.pick(which):
            self.handle(HoldRequest(request_id, paused))

    @rule(which=st.integers(0, 7), num_tokens=st.sampled_from([1, 10, RETURN_WINDOW]))
    def consume(self, which: int, num_tokens: int) -> None:
        if request_id := self.pick(which):
            caller = self.callers[request_id]
            caller.num_taken = min(len(caller.token_ids), caller.num_taken + num_tokens)
            is_over = bool(caller.endings) and caller.num_taken == len(caller.token_ids)
            self.handle(Consumed(request_id, caller.num_taken, is_over))

    # --- rules: the network -----------------------------------------------------------------------------------

    @rule(num_messages=st.integers(1, 20))
    def frontend_up(self, num_messages: int) -> None:
        for _ in range(min(num_messages, len(self.to_broker))):
            message = self.to_broker.popleft()
            if self.broker is not None:
                self.broker_receives(message)

    @rule(num_messages=st.integers(1, 20))
    def frontend_down(self, num_messages: int) -> None:
        for _ in range(min(num_messages, len(self.to_client))):
            self.handle(BrokerMessage(self.to_client.popleft()))

    @rule(which=st.integers(0, 3), num_messages=st.integers(1, 20))
    def link_to_client(self, which: int, num_messages: int) -> None:
        for generation in sorted(self.sockets)[which : which + 1]:
            for _ in range(num_messages):
                socket = self.sockets.get(generation)
                if socket is None or not socket.to_client:
                    break
                event = socket.to_client.popleft()
                if isinstance(event, LinkDisconnected):
                    del self.sockets[generation]
                    self.sockets[generation] = Socket(socket.offer)
                self.handle(event)

    @rule(which=st.integers(0, 3), num_messages=st.integers(1, 20))
    def link_to_tail(self, which: int, num_messages: int) -> None:
        for generation in sorted(self.sockets)[which : which + 1]:
            for _ in range(num_messages):
                socket = self.sockets.get(generation)
                if socket is None or not socket.to_tail:
                    break
                message = socket.to_tail.popleft()
                if socket.peer is not None and socket.peer[0] == self.tail.epoch:
                    self.perform_tail(self.tail.link.receive(socket.peer[1], message, self.now))

    @rule(num_steps=st.integers(1, 100))
    def generate(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.perform_tail(self.tail.step(self.now))
            self.tail_reports()

    def tail_reports(self) -> None:
        """The head tells the broker what has ended, and is told of nothing."""
        if self.broker is not None:
            for request_id in [one for one in self.broker.running if one not in self.tail.requests]:
                self.broker.ended[request_id] = [self.broker.running.pop(request_id)]

    @precondition(lambda self: self.broker is not None and self.broker.waiting)
    @rule()
    def dispatch(self) -> None:
        broker, epoch = self.broker, self.tail.epoch
        assert broker is not None
        request_id, generate = next(iter(broker.waiting.items()))
        del broker.waiting[request_id]
        offer = broker.offer if epoch not in broker.introduced else None
        if offer is not None:
            broker.offer, broker.spent = None, offer.generation
            broker.introduced.add(epoch)
        broker.running[request_id] = Dispatched(request_id, epoch, offer.generation if offer else None)
        self.tell_client(broker.running[request_id])
        self.perform_tail(self.tail.start(request_id, generate.max_tokens or 0, offer, self.now))

    @rule(num_rounds=st.integers(1, 8), num_tokens=st.integers(0, 3))
    def all_goes_well(self, num_rounds: int, num_tokens: int) -> None:
        """For a while."""
        for _ in range(num_rounds):
            self.pass_on(num_tokens)
            self.wait(0.05)

    # --- rules: faults ----------------------------------------------------------------------------------------

    @precondition(lambda self: not self.is_connected and self.broker is not None)
    @rule()
    def connect(self) -> None:
        self.is_connected = True
        self.connection += 1
        self.handle(BrokerConnected())

    @precondition(lambda self: self.is_connected)
    @rule()
    def disconnect(self) -> None:
        """The frontend connection breaks; what is under way in it is lost."""
        self.is_connected = False
        self.to_broker.clear()
        self.to_client.clear()
        self.handle(BrokerDisconnected())

    @rule()
    def kill_broker(self) -> None:
        self.broker = None
        if self.is_connected:
            self.disconnect()

    @rule()
    def start_broker(self) -> None:
        """It learns from the head what runs; the tail greets again on the relay."""
        if self.broker is None:
            self.broker = Broker(next(self.incarnations))
            for request_id in self.tail.requests:
                self.broker.running[request_id] = Dispatched(request_id, self.tail.epoch, None)
            self.perform_tail(self.tail.link.reset_relay(self.now))

    @rule(which=st.integers(0, 3))
    def break_link(self, which: int) -> None:
        """A connection resets; what is under way in both directions is lost."""
        for generation in sorted(self.sockets)[which : which + 1]:
            socket = self.sockets[generation]
            peer, socket.peer = socket.peer, None
            if peer is None:
                continue
            self.sockets[generation] = Socket(socket.offer, has_stranger=True)
            self.handle(LinkDisconnected(generation))
            if peer[0] == self.tail.epoch:
                self.perform_tail(self.tail.link.lose(peer[1], self.now))

    @rule(which=st.integers(0, 3))
    def stranger(self, which: int) -> None:
        """Somebody connects first and stays silent."""
        for generation in sorted(self.sockets)[which : which + 1]:
            socket = self.sockets[generation]
            if socket.peer is None and not socket.has_stranger:
                socket.has_stranger = True
                socket.to_client.append(LinkConnected(generation))

    @rule(which=st.integers(0, 3))
    def mad_tail(self, which: int) -> None:
        """A link says what it must not."""
        for generation in sorted(self.sockets)[which : which + 1]:
            socket = self.sockets[generation]
            if socket.peer is not None:
                socket.to_client.append(LinkMessage(generation, ReturnNext(socket.offer)))

    @rule(which=st.integers(0, 20))
    def lose_relayed(self, which: int) -> None:
        """The broker could not pass a message on; nobody hears of it."""
        self.generate(2)
        relayed = [number for number, one in enumerate(self.to_client) if isinstance(one, RelayToClient)]
        if relayed:
            del self.to_client[relayed[which % len(relayed)]]

    @rule()
    def repeat_frontend(self) -> None:
        """The broker says its last word twice."""
        if self.to_client:
            self.to_client.append(self.to_client[-1])

    @rule(can_bind=st.booleans(), can_dial=st.booleans())
    def weather(self, can_bind: bool, can_dial: bool) -> None:
        self.can_bind, self.can_dial = can_bind, can_dial

    @rule()
    def new_epoch(self) -> None:
        """The pipeline dies and another is assembled; the broker ends what ran on it."""
        for instruction in self.tail.link.close():
            assert isinstance(instruction, CloseLink)
            self.hang_up(instruction.link)
        died, self.tail = self.tail, Tail(Epoch(next(self.incarnations), next(self.epochs)))
        if self.broker is None:
            return
        lost = Ending(FinishReason.FAILED, None, Usage(1, 0), (), ErrorCode.STAGE_LOST)
        for request_id, said in list(self.broker.ended.items()):
            if any(isinstance(one, Dispatched) and one.epoch == died.epoch for one in said):
                self.broker_ends(request_id, lost)
        for request_id in list(self.broker.running):
            del self.broker.running[request_id]
            self.broker_ends(request_id, lost)

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.1, 3.0]))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.05
            self.handle(Tick())
            self.perform_tail(self.tail.link.tick(self.now))

    # --- what must hold ---------------------------------------------------------------------------------------

    @invariant()
    def callers_have_a_prefix_and_at_most_one_ending(self) -> None:
        for request_id, caller in self.callers.items():
            assert caller.token_ids == [token(request_id, n) for n in range(len(caller.token_ids))]
            assert len(caller.endings) <= 1
            for one in caller.endings:
                if not caller.is_discarded:
                    assert one.ending.num_tokens in (None, len(caller.token_ids))
                if one.ending.finish_reason is FinishReason.LENGTH and not caller.is_discarded:
                    assert len(caller.token_ids) == caller.num_planned

    @invariant()
    def sockets_are_bounded(self) -> None:
        assert len(self.sockets) <= 1 + 4 * (len(self.core._links._pipelines) + 1)

    def teardown(self) -> None:
        """When the weather is good again, all ends within a bounded time."""
        if not hasattr(self, "core"):
            return
        self.weather(True, True)
        self.start_broker()
        for request_id in self.callers:
            self.handle(HoldRequest(request_id, paused=False))
        until = self.now + BOUND_S
        while self.now < until and not all(caller.endings for caller in self.callers.values()):
            self.settle()
        self.callers_have_a_prefix_and_at_most_one_ending()
        for request_id, caller in self.callers.items():
            assert len(caller.endings) == 1, request_id

    def settle(self) -> None:
        if not self.is_connected:
            self.connect()
        self.pass_on(RETURN_WINDOW)
        for number in range(len(self.callers)):
            self.consume(number, 10 * RETURN_WINDOW)
        self.wait(STEP_S)

    def pass_on(self, num_tokens: int) -> None:
        """All that is under way arrives, and the tail goes on."""
        self.frontend_up(10_000)
        self.frontend_down(10_000)
        while self.broker and self.broker.waiting:
            self.dispatch()
        self.generate(num_tokens)
        for index in range(len(self.sockets)):
            self.link_to_client(index, 10_000)
            self.link_to_tail(index, 10_000)


def copied(message: Message) -> Message:
    """Through the real codec, as bytes."""
    return decode([bytes(frame) for frame in encode(message)])


ClientMachine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestClientMachine = ClientMachine.TestCase
