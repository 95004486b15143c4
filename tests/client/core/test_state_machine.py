"""The client's core against a broker and tails that lose, repeat, delay and reorder what a network can.

The tail's side of the return link is the real one. Every request ends exactly once in bounded time, and its caller
gets exactly a prefix of what was sent: in order, no gap, no repetition.
"""

from __future__ import annotations

from typing import Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.client_network import CLIENT, Broker, Caller, SimulatedNetwork, Socket, Tail, token

from stagewire.client.core.client_core import ClientCore
from stagewire.client.core.events import (
    BrokerConnected,
    BrokerDisconnected,
    BrokerMessage,
    CancelRequest,
    Consumed,
    HoldRequest,
    LinkConnected,
    LinkDisconnected,
    LinkMessage,
    StopRequest,
    Submit,
    Tick,
)
from stagewire.client.settings import ClientSettings
from stagewire.stage.tail.link_instructions import CloseLink
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import Dispatched, Generate, RelayToClient
from stagewire.wire.request import Ending, FinishReason, Usage
from stagewire.wire.returns import RETURN_WINDOW, ReturnNext
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import TokenIds

STEP_S = 0.2
BOUND_S = 120.0


class ClientMachine(SimulatedNetwork, RuleBasedStateMachine):
    """Everything that can happen to one client, in any order."""

    @initialize(path=st.sampled_from(["direct", "broker"]), can_dial=st.booleans())
    def begin(self, path: Literal["direct", "broker"], can_dial: bool) -> None:
        self.can_dial = can_dial
        self.core = ClientCore(ClientSettings(client_id=CLIENT, return_path=path), b"nonce")

    # --- rules: the caller ------------------------------------------------------------------------------------

    @rule(num_planned=st.sampled_from([0, 1, 3, 40, 3 * RETURN_WINDOW]))
    def submit(self, num_planned: int) -> None:
        request_id = f"r{len(self.callers)}"
        self.callers[request_id] = Caller(num_planned)
        sampling = SamplingParams(temperature=0.0)
        self.handle(Submit(Generate(request_id, "s", None, sampling, num_planned, (), False, TokenIds.of([1]))))

    def pick(self, which: int) -> str | None:
        return f"r{which % len(self.callers)}" if self.callers else None

    @rule(which=st.integers(0, 7), discard=st.booleans())
    def cancel(self, which: int, discard: bool) -> None:
        request_id = self.pick(which)
        if request_id:
            self.callers[request_id].is_discarded |= discard
            self.handle(CancelRequest(request_id, discard))

    @rule(which=st.integers(0, 7))
    def stop(self, which: int) -> None:
        """The caller finds a stop string in what has come."""
        request_id = self.pick(which)
        if request_id and self.callers[request_id].token_ids:
            self.callers[request_id].is_discarded = True
            self.handle(StopRequest(request_id, len(self.callers[request_id].token_ids)))

    @rule(which=st.integers(0, 7), paused=st.booleans())
    def hold(self, which: int, paused: bool) -> None:
        if request_id := self.pick(which):
            self.handle(HoldRequest(request_id, paused))

    @rule(which=st.integers(0, 7), num_tokens=st.sampled_from([1, 10, RETURN_WINDOW]))
    def consume(self, which: int, num_tokens: int) -> None:
        if request_id := self.pick(which):
            caller = self.callers[request_id]
            caller.num_taken = min(len(caller.token_ids), caller.num_taken + num_tokens)
            is_over = bool(caller.endings) and caller.num_taken == len(caller.token_ids)
            self.handle(Consumed(request_id, caller.num_taken, is_over))

    # --- rules: the network -----------------------------------------------------------------------------------

    @rule(num_messages=st.integers(1, 20))
    def frontend_up(self, num_messages: int) -> None:
        for _ in range(min(num_messages, len(self.to_broker))):
            message = self.to_broker.popleft()
            if self.broker is not None:
                self.broker_receives(message)

    @rule(num_messages=st.integers(1, 20))
    def frontend_down(self, num_messages: int) -> None:
        for _ in range(min(num_messages, len(self.to_client))):
            self.handle(BrokerMessage(self.to_client.popleft()))

    @rule(which=st.integers(0, 3), num_messages=st.integers(1, 20))
    def link_to_client(self, which: int, num_messages: int) -> None:
        for generation in sorted(self.sockets)[which : which + 1]:
            for _ in range(num_messages):
                socket = self.sockets.get(generation)
                if socket is None or not socket.to_client:
                    break
                event = socket.to_client.popleft()
                if isinstance(event, LinkDisconnected):
                    del self.sockets[generation]
                    self.sockets[generation] = Socket(socket.offer)
                self.handle(event)

    @rule(which=st.integers(0, 3), num_messages=st.integers(1, 20))
    def link_to_tail(self, which: int, num_messages: int) -> None:
        for generation in sorted(self.sockets)[which : which + 1]:
            for _ in range(num_messages):
                socket = self.sockets.get(generation)
                if socket is None or not socket.to_tail:
                    break
                message = socket.to_tail.popleft()
                if socket.peer is not None and socket.peer[0] == self.tail.epoch:
                    self.perform_tail(self.tail.link.receive(socket.peer[1], message, self.now))

    @rule(num_steps=st.integers(1, 100))
    def generate(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.perform_tail(self.tail.step(self.now))
            self.tail_reports()

    def tail_reports(self) -> None:
        """The head tells the broker what has ended, and is told of nothing."""
        if self.broker is not None:
            for request_id in [one for one in self.broker.running if one not in self.tail.requests]:
                self.broker.ended[request_id] = [self.broker.running.pop(request_id)]

    @precondition(lambda self: self.broker is not None and self.broker.waiting)
    @rule()
    def dispatch(self) -> None:
        broker, epoch = self.broker, self.tail.epoch
        assert broker is not None
        request_id, generate = next(iter(broker.waiting.items()))
        del broker.waiting[request_id]
        offer = broker.offer if epoch not in broker.introduced else None
        if offer is not None:
            broker.offer, broker.spent = None, offer.generation
            broker.introduced.add(epoch)
        broker.running[request_id] = Dispatched(request_id, epoch, offer.generation if offer else None)
        self.tell_client(broker.running[request_id])
        self.perform_tail(self.tail.start(request_id, generate.max_tokens or 0, offer, self.now))

    @rule(num_rounds=st.integers(1, 8), num_tokens=st.integers(0, 3))
    def all_goes_well(self, num_rounds: int, num_tokens: int) -> None:
        """For a while."""
        for _ in range(num_rounds):
            self.pass_on(num_tokens)
            self.wait(0.05)

    # --- rules: faults ----------------------------------------------------------------------------------------

    @precondition(lambda self: not self.is_connected and self.broker is not None)
    @rule()
    def connect(self) -> None:
        self.is_connected = True
        self.connection += 1
        self.handle(BrokerConnected())

    @precondition(lambda self: self.is_connected)
    @rule()
    def disconnect(self) -> None:
        """The frontend connection breaks; what is under way in it is lost."""
        self.is_connected = False
        self.to_broker.clear()
        self.to_client.clear()
        self.handle(BrokerDisconnected())

    @rule()
    def kill_broker(self) -> None:
        self.broker = None
        if self.is_connected:
            self.disconnect()

    @rule()
    def start_broker(self) -> None:
        """It learns from the head what runs; the tail greets again on the relay."""
        if self.broker is None:
            self.broker = Broker(next(self.incarnations))
            for request_id in self.tail.requests:
                self.broker.running[request_id] = Dispatched(request_id, self.tail.epoch, None)
            self.perform_tail(self.tail.link.reset_relay(self.now))

    @rule(which=st.integers(0, 3))
    def break_link(self, which: int) -> None:
        """A connection resets; what is under way in both directions is lost."""
        for generation in sorted(self.sockets)[which : which + 1]:
            socket = self.sockets[generation]
            peer, socket.peer = socket.peer, None
            if peer is None:
                continue
            self.sockets[generation] = Socket(socket.offer, has_stranger=True)
            self.handle(LinkDisconnected(generation))
            if peer[0] == self.tail.epoch:
                self.perform_tail(self.tail.link.lose(peer[1], self.now))

    @rule(which=st.integers(0, 3))
    def stranger(self, which: int) -> None:
        """Somebody connects first and stays silent."""
        for generation in sorted(self.sockets)[which : which + 1]:
            socket = self.sockets[generation]
            if socket.peer is None and not socket.has_stranger:
                socket.has_stranger = True
                socket.to_client.append(LinkConnected(generation))

    @rule(which=st.integers(0, 3))
    def mad_tail(self, which: int) -> None:
        """A link says what it must not."""
        for generation in sorted(self.sockets)[which : which + 1]:
            socket = self.sockets[generation]
            if socket.peer is not None:
                socket.to_client.append(LinkMessage(generation, ReturnNext(socket.offer)))

    @rule(which=st.integers(0, 20))
    def lose_relayed(self, which: int) -> None:
        """The broker could not pass a message on; nobody hears of it."""
        self.generate(2)
        relayed = [number for number, one in enumerate(self.to_client) if isinstance(one, RelayToClient)]
        if relayed:
            del self.to_client[relayed[which % len(relayed)]]

    @rule()
    def repeat_frontend(self) -> None:
        """The broker says its last word twice."""
        if self.to_client:
            self.to_client.append(self.to_client[-1])

    @rule(can_bind=st.booleans(), can_dial=st.booleans())
    def weather(self, can_bind: bool, can_dial: bool) -> None:
        self.can_bind, self.can_dial = can_bind, can_dial

    @rule()
    def new_epoch(self) -> None:
        """The pipeline dies and another is assembled; the broker ends what ran on it."""
        for instruction in self.tail.link.close():
            assert isinstance(instruction, CloseLink)
            self.hang_up(instruction.link)
        died, self.tail = self.tail, Tail(Epoch(next(self.incarnations), next(self.epochs)))
        if self.broker is None:
            return
        lost = Ending(FinishReason.FAILED, None, Usage(1, 0), (), ErrorCode.STAGE_LOST)
        for request_id, said in list(self.broker.ended.items()):
            if any(isinstance(one, Dispatched) and one.epoch == died.epoch for one in said):
                self.broker_ends(request_id, lost)
        for request_id in list(self.broker.running):
            del self.broker.running[request_id]
            self.broker_ends(request_id, lost)

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.1, 3.0]))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.05
            self.handle(Tick())
            self.perform_tail(self.tail.link.tick(self.now))

    # --- what must hold ---------------------------------------------------------------------------------------

    @invariant()
    def callers_have_a_prefix_and_at_most_one_ending(self) -> None:
        for request_id, caller in self.callers.items():
            assert caller.token_ids == [token(request_id, n) for n in range(len(caller.token_ids))]
            assert len(caller.endings) <= 1
            for one in caller.endings:
                if not caller.is_discarded:
                    assert one.ending.num_tokens in (None, len(caller.token_ids))
                if one.ending.finish_reason is FinishReason.LENGTH and not caller.is_discarded:
                    assert len(caller.token_ids) == caller.num_planned

    @invariant()
    def sockets_are_bounded(self) -> None:
        assert len(self.sockets) <= 1 + 4 * (len(self.core._links._tails) + 1)

    def teardown(self) -> None:
        """When the weather is good again, all ends within a bounded time."""
        if not hasattr(self, "core"):
            return
        self.weather(True, True)
        self.start_broker()
        for request_id in self.callers:
            self.handle(HoldRequest(request_id, paused=False))
        until = self.now + BOUND_S
        while self.now < until and not all(caller.endings for caller in self.callers.values()):
            self.settle()
        self.callers_have_a_prefix_and_at_most_one_ending()
        for request_id, caller in self.callers.items():
            assert len(caller.endings) == 1, request_id

    def settle(self) -> None:
        if not self.is_connected:
            self.connect()
        self.pass_on(RETURN_WINDOW)
        for number in range(len(self.callers)):
            self.consume(number, 10 * RETURN_WINDOW)
        self.wait(STEP_S)

    def pass_on(self, num_tokens: int) -> None:
        """All that is under way arrives, and the tail goes on."""
        self.frontend_up(10_000)
        self.frontend_down(10_000)
        while self.broker and self.broker.waiting:
            self.dispatch()
        self.generate(num_tokens)
        for index in range(len(self.sockets)):
            self.link_to_client(index, 10_000)
            self.link_to_tail(index, 10_000)


ClientMachine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestClientMachine = ClientMachine.TestCase
