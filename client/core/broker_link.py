"""The client's side of the frontend: greet, ping, notice a restarted broker; it knows no requests."""

from __future__ import annotations

from enum import Enum

from stagewire.client.core.events import Instruction, SendBroker
from stagewire.wire.errors import ErrorCode, StagewireError
from stagewire.wire.frontend import BrokerWelcome, ClientHello, ClientPing, HelloRefused
from stagewire.wire.machine import Machine
from stagewire.wire.note import Note
from stagewire.wire.request import ReturnOffer

PING_S = 1.0
HELLO_AGAIN_S = 1.0


class BrokerState(str, Enum):
    """GREETING: connected and not yet welcomed. REFUSED is for good."""

    AWAY = "away"
    GREETING = "greeting"
    WELCOMED = "welcomed"
    REFUSED = "refused"


class BrokerTrigger(str, Enum):
    """UNKNOWN: the broker asked `WhoAreYou`, or answers as another incarnation."""

    CONNECT = "connect"
    DISCONNECT = "disconnect"
    UNKNOWN = "unknown"
    WELCOME = "welcome"
    REFUSE = "refuse"


_S, _T = BrokerState, BrokerTrigger
TRANSITIONS: dict[tuple[BrokerState, BrokerTrigger], BrokerState] = {
    (_S.AWAY, _T.CONNECT): _S.GREETING,
    (_S.GREETING, _T.CONNECT): _S.GREETING,
    (_S.WELCOMED, _T.CONNECT): _S.GREETING,
    (_S.AWAY, _T.DISCONNECT): _S.AWAY,
    (_S.GREETING, _T.DISCONNECT): _S.AWAY,
    (_S.WELCOMED, _T.DISCONNECT): _S.AWAY,
    (_S.GREETING, _T.UNKNOWN): _S.GREETING,
    (_S.WELCOMED, _T.UNKNOWN): _S.GREETING,
    (_S.GREETING, _T.WELCOME): _S.WELCOMED,
    (_S.WELCOMED, _T.WELCOME): _S.WELCOMED,
    (_S.AWAY, _T.REFUSE): _S.REFUSED,
    (_S.GREETING, _T.REFUSE): _S.REFUSED,
    (_S.WELCOMED, _T.REFUSE): _S.REFUSED,
}


class BrokerLink:
    """One client's connection to the broker, over all its breaks.

    Attributes:
        incarnation: of the broker that has welcomed us last; None before the first welcome.
        session: counts the welcomes; what was asked under an earlier one may have been lost.
        heard_at: when anything last came from the broker; None when nothing ever has.
        refusal: why nothing more can be had here.
    """

    def __init__(self, client_id: str, client_nonce: bytes) -> None:
        self._client_id, self._client_nonce = client_id, client_nonce
        self._machine = Machine("broker link", BrokerState.AWAY, TRANSITIONS)
        self._hello_at = self._ping_at = float("-inf")
        self.incarnation: int | None = None
        self.session = 0
        self.heard_at: float | None = None
        self.refusal: StagewireError | None = None

    @property
    def state(self) -> BrokerState:
        return self._machine.state

    @property
    def is_connected(self) -> bool:
        return self.state in (BrokerState.GREETING, BrokerState.WELCOMED)

    @property
    def is_welcomed(self) -> bool:
        return self.state is BrokerState.WELCOMED

    def connected(self, offer: ReturnOffer | None, now: float) -> list[Instruction]:
        self._machine.fire(BrokerTrigger.CONNECT)
        return self._greet(offer, now)

    def disconnected(self) -> list[Instruction]:
        was_connected = self.is_connected
        self._machine.fire(BrokerTrigger.DISCONNECT)
        return [Note("broker_disconnected")] if was_connected else []

    def unknown(self, offer: ReturnOffer | None, now: float) -> list[Instruction]:
        """The broker does not know us, or not any more.

        It says so once for each of our messages, so a hello that is under way is not repeated at once.
        """
        was_welcomed = self.is_welcomed
        self._machine.fire(BrokerTrigger.UNKNOWN)
        return self._greet(offer, now) if was_welcomed else []

    def welcome(self, message: BrokerWelcome) -> list[Instruction]:
        self._machine.fire(BrokerTrigger.WELCOME)
        self.session += 1
        self.incarnation = message.incarnation
        return [Note("broker_welcome", f"incarnation={message.incarnation:x} session={self.session}")]

    def refuse(self, code: ErrorCode, detail: str) -> list[Instruction]:
        """The broker will not have us, or we cannot talk to it."""
        self._machine.fire(BrokerTrigger.REFUSE)
        self.refusal = StagewireError(detail, code)
        return [Note("broker_refused", f"code={code.value} detail={detail!r}")]

    def refused(self, message: HelloRefused) -> list[Instruction]:
        return self.refuse(message.code, message.detail)

    def tick(self, offer: ReturnOffer | None, now: float) -> list[Instruction]:
        if self.state is BrokerState.GREETING and now - self._hello_at >= HELLO_AGAIN_S:
            return self._greet(offer, now)
        if self.is_welcomed and now - self._ping_at >= PING_S:
            self._ping_at = now
            return [SendBroker(ClientPing())]
        return []

    def _greet(self, offer: ReturnOffer | None, now: float) -> list[Instruction]:
        self._hello_at = self._ping_at = now
        return [SendBroker(ClientHello(self._client_id, self._client_nonce, offer))]

    def check_invariants(self) -> None:
        assert (self.refusal is not None) == (self.state is BrokerState.REFUSED)
        assert (self.incarnation is None) == (self.session == 0)
        assert not self.is_welcomed or self.session > 0
