"""The broker's decisions: one event in, instructions out. No socket, clock or thread, and never a token."""

from __future__ import annotations

from stagewire.broker.assembler import Assembler
from stagewire.broker.cards import Cards
from stagewire.broker.dispatch import Dispatch
from stagewire.broker.endings import Endings
from stagewire.broker.events import (
    Asked,
    Event,
    FeedOverflowed,
    Instruction,
    Link,
    Overflowed,
    Peer,
    Received,
    Stop,
    Tick,
    Unreachable,
    Unreadable,
)
from stagewire.broker.peers import ClientRecord, StageRecord
from stagewire.broker.questions import StageQuestions
from stagewire.broker.reception import Reception, Relay
from stagewire.broker.registration import Registration
from stagewire.broker.report import status_of
from stagewire.broker.settings import BrokerSettings
from stagewire.broker.state import BrokerState
from stagewire.wire.cache_reports import AskCaches, CacheReport
from stagewire.wire.codec import Message
from stagewire.wire.control import (
    Assembled,
    Dissolved,
    Fault,
    GenerateAck,
    Heartbeat,
    Register,
    RequestEnded,
    RequestEndedAck,
    StageBye,
)
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import (
    BadMessage,
    Cancel,
    Card,
    ClientBye,
    ClientHello,
    ClientPing,
    GetCard,
    GetStatus,
    OfferReturn,
    Refused,
    RelayToClient,
    RelayToTail,
    WhoAreYou,
)
from stagewire.wire.note import Note
from stagewire.wire.snapshots import AskSnapshots, SnapshotReport

_PAUSE_S = 1.0


