"""The client's decisions: one typed event and the time in, instructions out. No socket, clock or thread."""

from __future__ import annotations

from stagewire.client.core.broker_link import BrokerLink
from stagewire.client.core.events import (
    Ask,
    BrokerConnected,
    BrokerDisconnected,
    BrokerMessage,
    BrokerUnreadable,
    CancelRequest,
    Close,
    Consumed,
    Event,
    HoldRequest,
    Instruction,
    LinkConnected,
    LinkDisconnected,
    LinkFaulty,
    LinkMessage,
    OfferBound,
    OfferFailed,
    SendBroker,
    Submit,
    Tick,
)
from stagewire.client.core.questions import Questions
from stagewire.client.core.request_table import RequestTable
from stagewire.client.core.return_ends import RELAY
from stagewire.client.core.return_links import ReturnLinks
from stagewire.client.settings import ClientSettings
from stagewire.wire.cache_reports import Caches
from stagewire.wire.codec import Message, decode_frame
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode, ProtocolError
from stagewire.wire.frontend import (
    Accepted,
    BadMessage,
    BrokerPong,
    BrokerWelcome,
    Card,
    ClientBye,
    Dispatched,
    Ended,
    HelloRefused,
    Refused,
    RelayToClient,
    WhoAreYou,
)
from stagewire.wire.note import Note
from stagewire.wire.returns import ReturnTokens, TailHello
from stagewire.wire.snapshots import Snapshots
from stagewire.wire.status import Status

CHECK_S = 0.25
"""How often timers are looked at; acknowledgements have a finer one."""


