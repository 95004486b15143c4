"""The broker's sockets, none of which ever blocks: a ROUTER for clients, one for stages, and a feed to each head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import zmq

from stagewire.broker.events import Event, Link, Overflowed, Peer, Unreachable
from stagewire.sockets.condition import WireCondition
from stagewire.sockets.connection import HIGH_WATER_MARK, bind
from stagewire.sockets.nonblocking import Outbox, SendSocket, received, try_send
from stagewire.wire.codec import BROKER, Message, SenderNumbers, encode, encode_ring
from stagewire.wire.epoch import Epoch
from stagewire.wire.ring import Repeat

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""libzmq closes a connection that sends a longer frame; messages of this protocol are far below."""
_OUTBOX_MESSAGES = 4096
_MAX_OUTBOXES = 4096
_FEED_MESSAGES = 1024


class Router:
    """One ROUTER socket, bound on construction, and a bounded outbox for each peer that does not read fast enough.

    Raises:
        SettingsError: the endpoint cannot be bound, PORT_IN_USE when another process has it.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], link: Link, endpoint: str) -> None:
        self._link = link
        self._outboxes: dict[Peer, Outbox] = {}
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self.endpoint = bind(self.socket, endpoint, f"{link.value}_endpoint")

    @property
    def has_pending(self) -> bool:
        return bool(self._outboxes)

    def receive(self, limit: int) -> Iterator[tuple[Peer, Sequence[bytes]]]:
        """What has come, at most `limit` messages: who sent it, and its frames."""
        for routing_id, *frames in received(self.socket, limit):
            yield Peer(self._link, routing_id), frames

    def send(self, peer: Peer, message: Message, now: float) -> Event | None:
        """Send it now or later; an event tells when the peer will not get it."""
        if peer not in self._outboxes and len(self._outboxes) < _MAX_OUTBOXES:
            self._outboxes[peer] = Outbox(_OUTBOX_MESSAGES)
        outbox = self._outboxes.get(peer)
        if outbox is None or not outbox.put(encode(message), now):
            self.forget(peer)
            return Overflowed(peer)
        return self._flush(peer, now)

    def flush(self, now: float) -> list[Event]:
        """Try again what is waiting; an event for each peer that is gone."""
        events = [self._flush(peer, now) for peer in list(self._outboxes)]
        return [event for event in events if event]

    def forget(self, peer: Peer) -> None:
        self._outboxes.pop(peer, None)

    def _flush(self, peer: Peer, now: float) -> Event | None:
        outbox = self._outboxes[peer]
        try:
            outbox.flush(lambda frames: try_send(self.socket, [peer.routing_id, *frames]), now)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            del self._outboxes[peer]
            return Unreachable(peer)
        if not outbox:
            del self._outboxes[peer]
        return None

    def close(self, linger_s: float) -> None:
        self.socket.close(linger=round(linger_s * 1000))


class Feed:
    """A PUSH socket to one head, from the time that its pipeline serves until it breaks.

    Its messages are numbered within the epoch; the last number is repeated when it is idle.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        epoch: Epoch,
        endpoint: str,
        run: int,
        condition: WireCondition | None,
    ) -> None:
        self._numbers = SenderNumbers(epoch, BROKER, run)
        self._sending = SendSocket(context.socket(zmq.PUSH), Outbox(_FEED_MESSAGES, condition))
        self._sending.socket.set(zmq.SNDHWM, HIGH_WATER_MARK)
        self._sending.socket.connect(endpoint)

    @property
    def has_pending(self) -> bool:
        return len(self._sending.outbox) > 0

    def send(self, message: Message, now: float) -> bool:
        """Send it now or later; False when the head has not read for long."""
        return self._sending.put([encode_ring(self._numbers.next(now), message)], now)

    def flush(self, now: float) -> None:
        """Send what is due, and the idle repetition; a waiting message makes that needless."""
        self._sending.flush(now)
        envelope = None if self.has_pending else self._numbers.repeat(now)
        if envelope:
            self._sending.put([encode_ring(envelope, Repeat())], now)

    def close(self, linger_s: float) -> None:
        self._sending.socket.close(linger=round(linger_s * 1000))
