"""A whole Stagewire in one thread and simulated time: the real cores and codec over a network that misbehaves.

Everything but sockets and arithmetic is the real thing. Links are FIFO and delay at random; messages are lost as they
are lost in reality: with their connection, or one by one on a PUSH link, or with the process that held them.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from support.toy_operators import VOCAB_SIZE, ToyOperators

from stagewire.broker import events as broker_events
from stagewire.broker.core import BrokerCore
from stagewire.broker.events import Link, Peer
from stagewire.broker.settings import BrokerSettings
from stagewire.client.core import events as client_events
from stagewire.client.core.client_core import ClientCore
from stagewire.client.settings import ClientSettings
from stagewire.stage.compute.operators import BLOCK_SIZE
from stagewire.stage.core import StageCore, StageParts
from stagewire.stage.head.limits import HeadLimits
from stagewire.stage.instructions import CloseRing, ConnectRing, Exit, Note, SendControl, SendHead, SendNext
from stagewire.stage.instructions import Instruction as StageInstruction
from stagewire.stage.kv.store import KvStore
from stagewire.stage.schedule.limits import SchedulerLimits
from stagewire.stage.stage_epoch import Assembly
from stagewire.stage.tail.return_link import CloseLink, Dial, SendLink
from stagewire.wire.codec import BROKER, Envelope, Message, decode, encode
from stagewire.wire.control import Assemble, Heartbeat, StageInfo
from stagewire.wire.epoch import Epoch
from stagewire.wire.frontend import Generate, WhoAreYou
from stagewire.wire.numbering import SenderNumbers
from stagewire.wire.request import Ending, ReturnOffer, SnapshotWish, StageTiming
from stagewire.wire.ring import CancelRequest, Repeat, StartRequest, Step
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import TokenIds

NUM_LAYERS = 6
CONTEXT = 200
TICK_S = 0.05


def copied(message: Message) -> Message:
    """Through the real codec, as bytes."""
    return decode([bytes(frame) for frame in encode(message)])


class Wire:
    """One direction of one connection: in order, late, and silent once it is cut."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last = 0.0
        self.is_cut = False

    def send(self, deliver: Callable[[], None]) -> None:
        self._last = max(self._last, self._world.now + self._world.random.expovariate(200))
        self._world.at(self._last, lambda: None if self.is_cut else deliver())


@dataclass
class Pair:
    """A PAIR connection, or a dial that will never be heard."""

    client: SimClient | None
    generation: int
    to_client: Wire
    to_tail: Wire


class World:
    """Time, randomness, and everybody in it."""

    def __init__(self, seed: int, cuts: list[list[tuple[int, int]]], num_clients: int, num_blocks: int = 40) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._incarnations = count(1)
        self._ports = count(1024)
        self.broker: SimBroker | None = SimBroker(self, next(self._incarnations))
        self.stages = [
            SimStage(self, f"p{p}s{s}", start, end, num_blocks)
            for p, ranges in enumerate(cuts)
            for s, (start, end) in enumerate(ranges)
        ]
        self.clients = [SimClient(self, f"c{i}", "broker" if i % 3 == 2 else "direct") for i in range(num_clients)]
        self._tick()

    def new_endpoint(self) -> str:
        return f"tcp://127.0.0.1:{next(self._ports)}"

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._order), act))

    def _tick(self) -> None:
        for member in (self.broker, *self.stages, *self.clients):
            if member is not None:
                member.tick()
        self.at(self.now + TICK_S, self._tick)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, act = heapq.heappop(self._agenda)
            act()
        self.now = until

    # --- what goes wrong ---

    def kill_broker(self) -> None:
        self.broker = None
        for stage in self.stages:
            stage.broker_gone()
        for client in self.clients:
            client.broker_gone()

    def start_broker(self) -> None:
        if self.broker is None:
            self.broker = SimBroker(self, next(self._incarnations))
            for client in self.clients:
                client.connect()

    def to_broker(self, peer: Peer, message: Message, reply: Callable[[Message], None]) -> None:
        if self.broker is not None:
            self.broker.receive(peer, message, reply)

    def stage_at(self, endpoint: str) -> SimStage | None:
        return next((s for s in self.stages if s.is_alive and s.info.data_endpoint == endpoint), None)