class ClientCore:
    """All of one client: its broker, its requests, its return links."""

    def __init__(self, settings: ClientSettings, client_nonce: bytes) -> None:
        self._client_id = settings.client_id
        self._broker = BrokerLink(settings.client_id, client_nonce)
        self._links = ReturnLinks(settings.client_id, settings.return_path == "direct")
        self._requests = RequestTable(settings, self._broker, self._links)
        self._questions = Questions(self._broker, settings.endpoint)
        self._welcome: BrokerWelcome | None = None
        self._checked_at = float("-inf")
        self.is_closed = False
        self.num_violations = 0

    @property
    def is_busy(self) -> bool:
        """Whether timers of some milliseconds may be running."""
        return len(self._requests) > 0

    def start(self) -> list[Instruction]:
        """What to do before anything has happened."""
        return self._links.start()

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event at `now` (monotonic seconds)."""
        if self.is_closed:
            return []
        if isinstance(event, LinkMessage):  # every token
            out = self._from_tail(event.generation, event.message, now)
        else:
            out = self._on_api(event, now) or self._on_broker(event, now) or self._on_link(event, now)
        for epoch in self._links.take_established():
            out += self._requests.link_up(epoch)
        return out + self._requests.acknowledge(now)

    def _on_api(self, event: Event, now: float) -> list[Instruction]:
        match event:
            case Submit():
                return self._requests.submit(event.generate, now)
            case CancelRequest():
                return self._requests.cancel(event.request_id, event.discard, now)
            case HoldRequest():
                return self._requests.hold(event.request_id, event.paused)
            case Consumed():
                self._requests.consumed(event)
            case Ask():
                return self._questions.ask(event, self._welcome, now)
            case Close():
                return self._close(now)
            case Tick():
                return self._tick(now)
        return []

    # --- the broker -------------------------------------------------------------------------------------------

    def _on_broker(self, event: Event, now: float) -> list[Instruction]:
        if self._broker.refusal is not None:
            return []
        match event:
            case BrokerConnected():
                return self._broker.connected(self._links.offer, now) + self._questions.connected(now)
            case BrokerDisconnected():
                return self._broker.disconnected()
            case BrokerUnreadable():
                return self._unreadable(event, now)
            case BrokerMessage() if self._broker.is_connected:
                self._broker.heard_at = now
                return self._from_broker(event.message, now)
        return []

    def _from_broker(self, message: Message, now: float) -> list[Instruction]:
        match message:
            case BrokerWelcome():
                return self._welcomed(message, now)
            case WhoAreYou():
                return self._broker.unknown(self._links.offer, now)
            case BrokerPong():
                is_other = message.incarnation != self._broker.incarnation
                return self._broker.unknown(self._links.offer, now) if is_other else []
            case HelloRefused():
                return self._refused(message.code, message.detail, now)
            case BadMessage():
                return self._bad_message(message, now)
            case Accepted():
                return self._requests.accepted(message)
            case Dispatched():
                assigned = self._links.assigned(message.epoch, message.offer_generation, now)
                return assigned + self._requests.dispatched(message)
            case Refused():
                return self._requests.refused(message, now)
            case Ended():
                return self._requests.ended(message, now)
            case Status() | Card() | Caches() | Snapshots():
                return self._questions.reply(message)
            case RelayToClient():
                return self._relayed(message, now)
        return self._violation(f"unexpected={type(message).__name__} from=broker")

    def _welcomed(self, message: BrokerWelcome, now: float) -> list[Instruction]:
        same_broker = self._broker.incarnation in (None, message.incarnation)
        out = self._broker.welcome(message)
        self._welcome = message
        self._links.broker_changed(same_broker, now)
        return out + self._requests.welcomed(same_broker, now) + self._questions.reply(message)

    def _refused(self, code: ErrorCode, detail: str, now: float) -> list[Instruction]:
        """Nothing more can be had here: all ends with the broker's reason."""
        out = self._broker.refuse(code, detail)
        out += self._requests.end_all(code, detail, now) + self._questions.end_all(code, detail)
        return out + self._links.close()

    def _bad_message(self, message: BadMessage, now: float) -> list[Instruction]:
        """Before the welcome it speaks of our hello; a broker that cannot read that serves us nothing."""
        if message.code is ErrorCode.PROTOCOL_VERSION or not self._broker.is_welcomed:
            return self._refused(message.code, message.detail, now)
        return self._violation(f"broker_could_not_read={message.detail!r}")

    def _unreadable(self, event: BrokerUnreadable, now: float) -> list[Instruction]:
        if event.code is ErrorCode.PROTOCOL_VERSION:
            return self._refused(event.code, event.detail, now)
        return self._violation(f"from=broker code={event.code.value} detail={event.detail!r}")

    # --- the return links -------------------------------------------------------------------------------------

    def _on_link(self, event: Event, now: float) -> list[Instruction]:
        match event:
            case OfferBound():
                return self._links.bound(event.offer)
            case OfferFailed():
                return self._links.bind_failed(event.generation, event.detail, now)
            case LinkConnected():
                return self._links.connected(event.generation, now)
            case LinkDisconnected():
                return self._links.gone(event.generation, now, is_broken=True)
            case LinkFaulty():
                lost = self._links.gone(event.generation, now, is_broken=False)
                return self._violation(f"from=link detail={event.detail!r}") + lost
        return []

    def _from_tail(self, generation: int, message: Message, now: float) -> list[Instruction]:
        if isinstance(message, ReturnTokens):
            epoch = self._links.epoch_of(generation)
            return self._take(epoch, message, now) if epoch else self._links.gone(generation, now, is_broken=False)
        if isinstance(message, TailHello):
            return self._links.greeted(generation, message, now)
        return self._links.gone(generation, now, is_broken=False)

    def _relayed(self, relay: RelayToClient, now: float) -> list[Instruction]:
        try:
            message = decode_frame(relay.frame.data)
        except ProtocolError as error:
            return self._violation(f"from=relay detail={error.detail!r}")
        if isinstance(message, TailHello) and message.epoch == relay.epoch:
            return self._links.greeted_on_relay(message, now)
        if isinstance(message, ReturnTokens) and self._links.path(relay.epoch) == RELAY:
            return self._take(relay.epoch, message, now)
        # A path that we have given up, or that a direct one has replaced: its tail sends all of it again.
        return []

    def _take(self, epoch: Epoch, tokens: ReturnTokens, now: float) -> list[Instruction]:
        out: list[Instruction] = []
        for item in tokens.items:
            if not self._requests.fits(epoch, item):
                detail = f"from=tail epoch={epoch} request={item.request_id} number={item.first_sequence}"
                return out + self._violation(detail) + self._links.violated(epoch, now)
            out += self._requests.take(epoch, item, now)
        return out

    # --- time and the end -------------------------------------------------------------------------------------

    def _tick(self, now: float) -> list[Instruction]:
        if now - self._checked_at < CHECK_S:
            return []
        self._checked_at = now
        out = self._broker.tick(self._links.offer, now)
        out += self._links.tick(self._requests.busy_epochs, now)
        return out + self._requests.tick(now) + self._questions.tick(now)

    def _close(self, now: float) -> list[Instruction]:
        self.is_closed = True
        out = self._requests.close(now) + self._questions.end_all(ErrorCode.INVALID_REQUEST, "the client was closed")
        if self._broker.is_connected:
            out.append(SendBroker(ClientBye()))
        return out + self._links.close()

    def _violation(self, fields: str) -> list[Instruction]:
        self.num_violations += 1
        return [Note("protocol_violation", fields)]

    def check_invariants(self) -> None:
        self._broker.check_invariants()
        self._links.check_invariants()
        self._requests.check_invariants()
        self._questions.check_invariants()