class BrokerCore:
    """Sorts events to the parts that decide them.

    Args:
        settings: limits and times.
        incarnation: wall-clock nanoseconds at the start; raised when a stage reports a later one.
        now: monotonic seconds, as in every call of `handle`.
        max_connections: how many the process can hold, of clients and stages together; None for any number.
    """

    def __init__(
        self, settings: BrokerSettings, incarnation: int, now: float, max_connections: int | None = None
    ) -> None:
        self._state = BrokerState.begin(settings, incarnation, now, max_connections)
        self._endings = Endings(self._state)
        self._dispatch = Dispatch(self._state, self._endings)
        self._assembler = Assembler(self._state, self._endings)
        self._registration = Registration(self._state, self._assembler, self._dispatch)
        self._reception = Reception(self._state, self._endings)
        self._relay = Relay(self._state)
        self._cards = Cards(self._state)
        self._questions = StageQuestions(self._state)
        self._ticked_at = now

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event at `now` (monotonic seconds, never less than before); what to do, in order."""
        match event:
            case Received(peer, message) if peer.link is Link.CONTROL:
                self._from_control(peer, message, now)
            case Received(peer, message):
                self._from_frontend(peer, message, now)
            case Asked(peer):
                client = self._client_of(peer, now)
                if client:
                    self._dispatch.admit(client, event, now)
            case Unreadable():
                self._unreadable(event)
            case Unreachable(peer) | Overflowed(peer):
                self._peer_lost(peer, isinstance(event, Overflowed), now)
            case FeedOverflowed(epoch, detail):
                pipeline = self._state.pipelines.get(epoch)
                if pipeline:
                    self._assembler.break_up(pipeline, ErrorCode.STAGE_LOST, detail, now)
            case Tick():
                self._tick(now)
            case Stop():
                self._state.stopping = True
                self._endings.end_queued(ErrorCode.SHUTTING_DOWN, "the broker is shutting down", now)
        self._dispatch.pump(now)
        instructions, self._state.out = self._state.out, []
        return instructions

    # --- frontend ---

    def _from_frontend(self, peer: Peer, message: Message, now: float) -> None:
        match message:
            case ClientHello():
                self._reception.hello(peer, message, now)
            case GetStatus():
                self._state.answer(peer, status_of(self._state, peer, now))
            case OfferReturn() | Cancel() | ClientPing() | ClientBye() | GetCard() | RelayToTail():
                client = self._client_of(peer, now)
                if client:
                    self._from_client(client, peer, message, now)
            case AskCaches() | AskSnapshots():
                client = self._client_of(peer, now)
                if client:
                    self._ask_stages(client, peer, message, now)
            case _:
                self._misplaced(peer, message)

    def _from_client(self, client: ClientRecord, peer: Peer, message: Message, now: float) -> None:
        match message:
            case OfferReturn(offer):
                client.offers(offer)
            case Cancel():
                self._reception.cancel(client, message, now)
            case ClientPing():
                self._reception.ping(client)
            case ClientBye():
                self._reception.bye(client, now)
            case GetCard(digest):
                self._cards.asked(peer, digest, now)
            case RelayToTail():
                self._relay.to_tail(client, message)

    def _ask_stages(self, client: ClientRecord, peer: Peer, message: AskCaches | AskSnapshots, now: float) -> None:
        if isinstance(message, AskCaches):
            self._questions.ask_caches(peer, message.clear, now)
        else:
            self._questions.ask_snapshots(peer, client.client_id, message.order, now)

    def _client_of(self, peer: Peer, now: float) -> ClientRecord | None:
        client = self._state.clients.by_peer(peer)
        if client:
            client.heard_at = now
        else:
            self._state.answer(peer, WhoAreYou())
        return client

    # --- control ---

    def _from_control(self, peer: Peer, message: Message, now: float) -> None:
        match message:
            case Register():
                self._registration.register(peer, message, now)
                stage = self._state.pool.by_peer(peer)
                if stage:
                    self._cards.holder_came(stage, now)
            case Heartbeat():
                self._registration.heartbeat(peer, message, now)
            case StageBye():
                self._registration.bye(message, now)
            case CacheReport() | SnapshotReport():
                stage = self._stage_of(peer, now)
                if stage:
                    self._questions.reported(stage, message)
            case Assembled() | Dissolved() | GenerateAck() | RequestEnded() | Fault() | RelayToClient() | Card():
                stage = self._stage_of(peer, now)
                if stage:
                    self._from_stage(stage, peer, message, now)
            case _:
                self._misplaced(peer, message)

    def _from_stage(self, stage: StageRecord, peer: Peer, message: Message, now: float) -> None:
        match message:
            case Assembled(epoch):
                self._assembler.assembled(stage, epoch)
            case Dissolved(epoch):
                self._assembler.dissolved(stage, epoch, now)
            case GenerateAck():
                self._endings.head_answered(message, now)
            case RequestEnded(request_id):
                self._endings.tail_ended(message, now)
                self._state.to_stage(stage, RequestEndedAck(request_id))
            case Fault():
                self._assembler.fault(stage, message, now)
            case RelayToClient():
                self._relay.to_client(stage, message)
            case Card():
                defect = self._cards.arrived(message)
                if defect:
                    self._unreadable(Unreadable(peer, ErrorCode.PROTOCOL_ERROR, defect))

    def _stage_of(self, peer: Peer, now: float) -> StageRecord | None:
        stage = self._state.pool.by_peer(peer)
        if stage:
            stage.heard_at = now
        else:
            self._state.answer(peer, WhoAreYou())
        return stage

    # --- both ---

    def _unreadable(self, event: Unreadable) -> None:
        """Bad bytes change nothing; a `Refused` must not look like the ending of an accepted request."""
        self._state.num_bad_messages += 1
        fields = f"peer={event.peer} code={event.code.value} detail={event.detail[:200]!r}"
        # A flood of them shall not fill the log.
        is_one_of_many = self._state.num_bad_messages > 100 and self._state.num_bad_messages % 1000 != 0
        self._state.out.append(Note("bad_message", fields, is_detail=is_one_of_many))
        if event.request_id is not None and self._may_refuse(event.peer, event.request_id):
            self._state.answer(event.peer, Refused(event.request_id, event.code, event.detail))
        else:
            self._state.answer(event.peer, BadMessage(event.code, event.detail))

    def _may_refuse(self, peer: Peer, request_id: str) -> bool:
        is_known = request_id in self._state.requests or self._state.finished.get(request_id) is not None
        return peer.link is Link.FRONTEND and not is_known

    def _misplaced(self, peer: Peer, message: Message) -> None:
        settings = self._state.settings
        if peer.link is Link.FRONTEND:
            detail = f"this is the broker's frontend port, for clients; stages use {settings.control_endpoint}"
        else:
            detail = f"this is the broker's control port, for stages; clients use {settings.frontend_endpoint}"
        self._unreadable(Unreadable(peer, ErrorCode.INVALID_SETTING, detail))

    def _peer_lost(self, peer: Peer, is_final: bool, now: float) -> None:
        self._state.num_undelivered += 1
        self._state.note("peer_lost", peer=peer, reason="overflow" if is_final else "disconnected")
        client, stage = self._state.clients.by_peer(peer), self._state.pool.by_peer(peer)
        if client and is_final:
            self._reception.overflowed(client, now)
        elif client:
            self._state.clients.disconnect(client)
        elif stage and is_final:
            self._assembler.lose(stage, "it does not read what it is sent", now)
        elif stage:
            self._state.pool.disconnect(stage)

    def _tick(self, now: float) -> None:
        self._forgive_pause(now)
        self._registration.check_silence(now)
        self._reception.check_silence(now)
        self._assembler.check_deadlines(now)
        if self._state.collecting and now - self._state.started_at >= self._state.settings.grace_s:
            self._assembler.settle_reported(now)
        self._assembler.assemble_free(now)
        for epoch in self._dispatch.repeat(now):
            detail = "the head does not acknowledge requests"
            self._assembler.break_up(self._state.pipelines[epoch], ErrorCode.STAGE_LOST, detail, now)
        self._endings.expire(now)
        self._cards.expire(now)
        self._questions.expire(now)
        self._state.measures.expire(now)

    def _forgive_pause(self, now: float) -> None:
        """While this process itself was stopped it heard nobody: that is no silence of theirs."""
        pause_s, self._ticked_at = now - self._ticked_at, now
        if pause_s > _PAUSE_S:
            for peer in (*self._state.pool, *self._state.clients):
                peer.heard_at = min(now, peer.heard_at + pause_s)

    @property
    def state(self) -> BrokerState:
        """For whoever watches: to be read, never to be written."""
        return self._state

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        self._state.check_invariants()
        self._cards.check_invariants()
        self._questions.check_invariants()
