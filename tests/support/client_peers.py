"""A broker and a tail for the client's tests: real sockets, and only what a test tells them."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import zmq

from stagewire.wire.card import ModelCard, card_digest
from stagewire.wire.codec import Message, decode, decode_frame, encode, encode_frame
from stagewire.wire.epoch import Epoch
from stagewire.wire.frontend import (
    Accepted,
    BrokerPong,
    BrokerWelcome,
    Card,
    ClientHello,
    ClientPing,
    Dispatched,
    Generate,
    GetCard,
    GetStatus,
    ModelInfo,
    RelayToClient,
)
from stagewire.wire.request import Ending, FinishReason, ReturnOffer, Usage
from stagewire.wire.returns import ReturnItem, ReturnTokens, TailHello
from stagewire.wire.snapshots import AskSnapshots, Snapshots
from stagewire.wire.status import Status
from stagewire.wire.tensor import Blob

CLIENT = "client-1"
EPOCH = Epoch(1, 1)
WAIT_S = 8.0
Kind = TypeVar("Kind", bound=Message)
Context = zmq.Context[zmq.Socket[bytes]]
_open: list[Tail] = []


@contextmanager
def tails_context() -> Iterator[Context]:
    """For the sockets of tails; all are closed at the end."""
    context: Context = zmq.Context()
    yield context
    while _open:
        _open.pop().close()
    context.term()


class Broker:
    """A ROUTER in a thread of its own. It greets, answers pings and questions; a test does the rest.

    `on_generate` gives what a `Generate` is answered with. `card` may be replaced, its digest stays what it was.
    """

    def __init__(
        self, incarnation: int = 1, endpoint: str = "tcp://127.0.0.1:*", card: ModelCard | None = None
    ) -> None:
        self.incarnation = incarnation
        self.on_hello: Callable[[ClientHello], Message] = lambda _hello: BrokerWelcome(self.incarnation, ())
        self.on_generate: Callable[[Generate], list[Message]] = lambda _generate: []
        self.on_snapshots: Callable[[AskSnapshots], Message] = lambda asked: Snapshots(asked.order, (), ())
        self.hello: ClientHello | None = None
        self.card = card.encode() if card else b""
        digest = card_digest(self.card)
        self.models = (ModelInfo("toy", "toy", digest, 1000, 100),) if card else ()
        self._received: queue.Queue[Message] = queue.Queue()
        self._outgoing: deque[list[bytes]] = deque()
        self._context: Context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.set(zmq.LINGER, 0)
        self._router.bind(endpoint)
        self.endpoint = self._router.get_string(zmq.LAST_ENDPOINT)
        self._peer = b""
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.send_frames([bytes(frame) for frame in encode(message)])

    def send_frames(self, frames: list[bytes]) -> None:
        self._outgoing.append(frames)

    def relay(self, message: Message, epoch: Epoch = EPOCH) -> None:
        self.send(RelayToClient(CLIENT, epoch, Blob(encode_frame(message))))

    def expect(self, kind: type[Kind]) -> Kind:
        """The next message of this kind; others before it are skipped."""
        while True:
            message = self._received.get(timeout=WAIT_S)
            if isinstance(message, kind):
                return message

    def has(self, kind: type[Message], seconds: float) -> bool:
        """Whether one of this kind comes within `seconds`."""
        with suppress(queue.Empty):
            while not isinstance(self._received.get(timeout=seconds), kind):
                pass
            return True
        return False

    def close(self) -> None:
        self._is_closing = True
        self._thread.join(5)
        self._router.close(linger=0)
        self._context.term()

    def _run(self) -> None:
        while not self._is_closing:
            if self._router.poll(5):
                self._peer, *frames = self._router.recv_multipart()
                self._answer(decode(frames))
            while self._outgoing and self._peer:
                self._router.send_multipart([self._peer, *self._outgoing.popleft()])

    def _answer(self, message: Message) -> None:
        if isinstance(message, ClientHello):
            self.hello = message
            self.send(self.on_hello(message))
        elif isinstance(message, ClientPing):
            self.send(BrokerPong(self.incarnation))
        elif isinstance(message, GetStatus):
            self.send(Status(self.incarnation, 0.0, self.models, (), (), 1, 0, 0, 0, ""))
        elif isinstance(message, GetCard):
            self.send(Card(message.digest, Blob(self.card)))
        elif isinstance(message, Generate):
            self.send(*self.on_generate(message))
        elif isinstance(message, AskSnapshots):
            self.send(self.on_snapshots(message))
        self._received.put(message)


def dispatched(generation: int | None = 1, epoch: Epoch = EPOCH) -> Callable[[Generate], list[Message]]:
    """As `on_generate`: everything is admitted and given to a pipeline at once."""
    return lambda generate: [
        Accepted(generate.request_id, 7),
        Dispatched(generate.request_id, epoch, generation),
    ]


class Tail:
    """One dialled link, driven by the test."""

    def __init__(self, context: Context, offer: ReturnOffer, link: int = 1, epoch: Epoch = EPOCH) -> None:
        self.link, self.epoch = link, epoch
        self._offer = offer
        self.socket = context.socket(zmq.PAIR)
        for option, value in ((zmq.LINGER, 0), (zmq.RECONNECT_IVL, -1), (zmq.IMMEDIATE, 1), (zmq.SNDTIMEO, 2000)):
            self.socket.set(option, value)
        self._monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        _open.append(self)
        self.socket.connect(offer.endpoint)

    def greet(self) -> None:
        self.send(TailHello(self.epoch, CLIENT, self.link, self._offer.nonce, b"tail"))

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.socket.send(encode_frame(message))

    def tokens(self, request_id: str, first: int, *token_ids: int, ending: Ending | None = None) -> None:
        self.send(ReturnTokens((ReturnItem(request_id, first, token_ids, (), ending),)))

    def receive(self, seconds: float = WAIT_S) -> Message | None:
        return decode_frame(self.socket.recv()) if self.socket.poll(round(1000 * seconds)) else None

    def expect(self, kind: type[Kind]) -> Kind:
        while True:
            message = self.receive()
            assert message is not None, f"no {kind.__name__} came"
            if isinstance(message, kind):
                return message

    def is_closed_by_client(self, seconds: float = WAIT_S) -> bool:
        return bool(self._monitor.poll(round(1000 * seconds)))

    def close(self) -> None:
        if self.socket.closed:
            return
        self.socket.disable_monitor()
        self._monitor.close(linger=0)
        self.socket.close(linger=0)


def length(num_tokens: int) -> Ending:
    return Ending(FinishReason.LENGTH, num_tokens, Usage(3, num_tokens, 2))
