"""A stage of the simulated world: the real core, with the toy model."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from support.simulated_links import Pair, Wire, copied, deliver_ring
from support.toy_operators import VOCAB_SIZE, ToyOperators

from stagewire.broker.events import Link, Peer
from stagewire.client.core import events as client_events
from stagewire.stage.compute.operators import BLOCK_SIZE
from stagewire.stage.core import StageCore, StageParts
from stagewire.stage.head.limits import HeadLimits
from stagewire.stage.instructions import CloseRing, ConnectRing, Exit, SendControl, SendHead, SendNext
from stagewire.stage.instructions import Instruction as StageInstruction
from stagewire.stage.kv.store import KvStore
from stagewire.stage.schedule.limits import SchedulerLimits
from stagewire.stage.stage_epoch import StageEpoch, TakenStep
from stagewire.stage.tail.link_instructions import CloseLink, Dial, SendLink
from stagewire.wire.codec import Envelope, Message
from stagewire.wire.control import Assemble, Heartbeat, Register, StageInfo
from stagewire.wire.frontend import WhoAreYou
from stagewire.wire.note import Note
from stagewire.wire.request import StageTiming

if TYPE_CHECKING:
    from support.world import World

NUM_LAYERS = 6
CONTEXT = 200


class SimStage:
    """A stage's core with the toy model; `kill` and `restart` are a process's."""

    def __init__(self, world: World, name: str, start: int, end: int, num_blocks: int) -> None:
        self._world, self._runs = world, count(1)
        self._range, self._num_blocks, self.name = (start, end), num_blocks, name
        self.loses_next = False
        self.is_alive = False
        self.restart()

    def restart(self, late_s: float = 0.0) -> None:
        """What it and the broker say to each other is `late_s` late; above 0.5 it registers more than once."""
        if self.is_alive:
            return
        self._late_s = late_s
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
        self.num_registered = 0
        self._to_broker = Wire(self._world, late_s)
        self._is_busy = False
        self._unread: deque[Message] = deque()
        self._beat_at = 0.0
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
        self._to_broker = Wire(self._world, self._late_s)

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
        self.perform(self.core.tick(now))
        self.poke()

    def _control(self, message: Message, suffix: str = "") -> None:
        run, connection = self.info.run, self._connection
        peer = Peer(Link.CONTROL, f"{self.name}/{self.info.run}/{connection}{suffix}".encode())
        back = self._to_broker
        self.num_registered += isinstance(message, Register)

        def reply(answer: Message) -> None:
            # On the heartbeats' connection nothing but `WhoAreYou` is read, and the loop registers again.
            if not suffix or isinstance(answer, WhoAreYou):
                back.send(lambda: self._from_broker(run, connection, answer))

        self._to_broker.send(lambda: self._world.to_broker(peer, copied(message), reply))

    def _from_broker(self, run: int, connection: int, message: Message) -> None:
        """Like a process, read it only between two steps."""
        if self.is_alive and (run, connection) == (self.info.run, self._connection):
            self._unread.append(message)
            self._read()

    def _read(self) -> None:
        while self._unread and self.is_alive and not self._is_busy:
            self.perform(self.core.handle_control(self._unread.popleft(), self._world.now))
            self.poke()

    def poke(self) -> None:
        """Compute a step if there is one and none is being computed."""
        stage_epoch = self.core.stage_epoch
        if not self.is_alive or self._is_busy or stage_epoch is None:
            return
        taken = stage_epoch.take(self._world.now)
        if taken is not None:
            self._is_busy = True
            self.perform(stage_epoch.begin(taken.step, self._world.now))
            run, took_s = self.info.run, self._world.random.uniform(0.001, 0.02)
            self._world.at(self._world.now + took_s, lambda: self._computed(run, stage_epoch, taken, took_s))

    def _computed(self, run: int, stage_epoch: StageEpoch, taken: TakenStep, took_s: float) -> None:
        if not self.is_alive or run != self.info.run:
            return
        assert stage_epoch is self.core.stage_epoch, "an epoch ends between two steps, as in a process"
        self._is_busy = False
        plan = stage_epoch.executor.plan(taken.step)
        output = plan.compute(self._operators)
        draws = stage_epoch.draw(plan, output)
        timing = StageTiming(0, 1, took_s, 0.0, 0.0)
        self.perform(stage_epoch.finish(taken, plan, output, draws, timing, self._world.now))
        self._read()
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
