"""The two ends of a return link as the core sees them: a socket that it offers, and the tail that dials it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stagewire.wire.epoch import Epoch
from stagewire.wire.machine import Machine
from stagewire.wire.request import ReturnOffer

HELLO_S = 2.0
"""How long whoever has connected may stay silent."""
RELAY = 0
"""As a path: through the broker. Generations of sockets count from 1."""


class SocketState(str, Enum):
    """OFFERED: it listens. GREETING: somebody has connected and not spoken. LINKED: it is a tail's link."""

    BINDING = "binding"
    OFFERED = "offered"
    GREETING = "greeting"
    LINKED = "linked"


class SocketTrigger(str, Enum):
    BOUND = "bound"
    CONNECT = "connect"
    HELLO = "hello"


_S, _T = SocketState, SocketTrigger
# Connection and first message come from two sources, in either order.
TRANSITIONS: dict[tuple[SocketState, SocketTrigger], SocketState] = {
    (_S.BINDING, _T.BOUND): _S.OFFERED,
    (_S.OFFERED, _T.CONNECT): _S.GREETING,
    (_S.OFFERED, _T.HELLO): _S.LINKED,
    (_S.GREETING, _T.CONNECT): _S.GREETING,
    (_S.GREETING, _T.HELLO): _S.LINKED,
    (_S.LINKED, _T.CONNECT): _S.LINKED,
}


class ReturnSocket:
    """A bound PAIR and whom it is for: the tail of `epoch`, or None while the broker may give it to any."""

    def __init__(self, generation: int, epoch: Epoch | None) -> None:
        self._machine = Machine(f"return socket {generation}", SocketState.BINDING, TRANSITIONS)
        self.generation, self.epoch = generation, epoch
        self.offer: ReturnOffer | None = None
        self._connected_at: float | None = None

    @property
    def state(self) -> SocketState:
        return self._machine.state

    def bound(self, offer: ReturnOffer) -> None:
        self._machine.fire(SocketTrigger.BOUND)
        self.offer = offer

    def connected(self, now: float) -> None:
        self._machine.fire(SocketTrigger.CONNECT)
        if self._connected_at is None:
            self._connected_at = now

    def linked(self) -> None:
        self._machine.fire(SocketTrigger.HELLO)

    def is_overdue(self, now: float) -> bool:
        """Whether a stranger holds it: connected, and silent for too long."""
        if self._connected_at is None or self.state is not SocketState.GREETING:
            return False
        return now - self._connected_at >= HELLO_S


@dataclass(slots=True)
class Tail:
    """The tail of one epoch: the path to it, and what it dials when that breaks.

    Attributes:
        link: the highest number that the tail has greeted with; `path` is where, a socket's generation or
            `RELAY`, or None while there is none.
        tail_nonce: of that greeting; `is_reply_due` until the next offer is bound and the reply says it.
        next: generation of the socket that the tail dials when the path breaks.
        lost_at: when a direct path broke; None on the relay, whose presence is the broker's.
        used_at: when a request last needed it.
    """

    epoch: Epoch
    used_at: float
    link: int = 0
    path: int | None = None
    tail_nonce: bytes = b""
    is_reply_due: bool = False
    next: int | None = None
    lost_at: float | None = None