class SimBroker:
    """The broker's core with its feeds and kept payloads."""

    def __init__(self, world: World, incarnation: int) -> None:
        self._world = world
        self.core = BrokerCore(BrokerSettings(), incarnation, world.now)
        self._payloads: dict[str, Generate] = {}
        self._feeds: dict[Epoch, tuple[str, SenderNumbers, Wire]] = {}
        self._peers: dict[Peer, Callable[[Message], None]] = {}

    def receive(self, peer: Peer, message: Message, reply: Callable[[Message], None]) -> None:
        self._peers[peer] = reply
        if not isinstance(message, Generate):
            self._handle(broker_events.Received(peer, message))
            return
        seed = message.sampling.seed
        asked = broker_events.Asked(
            peer,
            message.request_id,
            message.session_id,
            message.model,
            len(message.prompt_token_ids),
            message.max_tokens,
            100,
            self._world.random.getrandbits(63) if seed is None else seed,
        )
        self._handle(asked, message)

    def tick(self) -> None:
        self._handle(broker_events.Tick())
        for endpoint, numbers, wire in self._feeds.values():
            if envelope := numbers.repeat(self._world.now):
                self._push(endpoint, envelope, Repeat(), wire)

    def _handle(self, event: broker_events.Event, generate: Generate | None = None) -> None:
        instructions = self.core.handle(event, self._world.now)
        self.core.check_invariants()
        for instruction in instructions:
            self._perform(instruction, generate)

    def _perform(self, instruction: broker_events.Instruction, generate: Generate | None) -> None:
        match instruction:
            case broker_events.Send(peer, message):
                self._peers[peer](copied(message))
            case broker_events.KeepPayload(request_id):
                assert generate is not None
                self._payloads[request_id] = generate
            case broker_events.DropPayload(request_id):
                del self._payloads[request_id]
            case broker_events.OpenFeed(epoch, endpoint, run):
                self._feeds[epoch] = (endpoint, SenderNumbers(epoch, BROKER, run), Wire(self._world))
            case broker_events.CloseFeed(epoch):
                self._feeds.pop(epoch)[2].is_cut = True
            case broker_events.PushStart(epoch, request_id):
                self._feed(epoch, _start(self._payloads[request_id], instruction))
            case broker_events.PushCancel(epoch, request_id):
                self._feed(epoch, CancelRequest(request_id))

    def _feed(self, epoch: Epoch, message: Message) -> None:
        endpoint, numbers, wire = self._feeds[epoch]
        self._push(endpoint, numbers.next(self._world.now), message, wire)

    def _push(self, endpoint: str, envelope: Envelope, message: Message, wire: Wire) -> None:
        wire.send(lambda: deliver_ring(self._world, endpoint, envelope, message))


def _start(generate: Generate, push: broker_events.PushStart) -> StartRequest:
    return StartRequest(
        push.request_id,
        push.client_id,
        push.session_id,
        replace(generate.sampling, seed=push.seed),
        generate.max_tokens,
        generate.stop_token_ids,
        generate.ignore_eos,
        push.offer,
        generate.prompt_token_ids,
        generate.snapshot,
        generate.restore,
        push.admission_s,
    )


def deliver_ring(world: World, endpoint: str, envelope: Envelope, message: Message) -> None:
    stage = world.stage_at(endpoint)
    if stage is not None:
        stage.perform(stage.core.handle_ring(envelope, copied(message), world.now))
        stage.poke()


