"""The return links of one client: what it offers, who has answered, and the one path to each pipeline's tail.

It knows sockets by their generation and requests not at all.
"""

from __future__ import annotations

from collections.abc import Collection

from stagewire.client.core.events import BindOffer, CloseSocket, Instruction, SendBroker, SendLink
from stagewire.client.core.return_ends import RELAY, ReturnSocket, SocketState, Tail
from stagewire.wire.codec import Message, encode_frame
from stagewire.wire.epoch import Epoch
from stagewire.wire.frontend import OfferReturn, RelayToTail
from stagewire.wire.note import Note
from stagewire.wire.request import ReturnOffer
from stagewire.wire.returns import ReturnHello, ReturnNext, TailHello
from stagewire.wire.tensor import Blob

BIND_AGAIN_S = 1.0
IDLE_S = 60.0
"""A tail without link and without requests is forgotten after this."""
MAX_IDLE_TAILS = 16
"""Idle tails that are remembered at all, oldest forgotten first."""


class ReturnLinks:
    """All return sockets of a client and its path to each tail."""

    def __init__(self, client_id: str, is_direct: bool) -> None:
        self._client_id, self._is_direct = client_id, is_direct
        self._sockets: dict[int, ReturnSocket] = {}
        self._tails: dict[Epoch, Tail] = {}
        self._last_generation = 0
        self._bind_again_at: float | None = None
        self._established: list[Epoch] = []

    # --- what others ask --------------------------------------------------------------------------------------

    @property
    def offer(self) -> ReturnOffer | None:
        """The one offer that the broker may give to a pipeline, if it is bound."""
        socket = self._unassigned()
        return socket.offer if socket and socket.state is SocketState.OFFERED else None

    def path(self, epoch: Epoch | None) -> int | None:
        """Where this epoch's tail is reached now: a generation, `RELAY`, or None."""
        tail = self._tails.get(epoch) if epoch else None
        return None if tail is None or tail.is_reply_due else tail.path

    def lost_at(self, epoch: Epoch | None) -> float | None:
        """Since when a direct path to this epoch's tail is missing."""
        tail = self._tails.get(epoch) if epoch else None
        return tail.lost_at if tail and tail.path is None else None

    def epoch_of(self, generation: int) -> Epoch | None:
        """The epoch whose path this socket is."""
        socket = self._sockets.get(generation)
        return socket.epoch if socket and self.path(socket.epoch) == generation else None

    def take_established(self) -> list[Epoch]:
        """The epochs whose path has come to stand since the last call."""
        established, self._established = self._established, []
        return established

    def send(self, epoch: Epoch, message: Message) -> list[Instruction]:
        """To the tail of `epoch`; nothing while there is no path."""
        path = self.path(epoch)
        if path is None:
            return []
        return [self._through_broker(epoch, message) if path == RELAY else SendLink(path, message)]

    # --- offers -----------------------------------------------------------------------------------------------

    def start(self) -> list[Instruction]:
        return self._bind(None) if self._is_direct else []

    def bound(self, offer: ReturnOffer) -> list[Instruction]:
        """A socket listens: tell whom it is for."""
        socket = self._sockets.get(offer.generation)
        if socket is None:
            return [CloseSocket(offer.generation)]
        socket.bound(offer)
        if socket.epoch is None:
            return [SendBroker(OfferReturn(offer))]
        tail = self._tails[socket.epoch]
        if tail.is_reply_due:
            return self._reply(tail)
        return self.send(tail.epoch, ReturnNext(offer))

    def bind_failed(self, generation: int, detail: str, now: float) -> list[Instruction]:
        """No socket could be bound, so tokens may have to come through the broker; try again later."""
        socket = self._sockets.pop(generation, None)
        if socket is None:
            return []
        out: list[Instruction] = [Note("return_bind_failed", f"detail={detail!r}")]
        epoch = socket.epoch
        if epoch is None:
            self._bind_again_at = now + BIND_AGAIN_S
            return out
        tail = self._tails[epoch]
        tail.next = None
        return out + (self._reply(tail) if tail.is_reply_due else [])

    def assigned(self, epoch: Epoch, generation: int | None, now: float) -> list[Instruction]:
        """The broker has given an offer to this pipeline: bind the next one."""
        self._tail(epoch, now)
        socket = self._sockets.get(generation) if generation is not None else None
        if socket is None or socket.epoch is not None:
            return []
        socket.epoch = epoch
        return self._bind(None)

    # --- connections ------------------------------------------------------------------------------------------

    def connected(self, generation: int, now: float) -> list[Instruction]:
        if generation in self._sockets:
            self._sockets[generation].connected(now)
        return []

    def gone(self, generation: int, now: float, is_broken: bool) -> list[Instruction]:
        """A socket's peer has left, or (`is_broken` False) must: it is thrown away, and replaced if offered."""
        socket = self._sockets.get(generation)
        if socket is None:
            return []
        out = self._close(generation)
        tail = self._tails.get(socket.epoch) if socket.epoch else None
        if tail is None:
            return [*out, Note("return_offer_spoiled", f"generation={generation}"), *self._bind(None)]
        if tail.next == generation:
            tail.next = None
            return out + self._bind(tail)
        if tail.path == generation:
            tail.path, tail.lost_at, tail.is_reply_due = None, now, False
            why = "disconnected" if is_broken else "violation"
            out.append(Note("return_link_lost", f"epoch={tail.epoch} link={tail.link} reason={why}"))
        return out

    def greeted(self, generation: int, hello: TailHello, now: float) -> list[Instruction]:
        """A tail's first message on a socket: the reply if it is right, the end of the socket if not."""
        socket = self._sockets.get(generation)
        if socket is None or socket.offer is None:
            return []
        is_tail = hello.offer_nonce == socket.offer.nonce and hello.client_id == self._client_id
        is_new = socket.state is not SocketState.LINKED and socket.epoch in (None, hello.epoch)
        if not is_tail or not is_new:
            return self.gone(generation, now, is_broken=False)
        tail = self._tail(hello.epoch, now)
        out = self.assigned(hello.epoch, generation, now)
        if hello.link <= tail.link:
            return out + self.gone(generation, now, is_broken=False)
        socket.linked()
        return out + self._establish(tail, generation, hello)

    def greeted_on_relay(self, hello: TailHello, now: float) -> list[Instruction]:
        """The same through the broker: the tail had nothing left to dial."""
        tail = self._tail(hello.epoch, now)
        if hello.link < tail.link or hello.client_id != self._client_id:
            return []
        if hello.link == tail.link and hello.tail_nonce != tail.tail_nonce:
            return []
        if hello.link == tail.link and tail.path == RELAY:
            # Our reply was slow or lost.
            return [] if tail.is_reply_due else self._reply(tail)
        # What the tail knew of it has dialled in vain.
        out = self._close(tail.next) if tail.next is not None else []
        tail.next = None
        return out + self._establish(tail, RELAY, hello)

    def violated(self, epoch: Epoch, now: float) -> list[Instruction]:
        """The tail broke the rules on its path: give that up, so that it greets anew and sends again."""
        tail = self._tails[epoch]
        if tail.path == RELAY:
            # Silence is what makes a tail on the relay greet again.
            tail.path = None
            return [Note("return_link_lost", f"epoch={epoch} link={tail.link} reason=violation")]
        return self.gone(tail.path, now, is_broken=False) if tail.path is not None else []

    def broker_changed(self, same_broker: bool, now: float) -> None:
        """What was under way through the broker may be lost, and nobody can tell: give up the relay paths."""
        for tail in self._tails.values():
            if tail.path == RELAY:
                tail.path, tail.is_reply_due, tail.lost_at = None, False, None
            if tail.path is None and tail.lost_at is None and not same_broker:
                # A tail that lives greets a new broker's clients again; one that does not is missing.
                tail.lost_at = now

    def tick(self, busy: Collection[Epoch], now: float) -> list[Instruction]:
        """Strangers' time is up; idle tails are forgotten; failed binds are tried again.

        `busy` are the epochs that requests live in.
        """
        out: list[Instruction] = []
        for socket in list(self._sockets.values()):
            if socket.is_overdue(now):
                out += self.gone(socket.generation, now, is_broken=False)
        if self._bind_again_at is not None and now >= self._bind_again_at:
            self._bind_again_at = None
            out += self._bind(None)
        return out + self._forget_idle(busy, now)

    def close(self) -> list[Instruction]:
        self._tails.clear()
        closing = [self._close(generation) for generation in list(self._sockets)]
        return [instruction for one in closing for instruction in one]

    # --- inside -----------------------------------------------------------------------------------------------

    def _unassigned(self) -> ReturnSocket | None:
        return next((socket for socket in self._sockets.values() if socket.epoch is None), None)

    def _tail(self, epoch: Epoch, now: float) -> Tail:
        tail = self._tails.setdefault(epoch, Tail(epoch, now))
        tail.used_at = now
        return tail

    def _bind(self, tail: Tail | None) -> list[Instruction]:
        """Bind a fresh socket, for the broker to give away or as `tail`'s next."""
        self._last_generation += 1
        epoch = tail.epoch if tail else None
        self._sockets[self._last_generation] = ReturnSocket(self._last_generation, epoch)
        if tail:
            tail.next = self._last_generation
        return [BindOffer(self._last_generation)]

    def _close(self, generation: int) -> list[Instruction]:
        del self._sockets[generation]
        return [CloseSocket(generation)]

    def _establish(self, tail: Tail, path: int, hello: TailHello) -> list[Instruction]:
        """Of two links the higher wins; the reply waits until it can say where to dial next."""
        if tail.next is not None and tail.next <= path:
            # Used by this very link, or passed over for a newer one.
            tail.next = None
        tail.link, tail.path, tail.tail_nonce = hello.link, path, hello.tail_nonce
        tail.lost_at, tail.is_reply_due = None, True
        how = "broker" if path == RELAY else "direct"
        out: list[Instruction] = [Note("return_link", f"epoch={hello.epoch} link={hello.link} path={how}")]
        # The link before, and offers older than the one that was answered: nobody will come there any more.
        out += self._close_all(tail.epoch, {path, tail.next})
        if not self._is_direct or tail.next is not None:
            return out + self._reply(tail)
        return out + self._bind(tail)

    def _reply(self, tail: Tail) -> list[Instruction]:
        tail.is_reply_due = False
        self._established.append(tail.epoch)
        following = self._sockets.get(tail.next) if tail.next is not None else None
        offer = following.offer if following else None
        return self.send(tail.epoch, ReturnHello(tail.link, tail.tail_nonce, offer))

    def _through_broker(self, epoch: Epoch, message: Message) -> SendBroker:
        return SendBroker(RelayToTail(self._client_id, epoch, Blob(encode_frame(message))))

    def _close_all(self, epoch: Epoch, but: Collection[int | None] = ()) -> list[Instruction]:
        mine = [socket.generation for socket in self._sockets.values() if socket.epoch == epoch]
        spent = [generation for generation in mine if generation not in but]
        return [instruction for generation in spent for instruction in self._close(generation)]

    def _forget_idle(self, busy: Collection[Epoch], now: float) -> list[Instruction]:
        for epoch in busy:
            if epoch in self._tails:
                self._tails[epoch].used_at = now
        idle = [tail for tail in self._tails.values() if tail.epoch not in busy]
        idle.sort(key=lambda tail: (tail.used_at, tail.epoch), reverse=True)
        out: list[Instruction] = []
        for rank, tail in enumerate(idle):
            is_over = tail.path is None and now - tail.used_at > IDLE_S
            if is_over or rank >= MAX_IDLE_TAILS:
                del self._tails[tail.epoch]
                out += self._close_all(tail.epoch)
        return out

    def check_invariants(self) -> None:
        """One unassigned offer at most; every socket has one use; every path and next exists."""
        sockets, tails = self._sockets, self._tails
        assert sum(socket.epoch is None for socket in sockets.values()) <= 1
        assert all(socket.epoch is None or socket.epoch in tails for socket in sockets.values())
        for epoch, tail in tails.items():
            for generation in (tail.path, tail.next):
                assert generation in (None, RELAY) or sockets[generation].epoch == epoch
            assert tail.path is None or tail.path != tail.next
            if tail.path:
                assert sockets[tail.path].state is SocketState.LINKED
                assert tail.lost_at is None
            if tail.next is not None:
                assert sockets[tail.next].state is not SocketState.LINKED
        linked = [one.generation for one in sockets.values() if one.state is SocketState.LINKED]
        assert set(linked) == {one.path for one in tails.values() if one.path}
