"""A broker's core among simulated stages and clients: what its loop does, and what peers answer."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from support.broker_peers import Connection, SimClient, SimFeed, SimRequest, SimStage
from support.broker_world import STAGE

from stagewire.broker.core import BrokerCore
from stagewire.broker.events import (
    Asked,
    CloseFeed,
    DropPayload,
    Event,
    Instruction,
    KeepPayload,
    Link,
    OpenFeed,
    Peer,
    PushCancel,
    PushStart,
    Received,
    Send,
    Tick,
    Unreachable,
)
from stagewire.broker.settings import BrokerSettings
from stagewire.wire.codec import Message
from stagewire.wire.control import (
    Assemble,
    Assembled,
    AssemblyReport,
    Dissolve,
    Dissolved,
    Fault,
    GenerateAck,
    Heartbeat,
    Register,
    Registered,
    RegisterRefused,
    RequestEnded,
    RequestEndedAck,
    RunningRequest,
)
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import (
    Accepted,
    BrokerWelcome,
    ClientHello,
    ClientPing,
    Dispatched,
    Ended,
    OfferReturn,
    Refused,
    WhoAreYou,
)
from stagewire.wire.note import Note
from stagewire.wire.request import FinishReason, ReturnOffer, Usage

TICK_S = 0.25
LIMITS = BrokerSettings(
    max_queued=6,
    max_requests_per_client=5,
    feed_credit=4,
    queue_timeout_s=8.0,
    no_pipeline_wait_s=3.0,
    step_hang_s=10.0,
    client_silence_s=5.0,
    grace_s=1.0,
)
PATIENCE_S = 15.0
INFOS = (
    replace(STAGE, stage_id="a", layer_end=15, max_sequences=1),
    replace(STAGE, stage_id="b", layer_start=15, max_sequences=1),
    replace(STAGE, stage_id="whole", max_sequences=1),
)


class SimulatedPeers:
    """A broker's core, clients and stages on links that deliver what they are told to, in simulated time."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.num_names, self.num_brokers = 0.0, 0, 1
        self.core = BrokerCore(LIMITS, 1000, self.now)
        self.payloads: set[str] = set()
        self.given_up: set[str] = set()
        self.feeds: dict[Epoch, SimFeed] = {}
        self.stray_feeds: list[tuple[Epoch, SimFeed]] = []
        self.returns: deque[tuple[Epoch, str, str]] = deque()
        self.clients = [SimClient(name, self._connect(Link.FRONTEND)) for name in ("x", "y")]
        self.stages = [SimStage(info, self._connect(Link.CONTROL)) for info in INFOS]

    def _connect(self, link: Link) -> Connection:
        self.num_names += 1
        return Connection(link, f"n{self.num_names}")

    # --- the core and its loop ---

    def handle(self, event: Event) -> None:
        instructions = self.core.handle(event, self.now)
        self.core.check_invariants()
        unreachable = [peer for one in instructions if (peer := self._execute(one, event))]
        for peer in dict.fromkeys(unreachable):
            self.handle(Unreachable(peer))

    def _execute(self, instruction: Instruction, event: Event) -> Peer | None:
        """What the loop does, with its own assertions; returns a peer that is not connected."""
        match instruction:
            case Note("stage_lost", fields):
                self.given_up.add(fields)
            case Send(peer, message):
                if isinstance(message, Ended):
                    self._check_fenced(message.request_id)
                return None if self._send(peer, message) else peer
            case KeepPayload(request_id, payload):
                assert isinstance(event, Asked)
                assert event.request_id == request_id == payload
                assert request_id not in self.payloads
                self.payloads.add(request_id)
            case DropPayload(request_id):
                self.payloads.remove(request_id)
            case OpenFeed(epoch, endpoint, run):
                assert epoch not in self.feeds
                self.feeds[epoch] = SimFeed(endpoint, run)
                # A feed opens with a `Repeat`, which ends what a dead broker's feed may still bring.
                for stage in self.stages:
                    stage.broker_run = run if stage.epoch == epoch else stage.broker_run
            case CloseFeed(epoch):
                del self.feeds[epoch]
            case PushStart(epoch, request_id):
                assert request_id in self.payloads
                self.feeds[epoch].messages.append(instruction)
            case PushCancel(epoch):
                self.feeds[epoch].messages.append(instruction)
        return None

    def _check_fenced(self, request_id: str) -> None:
        """The broker writes an ending only where nobody runs the request, but for a head that it gave up on."""
        for head in self.stages:
            if head.alive and request_id in head.running:
                name = f"stage={head.info.stage_id} run={head.info.run:x} "
                assert any(fields.startswith(name) for fields in self.given_up)

    def _send(self, peer: Peer, message: Message) -> bool:
        for one in self._peers():
            if one.connection.peer == peer:
                one.connection.down.append(message)
                return True
            if isinstance(one, SimStage) and self._beats(one) == peer:
                self._stage_hears(one, message)
                return True
        return False

    def _deliver_everything(self) -> None:
        for epoch, feed in [*self.feeds.items(), *self.stray_feeds]:
            while feed.messages:
                self._fed(epoch, feed)
        for peer in self._peers():
            self._up(peer.connection, 1000)
        for peer in self._peers():
            self._down(peer, 1000)
        while self.returns:
            self._returned()

    # --- time ---

    def _tick(self) -> None:
        self.now += TICK_S
        for stage in self.stages:
            if stage.alive:
                self.handle(Received(self._beats(stage), Heartbeat(stage.info.stage_id, stage.info.run, 0, None)))
                self._stage_repeats(stage)
        for client in self.clients:
            self._client_repeats(client)
        for epoch, feed in self.feeds.items():
            self._repeat_shows_gap(epoch, feed)
        if self.returns:
            self._returned()
        self.handle(Tick())

    def _repeat_shows_gap(self, epoch: Epoch, feed: SimFeed) -> None:
        """The idle repetition on the feed carries the number of the message that was lost."""
        for stage in self.stages:
            if stage.is_head and stage.epoch == epoch and feed.lost and not feed.messages:
                stage.broken = True

    def _beats(self, stage: SimStage) -> Peer:
        """Heartbeats come on a connection of their own, and `WhoAreYou` on it reaches the stage at once."""
        return Peer(Link.CONTROL, b"beats of " + stage.connection.peer.routing_id)

    def _stage_repeats(self, stage: SimStage) -> None:
        if self.now - stage.said_at < 1.0:
            return
        stage.said_at = self.now
        if not stage.registered:
            stage.connection.up.append(Register(stage.info, self._report(stage)))
        stage.connection.up.extend(stage.ended.values())
        if stage.broken and stage.epoch:
            stage.connection.up.append(Fault(stage.epoch, ErrorCode.STAGE_LOST, "gap"))

    def _client_repeats(self, client: SimClient) -> None:
        if self.now - client.pinged_at >= 1.0:
            client.pinged_at = self.now
            client.connection.up.append(ClientPing())
        for request_id, request in client.requests.items():
            if request.ending is not None:
                continue
            if request.dispatched_in is None and self.now - request.sent_at >= 1.0:
                self._ask(client, request_id)
            self._lose_patience(client, request_id, request)

    def _lose_patience(self, client: SimClient, request_id: str, request: SimRequest) -> None:
        """A broker that died with a stage of its pipeline knows nothing of a request that both had."""
        if request.dispatched_in is None or self._holder(request_id):
            request.unheard_since = None
            return
        request.unheard_since = self.now if request.unheard_since is None else request.unheard_since
        if self.now - request.unheard_since > PATIENCE_S:
            assert self.num_brokers > 1, "the broker that dispatched it lives and owes it an ending"
            request.ending = "unreachable"

    def _holder(self, request_id: str) -> bool:
        is_returning = any(request_id == returning for _, _, returning in self.returns)
        return is_returning or any(request_id in stage.running for stage in self.stages if stage.alive)

    # --- clients ---

    def _hello(self, client: SimClient) -> ClientHello:
        return ClientHello(client.name, client.name.encode(), self._offer(client))

    def _offer(self, client: SimClient) -> ReturnOffer:
        return ReturnOffer("tcp://127.0.0.1:5000", b"nonce", client.generation)

    def _ask(self, client: SimClient, request_id: str) -> None:
        request = client.requests[request_id]
        request.sent_at = self.now
        peer = client.connection.peer
        client.connection.up.append(
            Asked(peer, request_id, request.session_id, None, 3, 5, 100, 42, payload=request_id)
        )

    def _client_hears(self, client: SimClient, message: Message) -> None:
        match message:
            case WhoAreYou() if self.now - client.greeted_at >= 1.0:
                client.greeted_at = self.now
                client.connection.up.append(self._hello(client))
            case BrokerWelcome(incarnation):
                # Answers may have been lost; but a broker that has restarted would run a stream from its start.
                for request_id, request in client.requests.items():
                    if request.ending is None and not (request.streams and incarnation != client.incarnation):
                        self._ask(client, request_id)
                client.incarnation = incarnation
            case Accepted(request_id):
                client.requests[request_id].answered = True
            case Dispatched(request_id, epoch, generation):
                client.requests[request_id].dispatched_in = epoch
                if generation == client.generation:
                    client.generation += 1
                    client.connection.up.append(OfferReturn(self._offer(client)))
            case Refused(request_id):
                assert not client.requests[request_id].answered or self.num_brokers > 1
                self._end(client, request_id, "refused")
            case Ended(request_id, ending):
                self._end(client, request_id, ending.finish_reason.value)

    def _end(self, client: SimClient, request_id: str, how: str) -> None:
        if client.requests[request_id].ending is None:
            client.requests[request_id].ending = how

    # --- stages ---

    def _report(self, stage: SimStage) -> AssemblyReport | None:
        if stage.epoch is None:
            return None
        running = tuple(RunningRequest(one, *names) for one, names in stage.running.items())
        return AssemblyReport(stage.epoch, stage.stage_index, stage.num_stages, running)

    def _stage_hears(self, stage: SimStage, message: Message) -> None:
        say = stage.connection.up.append
        match message:
            case WhoAreYou():
                stage.registered = False
                say(Register(stage.info, self._report(stage)))
            case Registered(_, keep):
                stage.registered = True
                if stage.epoch != keep:
                    stage.leave()
            case RegisterRefused():
                raise AssertionError("no two living stages share a name here")
            case Assemble(epoch, stage_index, num_stages):
                if stage.epoch != epoch:
                    stage.leave()
                stage.epoch, stage.stage_index, stage.num_stages = epoch, stage_index, num_stages
                say(Assembled(epoch))
            case Dissolve(epoch):
                if stage.epoch == epoch:
                    stage.leave()
                say(Dissolved(epoch))
            case RequestEndedAck(request_id):
                stage.ended.pop(request_id, None)

    def _fed(self, epoch: Epoch, feed: SimFeed) -> None:
        if not feed.messages:
            return
        message = feed.messages.popleft()
        heads = [stage for stage in self.stages if stage.alive and stage.is_head and stage.epoch == epoch]
        if not heads or feed.run < heads[0].broker_run:
            return
        head = heads[0]
        head.broker_run = feed.run
        head.broken = head.broken or feed.lost
        if head.broken:
            return
        if isinstance(message, PushCancel):
            self._head_cancels(head, message.request_id)
        else:
            self._head_starts(head, message)

    def _head_starts(self, head: SimStage, message: PushStart) -> None:
        assert head.epoch is not None
        others = [stage for stage in self.stages if stage is not head and stage.alive and stage.running]
        assert self.num_brokers > 1 or all(message.request_id not in stage.running for stage in others)
        if message.request_id not in head.tombstones and message.request_id not in head.running:
            head.running[message.request_id] = message.client_id, message.session_id
        head.connection.up.append(GenerateAck(message.request_id, head.epoch, None, ""))

    def _head_cancels(self, head: SimStage, request_id: str) -> None:
        if request_id in head.running and self._ring_is_whole(head):
            self._tail_ends(head, request_id, FinishReason.CANCELLED)

    def _ring_is_whole(self, head: SimStage) -> bool:
        members = [stage for stage in self.stages if stage.alive and stage.epoch == head.epoch and not stage.broken]
        return len(members) == head.num_stages

    def _tail_ends(self, head: SimStage, request_id: str, reason: FinishReason) -> None:
        """The tail sends the ending to the client, and the head reports it until it is acknowledged."""
        assert head.epoch is not None
        client_id, _ = head.running.pop(request_id)
        head.tombstones.add(request_id)
        head.ended[request_id] = RequestEnded(request_id, head.epoch, reason, None, Usage(3, 5))
        head.connection.up.append(head.ended[request_id])
        self.returns.append((head.epoch, client_id, request_id))

    def _returned(self) -> None:
        """The return link delivers, unless its tail has died or left the epoch by then."""
        epoch, client_id, request_id = self.returns.popleft()
        tails = [stage for stage in self.stages if stage.alive and stage.epoch == epoch]
        if any(stage.stage_index == stage.num_stages - 1 for stage in tails):
            (client,) = [client for client in self.clients if client.name == client_id]
            self._end(client, request_id, "tail")

    def _kill(self, stage: SimStage) -> None:
        stage.alive = False
        stage.leave()
        stage.connection = self._connect(Link.CONTROL)

    # --- links ---

    def _peers(self) -> list[SimClient | SimStage]:
        return [*self.clients, *(stage for stage in self.stages if stage.alive)]

    def _up(self, connection: Connection, count: int) -> None:
        for _ in range(count):
            if connection.up:
                message = connection.up.popleft()
                if isinstance(message, Asked):
                    self.handle(replace(message, peer=connection.peer))
                else:
                    self.handle(Received(connection.peer, message))

    def _down(self, peer: SimClient | SimStage, count: int) -> None:
        for _ in range(count):
            if peer.connection.down:
                message = peer.connection.down.popleft()
                if isinstance(peer, SimClient):
                    self._client_hears(peer, message)
                else:
                    self._stage_hears(peer, message)