class SimStage:
    """A stage's core with the toy model; `kill` and `restart` are a process's."""

    def __init__(self, world: World, name: str, start: int, end: int, num_blocks: int) -> None:
        self._world, self._runs = world, count(1)
        self._range, self._num_blocks, self.name = (start, end), num_blocks, name
        self.loses_next = False
        self.is_alive = False
        self.restart()

    def restart(self) -> None:
        if self.is_alive:
            return
        run = next(self._runs)
        start, end = self._range
        self.info = StageInfo(
            stage_id=self.name,
            run=run,
            data_endpoint=self._world.new_endpoint(),
            model_name="toy",
            model_digest="toy",
            card_digest="",
            num_layers=NUM_LAYERS,
            layer_start=start,
            layer_end=end,
            context_length=CONTEXT,
            vocab_size=VOCAB_SIZE,
            precision="toy",
            kernel="toy",
            is_row_exact=True,
            fingerprint="toy",
            device="cpu",
            threads=1,
            num_blocks=self._num_blocks,
            block_size=BLOCK_SIZE,
            max_sequences=4,
            file_bytes=0,
            weight_bytes=0,
            tensors_digest=f"toy-{start}-{end}",
            cache_blocks=self._num_blocks,
        )
        self._operators = ToyOperators(start, end, NUM_LAYERS, self._num_blocks)
        self.store = KvStore(self._num_blocks, BLOCK_SIZE, self._operators.block_bytes)
        nonces = count(1)
        parts = StageParts(
            store=self.store,
            hidden_size=2,
            is_row_exact=True,
            head_limits=self._head_limits,
            draw_nonce=lambda: b"%s-%d-%d" % (self.name.encode(), run, next(nonces)),
        )
        self.core = StageCore(self.info, parts)
        self._pushes: dict[type, tuple[str, Wire]] = {}
        self.pairs: dict[tuple[str, int], Pair] = {}
        self._connection = 0
        self._to_broker = Wire(self._world)
        self._is_busy = False
        self._beat_at = 0.0
        self._register_at = 0.0
        self.is_alive = True

    def _head_limits(self, assemble: Assemble) -> HeadLimits:
        scheduler = SchedulerLimits(
            num_stages=assemble.num_stages,
            num_blocks=assemble.num_blocks,
            block_size=BLOCK_SIZE,
            max_sequences=4,
            chunk_tokens=32,
            chunk_target_s=1.0,
        )
        return HeadLimits(
            scheduler=scheduler, context_length=CONTEXT, vocab_size=VOCAB_SIZE, end_token_ids=(), step_deadline_s=5.0
        )

    def kill(self) -> None:
        """What it had sent is still under way; what it held is gone, its PAIR peers notice."""
        self.is_alive = False
        for key in [*self.pairs]:
            self.break_pair(key)

    def broker_gone(self) -> None:
        self._connection += 1
        self._to_broker.is_cut = True
        self._to_broker = Wire(self._world)

    def break_pair(self, key: tuple[str, int]) -> None:
        pair = self.pairs.pop(key)
        pair.to_client.is_cut = pair.to_tail.is_cut = True
        if pair.client:
            client, generation = pair.client, pair.generation
            self._world.at(self._world.now + 0.01, lambda: client.link_gone(generation))
        if self.is_alive:
            self.perform(self.core.lose_link(*key, self._world.now))

    def pair_gone(self, key: tuple[str, int]) -> None:
        if self.is_alive and key in self.pairs:
            self.break_pair(key)

    def tick(self) -> None:
        if not self.is_alive:
            return
        now = self._world.now
        if now >= self._beat_at:
            self._beat_at = now + 0.5
            self._control(Heartbeat(self.name, self.info.run, 0, None), "beat")
        if not self.core.is_registered and now >= self._register_at:
            self._register_at = now + 1.0
            self._control(self.core.register())
        self.perform(self.core.tick(now))
        self.poke()

    def _control(self, message: Message, suffix: str = "") -> None:
        connection = self._connection
        peer = Peer(Link.CONTROL, f"{self.name}/{self.info.run}/{connection}{suffix}".encode())
        back = self._to_broker

        def reply(answer: Message) -> None:
            # On the heartbeats' connection nothing but `WhoAreYou` is read, and the loop registers again.
            if not suffix or isinstance(answer, WhoAreYou):
                back.send(lambda: self._from_broker(connection, answer))

        self._to_broker.send(lambda: self._world.to_broker(peer, copied(message), reply))

    def _from_broker(self, connection: int, message: Message) -> None:
        if self.is_alive and connection == self._connection:
            self.perform(self.core.handle_control(message, self._world.now))
            self.poke()

    def poke(self) -> None:
        """Compute a step if there is one and none is being computed."""
        assembly = self.core.assembly
        if not self.is_alive or self._is_busy or assembly is None:
            return
        step = assembly.next_step(self._world.now)
        if step is not None:
            self._is_busy = True
            self.perform(assembly.begin_step(step, self._world.now))
            run, took_s = self.info.run, self._world.random.uniform(0.001, 0.02)
            self._world.at(self._world.now + took_s, lambda: self._computed(run, assembly, step, took_s))

    def _computed(self, run: int, assembly: Assembly, step: Step, took_s: float) -> None:
        if not self.is_alive or run != self.info.run:
            return
        self._is_busy = False
        # A process computes and sends in one go: an epoch that ended meanwhile ends after its step.
        plan = assembly.executor.plan(step)
        output = plan.compute(self._operators)
        if assembly is self.core.assembly:
            draws = assembly.draw(plan, output)
            timing = StageTiming(0, 1, took_s, 0.0, 0.0)
            self.perform(assembly.finish_step(plan, output, draws, timing, self._world.now))
        self.poke()

    def perform(self, instructions: Sequence[StageInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case SendControl(message):
                    self._control(message)
                case SendNext(envelope, message) | SendHead(envelope, message):
                    self._push(type(instruction), envelope, message)
                case ConnectRing(feed, following):
                    self._connect(feed, following)
                case CloseRing():
                    for _, wire in self._pushes.values():
                        wire.is_cut = True
                    self._pushes.clear()
                case Dial():
                    self._dial(instruction)
                case SendLink(client_id, link, message):
                    self._send_link((client_id, link), message)
                case CloseLink(client_id, link):
                    self._close_link((client_id, link))
                case Note():
                    pass
                case Exit():
                    self.kill()
                    return
                case _:
                    raise AssertionError(instruction)

    def _connect(self, feed: str | None, following: str | None) -> None:
        for kind, endpoint in ((SendHead, feed), (SendNext, following)):
            if endpoint is not None:
                self._pushes[kind] = (endpoint, Wire(self._world))

    def _push(self, kind: type, envelope: Envelope, message: Message) -> None:
        if self.loses_next:
            self.loses_next = False
            return
        endpoint, wire = self._pushes[kind]
        wire.send(lambda: deliver_ring(self._world, endpoint, envelope, message))

    def _dial(self, dial: Dial) -> None:
        key = (dial.client_id, dial.link)
        client = next((c for c in self._world.clients if dial.endpoint in c.endpoints()), None)
        generation = client.endpoints()[dial.endpoint] if client else 0
        if client is not None and generation in client.taken:
            client = None  # a second peer: its handshake succeeds, and nobody ever hears it
        elif client is None:
            self._world.at(self._world.now + 0.01, lambda: self.pair_gone(key))
        self.pairs[key] = Pair(client, generation, Wire(self._world), Wire(self._world))
        if client is not None:
            client.taken[generation] = (self, key)
            found = client
            self.pairs[key].to_client.send(lambda: found.handle(client_events.LinkConnected(generation)))
            self._send_link(key, dial.hello)

    def _send_link(self, key: tuple[str, int], message: Message) -> None:
        pair = self.pairs.get(key)
        if pair is not None and pair.client is not None:
            client, generation = pair.client, pair.generation
            pair.to_client.send(lambda: client.handle(client_events.LinkMessage(generation, copied(message))))

    def _close_link(self, key: tuple[str, int]) -> None:
        pair = self.pairs.pop(key, None)
        if pair is not None and pair.client is not None:
            client, generation = pair.client, pair.generation
            pair.to_tail.is_cut = True
            pair.to_client.send(lambda: client.link_gone(generation))

    def from_client(self, key: tuple[str, int], message: Message) -> None:
        pair = self.pairs.get(key)
        if pair is not None:
            pair.to_tail.send(lambda: self._link_message(key, message))

    def _link_message(self, key: tuple[str, int], message: Message) -> None:
        if self.is_alive and key in self.pairs:
            self.perform(self.core.handle_link(*key, copied(message), self._world.now))
            self.poke()


@dataclass
class Seen:
    """What a caller got of one request."""

    prompt: list[int]
    max_tokens: int
    token_ids: list[int] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    is_cancelled: bool = False
    submitted_at: float = 0.0
    ended_at: float = 0.0


class SimClient:
    """A client's core and its caller, who takes tokens as they come."""

    def __init__(self, world: World, name: str, return_path: str) -> None:
        self._world, self.name = world, name
        settings = ClientSettings(client_id=name, return_path=return_path)  # type: ignore[arg-type]
        self.core = ClientCore(settings, name.encode() * 4)
        self.requests: dict[str, Seen] = {}
        self.sockets: dict[int, str] = {}
        self.taken: dict[int, tuple[SimStage, tuple[str, int]]] = {}
        self._connection = 0
        self._to_broker = Wire(world)
        self._ids = count(1)
        self.perform(self.core.start())
        self.connect()

    def endpoints(self) -> dict[str, int]:
        return {endpoint: generation for generation, endpoint in self.sockets.items()}

    def handle(self, event: client_events.Event) -> None:
        instructions = self.core.handle(event, self._world.now)
        self.core.check_invariants()
        self.perform(instructions)

    def connect(self) -> None:
        self.handle(client_events.BrokerConnected())

    def broker_gone(self) -> None:
        self._connection += 1
        self._to_broker.is_cut = True
        self._to_broker = Wire(self._world)
        self.handle(client_events.BrokerDisconnected())

    def tick(self) -> None:
        self.handle(client_events.Tick())

    def link_gone(self, generation: int) -> None:
        if generation in self.sockets:
            self._drop_socket(generation)
            self.handle(client_events.LinkDisconnected(generation))

    def generate(
        self, prompt: list[int], max_tokens: int, seed: int | None = None, snapshot: SnapshotWish | None = None
    ) -> str:
        request_id = f"{self.name}-{next(self._ids)}"
        self.requests[request_id] = Seen(prompt, max_tokens, submitted_at=self._world.now)
        sampling = SamplingParams(temperature=0.0, seed=seed)
        generate = Generate(request_id, "s", None, sampling, max_tokens, (), False, TokenIds.of(prompt), snapshot)
        self.handle(client_events.Submit(generate))
        return request_id

    def cancel(self, request_id: str) -> None:
        self.requests[request_id].is_cancelled = True
        self.handle(client_events.CancelRequest(request_id, discard=False))

    def perform(self, instructions: list[client_events.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case client_events.SendBroker(message):
                    self._send_broker(message)
                case client_events.BindOffer(generation):
                    self._bind(generation)
                case client_events.CloseSocket(generation):
                    self._drop_socket(generation)
                case client_events.SendLink(generation, message):
                    if generation in self.taken:
                        stage, key = self.taken[generation]
                        stage.from_client(key, message)
                case client_events.DeliverTokens(request_id, token_ids):
                    self._take(request_id, token_ids, None)
                case client_events.DeliverEnding(request_id, ending):
                    self._take(request_id, (), ending)
                case client_events.DeliverMilestone() | client_events.Note():
                    pass
                case _:
                    raise AssertionError(instruction)

    def _bind(self, generation: int) -> None:
        endpoint = self._world.new_endpoint()
        self.sockets[generation] = endpoint
        offer = ReturnOffer(endpoint, b"%s-%d" % (self.name.encode(), generation), generation)
        self._world.at(self._world.now + 0.001, lambda: self.handle(client_events.OfferBound(offer)))

    def _drop_socket(self, generation: int) -> None:
        self.sockets.pop(generation, None)
        taken = self.taken.pop(generation, None)
        if taken is not None:
            stage, key = taken
            pair = stage.pairs.get(key)
            if pair is not None:
                pair.to_client.is_cut = True
                pair.to_tail.send(lambda: stage.pair_gone(key))

    def _send_broker(self, message: Message) -> None:
        connection = self._connection
        peer = Peer(Link.FRONTEND, f"{self.name}/{connection}".encode())
        back = self._to_broker

        def reply(answer: Message) -> None:
            back.send(lambda: self._from_broker(connection, answer))

        self._to_broker.send(lambda: self._world.to_broker(peer, copied(message), reply))

    def _from_broker(self, connection: int, message: Message) -> None:
        if connection == self._connection:
            self.handle(client_events.BrokerMessage(message))

    def _take(self, request_id: str, token_ids: tuple[int, ...], ending: Ending | None) -> None:
        seen = self.requests[request_id]
        assert not (seen.endings and token_ids), "a token after the ending"
        seen.token_ids.extend(token_ids)
        if ending is not None:
            seen.endings.append(ending)
            seen.ended_at = self._world.now
        num_tokens, ended = len(seen.token_ids), bool(seen.endings)
        self._world.at(self._world.now, lambda: self.handle(client_events.Consumed(request_id, num_tokens, ended)))
