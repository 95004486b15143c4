"""A client's core with a clock that the test moves, and what a broker and a tail say to it."""

from __future__ import annotations

from stagewire.client.core.client_core import ClientCore
from stagewire.client.core.events import (
    BindOffer,
    BrokerConnected,
    BrokerMessage,
    Event,
    Instruction,
    LinkMessage,
    OfferBound,
    SendBroker,
    Submit,
    Tick,
)
from stagewire.client.settings import ClientSettings
from stagewire.wire.codec import Message, encode_frame
from stagewire.wire.epoch import Epoch
from stagewire.wire.frontend import Accepted, BrokerWelcome, Dispatched, Generate, RelayToClient, RelayToTail
from stagewire.wire.note import Note
from stagewire.wire.request import Ending, FinishReason, ReturnOffer, Usage
from stagewire.wire.returns import ReturnItem, ReturnTokens, TailHello
from stagewire.wire.sampling import SamplingParams
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
        return self.hear(RelayToClient("c", EPOCH, Blob(encode_frame(message))))

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
    return SendBroker(RelayToTail("c", EPOCH, Blob(encode_frame(message))))
