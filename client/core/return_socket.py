"""One return socket as the core sees it: an offer that is good for one connection."""

from __future__ import annotations

from enum import Enum

from stagewire.wire.epoch import Epoch
from stagewire.wire.machine import Machine
from stagewire.wire.request import ReturnOffer

HELLO_S = 2.0
"""How long whoever has connected may stay silent."""


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
