"""The broker's core among simulated stages and clients on links that lose, repeat, delay and break.

Each link is a queue that a rule empties one message at a time, so links overtake each other freely while each
stays in order, as TCP does. What a broken connection held is lost. After every step the core's invariants hold; at
the end everything is delivered and every request must have exactly one ending within bounded simulated time.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.broker_among_peers import LIMITS, TICK_S, SimulatedPeers
from support.broker_peers import SimRequest, SimStage

from stagewire.broker.core import BrokerCore
from stagewire.broker.events import Link
from stagewire.wire.control import Register
from stagewire.wire.frontend import Cancel
from stagewire.wire.request import FinishReason

# Queue, then a lost stage and its fence, then the client's own patience, with room for one of each twice.
BOUND_S = 90.0


class BrokerAmongPeers(SimulatedPeers, RuleBasedStateMachine):
    """The rules are what can happen; `teardown` heals the world and demands an ending for everything."""

    @initialize(calm_s=st.sampled_from([0, 2, 4]))
    def everybody_says_hello(self, calm_s: int) -> None:
        for client in self.clients:
            client.connection.up.append(self._hello(client))
        for stage in self.stages:
            stage.connection.up.append(Register(stage.info, None))
        self.all_goes_well(calm_s * 4)

    # --- what happens on the links ---

    @rule(number=st.integers(0, 99), count=st.integers(1, 6))
    def broker_receives(self, number: int, count: int) -> None:
        self._up(self._peers()[number % len(self._peers())].connection, count)

    @rule(number=st.integers(0, 99), count=st.integers(1, 6))
    def peer_receives(self, number: int, count: int) -> None:
        self._down(self._peers()[number % len(self._peers())], count)

    @precondition(lambda self: self.feeds)
    @rule(number=st.integers(0, 99))
    def head_receives(self, number: int) -> None:
        epochs = sorted(self.feeds)
        self._fed(epochs[number % len(epochs)], self.feeds[epochs[number % len(epochs)]])

    @precondition(lambda self: self.stray_feeds)
    @rule()
    def head_receives_from_a_dead_broker(self) -> None:
        self._fed(*self.stray_feeds[0])
        self.stray_feeds = [one for one in self.stray_feeds if one[1].messages]

    @precondition(lambda self: self.feeds)
    @rule(number=st.integers(0, 99))
    def feed_loses_a_message(self, number: int) -> None:
        feed = self.feeds[sorted(self.feeds)[number % len(self.feeds)]]
        if feed.messages:
            feed.messages.popleft()
            feed.lost = True

    @rule(number=st.integers(0, 99))
    def connection_breaks(self, number: int) -> None:
        peer = self._peers()[number % len(self._peers())]
        peer.connection = self._connect(peer.connection.peer.link)

    @rule(number=st.integers(0, 99))
    def message_is_repeated(self, number: int) -> None:
        up = self._peers()[number % len(self._peers())].connection.up
        if up:
            up.append(up[0])

    @rule(ticks=st.integers(1, 8))
    def time_passes(self, ticks: int) -> None:
        for _ in range(ticks):
            self._tick()

    @rule(ticks=st.integers(1, 16))
    def all_goes_well(self, ticks: int) -> None:
        """But nothing finishes by itself."""
        for _ in range(ticks):
            self._tick()
            self._deliver_everything()

    # --- what peers do ---

    @rule(number=st.integers(0, 1), session=st.integers(0, 2))
    def client_asks(self, number: int, session: int) -> None:
        client = self.clients[number]
        if len(client.requests) < 12:
            self.num_names += 1
            request_id = f"r{self.num_names}"
            client.requests[request_id] = SimRequest(f"session {session}")
            self._ask(client, request_id)

    @rule(number=st.integers(0, 99))
    def client_cancels(self, number: int) -> None:
        open_requests = [
            (client, request_id)
            for client in self.clients
            for request_id, request in client.requests.items()
            if request.ending is None
        ]
        if open_requests:
            client, request_id = open_requests[number % len(open_requests)]
            client.connection.up.append(Cancel(request_id))

    @rule(number=st.integers(0, 99))
    def head_finishes_a_request(self, number: int) -> None:
        heads = [stage for stage in self.stages if stage.is_head and stage.running and self._ring_is_whole(stage)]
        if heads:
            head = heads[number % len(heads)]
            request_ids = list(head.running)
            self._tail_ends(head, request_ids[number % len(request_ids)], FinishReason.LENGTH)

    @rule(number=st.integers(0, 99))
    def client_gets_tokens(self, number: int) -> None:
        running = [(names[0], one) for stage in self.stages for one, names in stage.running.items()]
        if running:
            client_id, request_id = running[number % len(running)]
            (client,) = [client for client in self.clients if client.name == client_id]
            client.requests[request_id].streams = True

    @rule(number=st.integers(0, 2))
    def stage_faults(self, number: int) -> None:
        stage = self.stages[number]
        if stage.alive and stage.epoch:
            stage.broken = True

    @rule(number=st.integers(0, 2))
    def stage_is_killed(self, number: int) -> None:
        self._kill(self.stages[number])

    @rule(number=st.integers(0, 2))
    def stage_is_restarted(self, number: int) -> None:
        self._kill(self.stages[number])
        self.num_names += 1
        info = replace(self.stages[number].info, run=self.num_names + 100)
        stage = self.stages[number] = SimStage(info, self._connect(Link.CONTROL))
        stage.connection.up.append(Register(info, None))

    @precondition(lambda self: self.num_brokers < 3)
    @rule(clock_step=st.integers(-2, 2), keeps_feeds=st.booleans())
    def broker_restarts(self, clock_step: int, keeps_feeds: bool) -> None:
        """With a clock that may have gone back; what it had sent may still be on its way to heads."""
        self.num_brokers += 1
        self.core = BrokerCore(LIMITS, 1000 + clock_step, self.now)
        self.payloads.clear()
        self.stray_feeds = [*self.feeds.items()] if keeps_feeds else []
        self.feeds.clear()
        for peer in self._peers():
            peer.connection = self._connect(peer.connection.peer.link)

    # --- invariants ---

    @invariant()
    def the_loop_keeps_payloads_only_for_requests_that_may_be_pushed(self) -> None:
        self.core.check_invariants()
        assert len(self.payloads) <= LIMITS.max_queued + 2 * len(self.stages) * LIMITS.feed_credit

    def teardown(self) -> None:
        """Heal every link; nobody dies any more. Then all ends, within `BOUND_S`."""
        deadline = self.now + BOUND_S
        while self._open_requests() and self.now < deadline:
            self._finish_one_each()
            self.all_goes_well(1)
        assert self._open_requests() == []
        for _ in range(round(15 / TICK_S)):
            self._finish_one_each()
            self.all_goes_well(1)
        assert self.payloads == set(), "a payload is left"
        assert all(not stage.running for stage in self.stages if stage.alive), "a head runs what nobody waits for"

    def _open_requests(self) -> list[str]:
        return [
            request_id
            for client in self.clients
            for request_id, request in client.requests.items()
            if request.ending is None
        ]

    def _finish_one_each(self) -> None:
        for stage in self.stages:
            if stage.is_head and stage.running and self._ring_is_whole(stage):
                self._tail_ends(stage, next(iter(stage.running)), FinishReason.LENGTH)


TestBrokerAmongPeers = BrokerAmongPeers.TestCase
TestBrokerAmongPeers.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
