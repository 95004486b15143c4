"""The tail's side of the return link to one client: dial, hello, send, send again, or go through the broker.

A path is a socket of one connection or the relay; paths are numbered, and the client keeps the highest. This core
decides; sockets and time are the worker's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stagewire.stage.tail.link_instructions import (
    CloseLink,
    Dial,
    LinkEnd,
    LinkInstruction,
    SendLink,
    SendRelay,
    TellHead,
)
from stagewire.stage.tail.return_stream import ReturnStream
from stagewire.wire.codec import Message
from stagewire.wire.epoch import Epoch
from stagewire.wire.request import ReturnOffer
from stagewire.wire.returns import (
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

DIAL_S = 4.0
"""Bound of a dial with its hello, unless the stage is told another."""
RELAY_AGAIN_S = 1.0
RELAY_SILENCE_S = 5.0
"""Unacknowledged for so long on the relay, where nothing tells of a loss: greet again."""
RETENTION_S = 60.0
DIAL_AGAIN_S = 5.0
"""After there was no room for another socket; tokens go through the broker meanwhile."""
_MAX_ITEMS = 64
"""Of full windows with 20 log probabilities each, so many stay well below the limit of a message."""


@dataclass(slots=True)
class _Attempt:
    """A hello without an answer yet; `deadline` bounds a dial, and is when to repeat on the relay."""

    link: int
    nonce: bytes
    deadline: float
    offer: ReturnOffer | None = None


class ReturnLink:
    """All streams of one client in one epoch.

    `draw_nonce` gives 16 random bytes; tests pass a counter. `numbers` counts links over all clients of the tail, so
    that a client whose link was forgotten never sees a number again. `dial_timeout_s` bounds a dial with its hello.
    """

    def __init__(
        self,
        epoch: Epoch,
        client_id: str,
        draw_nonce: Callable[[], bytes],
        numbers: Iterator[int],
        dial_timeout_s: float = DIAL_S,
    ) -> None:
        self._epoch, self._client_id, self._dial_timeout_s = epoch, client_id, dial_timeout_s
        self._draw_nonce, self._numbers = draw_nonce, numbers
        self._streams: dict[str, ReturnStream] = {}
        self._offer: ReturnOffer | None = None
        self._best_generation = -1
        self._dial_from = 0.0
        self._relay_heard_at = 0.0
        self._direct: int | None = None
        self._relay: int | None = None
        self._dial: _Attempt | None = None
        self._relay_hello: _Attempt | None = None

    @property
    def is_idle(self) -> bool:
        """Nothing is kept and no path stands: the link may be forgotten."""
        return not self._streams and self._direct is None and self._dial is None

    @property
    def path(self) -> str | None:
        """`direct`, `broker`, or None while there is no way to the client."""
        return "direct" if self._direct is not None else "broker" if self._relay is not None else None

    # --- from the tail ---

    def open(self, request_id: str, offer: ReturnOffer | None, now: float) -> list[LinkInstruction]:
        """A request of this client has started."""
        self._streams.setdefault(request_id, ReturnStream(request_id))
        self._consider(offer)
        return self._advance(now)

    def deliver(self, items: list[ReturnItem], now: float) -> list[LinkInstruction]:
        """What one step brought: sent in one message, if there is a path."""
        out: list[LinkInstruction] = []
        for item in items:
            self._streams[item.request_id].append(item, now)
        if self.path is not None:
            out += self._send(items)
        return out + self._turns([item.request_id for item in items])

    # --- from the client ---

    def receive(self, link: int | None, message: Message, now: float) -> list[LinkInstruction]:
        """A message on a direct link, or on the relay (`link` None)."""
        if isinstance(message, ReturnHello):
            return self._greet(link, message, now)
        is_current = link == self._direct if link is not None else self._direct is None
        if not is_current:
            return []
        self._relay_heard_at = now
        if isinstance(message, ReturnAck):
            return self._acknowledge(message)
        if isinstance(message, ReturnControl):
            return self._control(message)
        if isinstance(message, ReturnNext):
            self._consider(message.next_offer)
            return self._advance(now)
        return [] if link is None else self.lose(link, now, LinkEnd.UNWANTED)

    def lose(self, link: int, now: float, end: LinkEnd = LinkEnd.BROKEN) -> list[LinkInstruction]:
        """A direct link is over. Where there was no room to dial, nobody has seen the offer, and it stays good."""
        closing: list[LinkInstruction] = [CloseLink(self._client_id, link)] if end is LinkEnd.UNWANTED else []
        if self._direct == link:
            self._direct = None
        elif self._dial and self._dial.link == link:
            if end is LinkEnd.NO_ROOM:
                self._offer, self._dial_from = self._offer or self._dial.offer, now + DIAL_AGAIN_S
            self._dial = None
        else:
            return closing
        return closing + self._advance(now)

    def tick(self, now: float) -> list[LinkInstruction]:
        """Time has passed: give up dials, repeat the relay hello, forget endings nobody fetched."""
        for stream in [*self._streams.values()]:
            if stream.ended_at is not None and now - stream.ended_at > RETENTION_S:
                del self._streams[stream.request_id]
        if self._dial and now >= self._dial.deadline:
            return self.lose(self._dial.link, now, LinkEnd.UNWANTED)
        if self._relay is not None and self._is_owed() and now - self._relay_heard_at > RELAY_SILENCE_S:
            return self.reset_relay(now)
        return self._advance(now)

    def _is_owed(self) -> bool:
        return any(stream.token_ids or stream.ending for stream in self._streams.values())

    def reset_relay(self, now: float) -> list[LinkInstruction]:
        """What went through the broker may be lost: greet again, which sends the rest again."""
        self._relay = self._relay_hello = None
        return self._advance(now)

    def close(self) -> list[LinkInstruction]:
        """The epoch has ended: nothing is kept."""
        self._streams.clear()
        links = [link for link in (self._direct, self._dial.link if self._dial else None) if link is not None]
        self._direct = self._relay = self._dial = self._relay_hello = None
        return [CloseLink(self._client_id, link) for link in links]

    # --- paths ---

    def _consider(self, offer: ReturnOffer | None) -> None:
        """Keep the newest offer; each is dialled once."""
        if offer is not None and offer.generation > self._best_generation:
            self._offer, self._best_generation = offer, offer.generation

    def _advance(self, now: float) -> list[LinkInstruction]:
        """Do what is needed to have a path, and a direct one rather than the relay."""
        if self._direct is not None or self._dial is not None or not self._streams:
            return []
        if self._offer is not None and now >= self._dial_from:
            return self._start_dial(self._offer, now)
        return self._say_relay_hello(now) if self._relay is None else []

    def _start_dial(self, offer: ReturnOffer, now: float) -> list[LinkInstruction]:
        self._offer = None
        self._dial = self._attempt(now + self._dial_timeout_s)
        self._dial.offer = offer
        hello = self._hello(self._dial, offer.nonce)
        return [Dial(self._client_id, self._dial.link, offer.endpoint, hello)]

    def _say_relay_hello(self, now: float) -> list[LinkInstruction]:
        if self._relay_hello and now < self._relay_hello.deadline:
            return []
        # A repetition keeps number and nonce, so that either answer counts.
        self._relay_hello = self._relay_hello or self._attempt(now)
        self._relay_hello.deadline = now + RELAY_AGAIN_S
        return [SendRelay(self._client_id, self._hello(self._relay_hello, b""))]

    def _attempt(self, deadline: float) -> _Attempt:
        return _Attempt(next(self._numbers), self._draw_nonce(), deadline)

    def _hello(self, attempt: _Attempt, offer_nonce: bytes) -> TailHello:
        return TailHello(self._epoch, self._client_id, attempt.link, offer_nonce, attempt.nonce)

    def _greet(self, link: int | None, hello: ReturnHello, now: float) -> list[LinkInstruction]:
        """The reply to a hello makes its attempt the path, and all that is unacknowledged goes there."""
        attempt = self._relay_hello if link is None else self._dial
        expected = attempt is not None and (link in (None, attempt.link)) and hello.link == attempt.link
        if attempt is None or not expected or hello.tail_nonce != attempt.nonce:
            return [] if link is None or link == self._direct else self.lose(link, now, LinkEnd.UNWANTED)
        self._relay_hello = None
        if link is None:
            self._relay, self._relay_heard_at = attempt.link, now
        else:
            self._direct, self._dial, self._relay = link, None, None
        self._consider(hello.next_offer)
        pending = [item for stream in self._streams.values() if (item := stream.unacknowledged())]
        return self._send(pending) + self._advance(now)

    # --- streams ---

    def _send(self, items: list[ReturnItem]) -> list[LinkInstruction]:
        batches = [items[i : i + _MAX_ITEMS] for i in range(0, len(items), _MAX_ITEMS)]
        messages = [ReturnTokens(tuple(batch)) for batch in batches]
        if self._direct is not None:
            return [SendLink(self._client_id, self._direct, message) for message in messages]
        return [SendRelay(self._client_id, message) for message in messages]

    def _acknowledge(self, acks: ReturnAck) -> list[LinkInstruction]:
        for ack in acks.items:
            stream = self._streams.get(ack.request_id)
            if stream is not None and stream.acknowledge(ack):
                del self._streams[ack.request_id]
        return self._turns([ack.request_id for ack in acks.items])

    def _control(self, control: ReturnControl) -> list[LinkInstruction]:
        stream = self._streams.get(control.request_id)
        if stream is None:
            return []
        if control.action is ReturnAction.CANCEL:
            return [TellHead(CancelRequest(control.request_id, control.stop_after))]
        stream.is_held_by_client = control.action is ReturnAction.PAUSE
        return self._turns([control.request_id])

    def _turns(self, request_ids: list[str]) -> list[LinkInstruction]:
        streams = [self._streams[request_id] for request_id in request_ids if request_id in self._streams]
        turns = [(stream.request_id, stream.turn()) for stream in streams]
        return [TellHead(Flow(request_id, paused)) for request_id, paused in turns if paused is not None]
