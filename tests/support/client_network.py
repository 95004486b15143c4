"""A client's core, a tail with the real return link, and a broker, on a network that a test drives."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import count

from stagewire.client.core.client_core import ClientCore
from stagewire.client.core.events import (
    BindOffer,
    CloseSocket,
    DeliverEnding,
    DeliverTokens,
    Event,
    Instruction,
    LinkConnected,
    LinkDisconnected,
    LinkMessage,
    OfferBound,
    OfferFailed,
    SendBroker,
    SendLink,
)
from stagewire.stage.tail.return_link import CloseLink, Dial, LinkInstruction, ReturnLink, SendRelay, TellHead
from stagewire.stage.tail.return_link import SendLink as TailSend
from stagewire.wire.codec import Message, decode, decode_frame, encode, encode_frame
from stagewire.wire.epoch import Epoch
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
from stagewire.wire.returns import ReturnItem
from stagewire.wire.ring import CancelRequest as RingCancel
from stagewire.wire.ring import Flow
from stagewire.wire.tensor import Blob

CLIENT = "c"


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


class SimulatedNetwork:
    """What a client's loop, a tail's loop and a broker do with what the cores say."""

    core: ClientCore

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
                    frame = Blob(encode_frame(message))
                    self.tell_client(RelayToClient(CLIENT, self.tail.epoch, frame))
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
            inner = decode_frame(message.frame.data)
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


def copied(message: Message) -> Message:
    """Through the real codec, as bytes."""
    return decode([bytes(frame) for frame in encode(message)])
