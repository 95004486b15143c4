"""The whole system under faults, in simulated time: every request ends exactly once, with the right tokens.

Messages are delayed, reordered between links, and lost with the connection or process that held them; stages and
brokers die and come back. After the last fault everything ends in bounded time and nothing is left behind.
"""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.simulated_client import Seen
from support.simulated_stage import NUM_LAYERS
from support.toy_operators import expected_tokens
from support.world import World

from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import FinishReason, SnapshotRequest
from stagewire.wire.timing import RequestTiming

ONE = [[(0, 6)]]
TWO = [[(0, 2), (2, 6)]]
THREE = [[(0, 2), (2, 4), (4, 6)]]
REPLICAS = [[(0, 3), (3, 6)], [(0, 6)]]
SETTLED_S = 90.0


def assert_true_so_far(seen: Seen) -> None:
    """No gap, no repetition, no wrong token, at most one ending."""
    assert seen.token_ids == expected_tokens(seen.prompt, len(seen.token_ids), NUM_LAYERS)
    assert len(seen.endings) <= 1
    if seen.endings:
        ending = seen.endings[0]
        if seen.stop_after is None:
            assert ending.num_tokens in (None, len(seen.token_ids))
        elif ending.finish_reason is FinishReason.STOP and ending.timing is not None:
            assert ending.usage.completion_tokens == seen.stop_after == len(seen.token_ids)
        if ending.finish_reason is FinishReason.LENGTH and seen.stop_after is None:
            assert len(seen.token_ids) == seen.max_tokens
        if ending.timing is not None:
            assert_times_fit(ending.timing, seen.ended_at - seen.submitted_at)


def assert_times_fit(timing: RequestTiming, total_s: float) -> None:
    """Whatever has happened, no part is less than nothing, and together they fit into the request's time."""
    parts = [getattr(timing, field.name) for field in fields(timing) if field.name != "unread_s"]
    seconds = [one for part in parts for one in (part if isinstance(part, tuple) else (part,))]
    assert min(seconds) >= -1e-9, timing
    assert sum(seconds) <= total_s + 1e-9, timing


def assert_settled(world: World) -> None:
    """Nobody waits any more, and no stage holds a block or a request."""
    for client in world.clients:
        for request_id, seen in client.requests.items():
            assert len(seen.endings) == 1, request_id
    for stage in world.stages:
        if stage.core.stage_epoch is not None:
            assert stage.core.stage_epoch.report().requests == ()
            stage.store.check_invariants()
            assert stage.store.num_used == 0


def free_snapshots(world: World) -> None:
    """All stages of a pipeline hold the same ones, and give them up together."""
    for stage in world.stages:
        head = stage.core.stage_epoch.head if stage.core.stage_epoch else None
        for client in world.clients if head else ():
            assert head is not None
            for snapshot in head.snapshots.of_client(client.name):
                held = [other.store.length(snapshot.seq_id) for other in world.stages if other.core.stage_epoch]
                assert snapshot.num_tokens in held
                head.snapshots.free(client.name, snapshot.name)
    world.run(2.0)


@pytest.mark.parametrize("cuts", [ONE, TWO, THREE, REPLICAS])
def test_many_requests_of_many_clients_get_their_tokens(cuts: list[list[tuple[int, int]]]) -> None:
    """Without faults all finish, whatever the cuts, with more sequences than places and blocks run short."""
    world = World(3, cuts, num_clients=3, num_blocks=14)
    world.run(4.0)
    for number in range(12):
        world.clients[number % 3].generate(list(range(1, 4 + 5 * number)), max_tokens=6 + number)
    world.run(30.0)
    for client in world.clients:
        for seen in client.requests.values():
            assert_true_so_far(seen)
            assert [ending.finish_reason for ending in seen.endings] == [FinishReason.LENGTH]
    assert_settled(world)
    # Whether a pipeline sees a prefix again before or after it is public depends on how they share the requests.
    assert any(stage.store.statistics.restored_tokens > 0 for stage in world.stages), "the cache is in play"


def test_a_lost_stage_fails_its_requests_within_five_seconds_and_a_returning_one_serves_again() -> None:
    """Killed in mid-stream: a typed ending, the tokens before it stay, and the pipeline becomes whole again."""
    world = World(4, TWO, num_clients=1)
    world.run(4.0)
    client = world.clients[0]
    first = client.requests[client.generate([1, 2, 3], max_tokens=190)]
    world.run(0.5)
    assert first.token_ids and not first.endings
    world.stages[1].kill()
    world.run(5.0)
    (ending,) = first.endings
    assert (ending.finish_reason, ending.code) == (FinishReason.FAILED, ErrorCode.STAGE_LOST)
    world.stages[1].restart()
    second = client.requests[client.generate([1, 2, 3], max_tokens=5)]
    world.run(10.0)
    assert second.token_ids == expected_tokens([1, 2, 3], 5, NUM_LAYERS)
    assert_settled(world)


def test_a_stage_that_comes_back_empty_costs_a_miss_and_no_token() -> None:
    """The others still hold what it has lost; the counters say that it was the one."""
    world = World(4, THREE, num_clients=1)
    world.run(4.0)
    client, prompt = world.clients[0], [1 + (7 * i) % 60 for i in range(50)]
    client.generate(prompt, max_tokens=5)
    world.run(5.0)
    world.stages[1].kill()
    world.run(5.0)
    world.stages[1].restart()
    world.run(5.0)
    seen = []
    for _ in range(2):
        seen.append(client.requests[client.generate(prompt, max_tokens=5)])
        world.run(5.0)
    endings = [one.endings[0] for one in seen]
    assert [one.token_ids for one in seen] == [expected_tokens(prompt, 5, NUM_LAYERS)] * 2
    assert [ending.usage.cached_tokens for ending in endings] == [0, 49]
    assert [ending.cache.miss_stages for ending in endings] == [0b010, 0]
    assert_settled(world)


def test_a_stage_that_registers_again_before_it_is_welcomed_serves_and_is_adopted() -> None:
    """The second time comes while its pipeline is assembled; another broker hears several times what it serves."""
    world = World(5, TWO, num_clients=1)
    world.run(4.0)
    client, stage = world.clients[0], world.stages[1]
    stage.kill()
    world.run(5.0)
    stage.restart(late_s=0.6)
    world.run(5.0)
    assert stage.num_registered >= 2
    assembly, before = stage.core.stage_epoch, stage.num_registered
    assert assembly is not None and assembly.epoch == Epoch(1, 2), "assembled once"
    seen = client.requests[client.generate([5, 6, 7], max_tokens=190)]
    world.run(0.5)
    world.kill_broker()
    world.start_broker()
    world.run(30.0)
    assert stage.num_registered >= before + 2
    assert stage.core.stage_epoch is assembly
    assert seen.token_ids == expected_tokens([5, 6, 7], 190, NUM_LAYERS)
    assert [ending.finish_reason for ending in seen.endings] == [FinishReason.LENGTH]
    assert_settled(world)


def test_a_restarting_broker_interrupts_no_stream() -> None:
    """It stands in no token's way, adopts what runs, and hears of the ending."""
    world = World(5, TWO, num_clients=2)
    world.run(4.0)
    seen = [c.requests[c.generate([5, 6, 7], max_tokens=190)] for c in world.clients]
    world.run(0.5)
    before = [len(s.token_ids) for s in seen]
    world.kill_broker()
    world.run(0.5)
    assert all(len(s.token_ids) > count for s, count in zip(seen, before, strict=True))
    world.start_broker()
    world.run(30.0)
    for one in seen:
        assert_true_so_far(one)
        assert [ending.finish_reason for ending in one.endings] == [FinishReason.LENGTH]
    assert_settled(world)


@pytest.mark.parametrize("target", ["next", "feed"])
def test_a_lost_message_is_noticed(target: str) -> None:
    """On the hop or on the feed: the epoch ends with a typed error instead of a stream that just stops."""
    world = World(6, TWO, num_clients=1)
    world.run(4.0)
    client = world.clients[0]
    seen = client.requests[client.generate([5, 6, 7], max_tokens=190)]
    world.run(0.5)
    world.stages[0 if target == "next" else 1].loses_next = True
    world.run(5.0)
    assert [ending.code for ending in seen.endings] == [ErrorCode.STAGE_LOST]
    after = client.requests[client.generate([5, 6, 7], max_tokens=5)]
    world.run(10.0)
    assert after.token_ids == expected_tokens([5, 6, 7], 5, NUM_LAYERS)


def test_a_broken_return_link_costs_no_token() -> None:
    """It is replaced by the next endpoint, and what was under way is sent again."""
    world = World(7, TWO, num_clients=1)
    world.run(4.0)
    client = world.clients[0]
    seen = client.requests[client.generate([5, 6, 7], max_tokens=150)]
    for _ in range(6):
        world.run(0.4)
        tail = world.stages[1]
        for key in [*tail.pairs]:
            tail.break_pair(key)
    world.run(30.0)
    assert_true_so_far(seen)
    assert [ending.finish_reason for ending in seen.endings] == [FinishReason.LENGTH]


@pytest.mark.parametrize("who", [0, 2], ids=["direct", "broker"])
@pytest.mark.parametrize("cuts", [ONE, TWO, THREE, REPLICAS])
def test_a_stop_string_ends_a_request_as_a_stop_on_every_way(cuts: list[list[tuple[int, int]]], who: int) -> None:
    """The tail's ending comes, with what it knows; also when the link breaks as the client asks for it."""
    for is_broken in (False, True):
        world = World(1, cuts, num_clients=3)
        world.run(4.0)
        client = world.clients[who]
        seen = client.requests[client.generate([1, 2, 3], 90)]
        while len(seen.token_ids) < 5:
            world.run(0.01)
        if is_broken:
            for stage in world.stages:
                for key in [*stage.pairs]:
                    stage.break_pair(key)
        client.stop(next(iter(client.requests)))
        world.run(4.0)
        assert_true_so_far(seen)
        (ending,) = seen.endings
        assert (ending.finish_reason, ending.usage.prompt_tokens) == (FinishReason.STOP, 3)
        assert seen.stop_after is not None and 5 <= ending.usage.completion_tokens == seen.stop_after < 90
        assert ending.timing is not None and ending.num_tokens is not None
        world.run(SETTLED_S)
        assert_settled(world)


class Faults(RuleBasedStateMachine):
    """Any faults in any order."""

    @initialize(seed=st.integers(0, 10_000), cuts=st.sampled_from([ONE, TWO, THREE, REPLICAS]))
    def begin(self, seed: int, cuts: list[list[tuple[int, int]]]) -> None:
        self.world = World(seed, cuts, num_clients=3, num_blocks=14)
        self.world.run(4.0)

    @rule(
        who=st.integers(0, 2),
        num_prompt=st.integers(0, 60),
        max_tokens=st.integers(0, 100),
        seed=st.none() | st.just(9),
    )
    def generate(self, who: int, num_prompt: int, max_tokens: int, seed: int | None) -> None:
        self.world.clients[who].generate([1 + (7 * i) % 60 for i in range(num_prompt)], max_tokens, seed)

    @rule(who=st.integers(0, 2), num_prompt=st.integers(1, 40), num_kept=st.integers(1, 40), name=st.sampled_from("ab"))
    def snapshot(self, who: int, num_prompt: int, num_kept: int, name: str) -> None:
        """Its request may be refused, where too much is kept already or the place is beyond the prompt."""
        prompt = [1 + (7 * i) % 60 for i in range(num_prompt)]
        self.world.clients[who].generate(prompt, 3, snapshot=SnapshotRequest(name, num_kept))

    @rule(who=st.integers(0, 2), which=st.integers(0, 5))
    def cancel(self, who: int, which: int) -> None:
        client = self.world.clients[who]
        live = [request_id for request_id, seen in client.requests.items() if not seen.endings]
        if live:
            client.cancel(live[which % len(live)])

    @rule(who=st.integers(0, 2), which=st.integers(0, 5))
    def stop(self, who: int, which: int) -> None:
        """Once for a request: what comes after it is not looked at."""
        client = self.world.clients[who]
        live = [key for key, seen in client.requests.items() if seen.token_ids and not seen.endings]
        live = [key for key in live if client.requests[key].stop_after is None]
        if live:
            client.stop(live[which % len(live)])

    @rule(seconds=st.sampled_from([0.02, 0.1, 0.5, 2.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.world.run(seconds)

    @rule(which=st.integers(0, 2))
    def kill_stage(self, which: int) -> None:
        stage = self.world.stages[which % len(self.world.stages)]
        if stage.is_alive:
            stage.kill()

    @rule(which=st.integers(0, 2), late_s=st.sampled_from([0.0, 0.6, 1.2]))
    def restart_stage(self, which: int, late_s: float) -> None:
        """Perhaps so far from the broker that it registers more than once."""
        self.world.stages[which % len(self.world.stages)].restart(late_s)

    @rule(which=st.integers(0, 2))
    def clear_a_cache(self, which: int) -> None:
        """At any moment, also between a step's planning at the head and its computing."""
        self.world.stages[which % len(self.world.stages)].store.clear()

    @rule(which=st.integers(0, 2))
    def lose_a_message(self, which: int) -> None:
        self.world.stages[which % len(self.world.stages)].loses_next = True

    @rule(which=st.integers(0, 2))
    def break_return_links(self, which: int) -> None:
        stage = self.world.stages[which % len(self.world.stages)]
        for key in [*stage.pairs]:
            stage.break_pair(key)

    @precondition(lambda self: self.world.broker)
    @rule()
    def kill_broker(self) -> None:
        self.world.kill_broker()

    @rule()
    def start_broker(self) -> None:
        self.world.start_broker()

    @invariant()
    def what_was_delivered_is_right(self) -> None:
        for client in self.world.clients:
            for seen in client.requests.values():
                assert_true_so_far(seen)

    @invariant()
    def no_request_is_on_two_pipelines(self) -> None:
        """Among the pipelines that the broker knows; a fenced one is dead whatever it holds."""
        if self.world.broker is None:
            return
        held = [
            request.request_id
            for stage in self.world.stages
            if stage.is_alive and stage.core.stage_epoch and stage.core.stage_epoch.is_sound
            for request in stage.core.stage_epoch.report().requests
        ]
        assert len(held) == len(set(held))

    def teardown(self) -> None:
        """Everything comes back, and everything ends."""
        if not hasattr(self, "world"):
            return
        self.world.start_broker()
        for stage in self.world.stages:
            stage.restart()
        self.world.run(SETTLED_S)
        self.what_was_delivered_is_right()
        free_snapshots(self.world)
        assert_settled(self.world)


Faults.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestFaults = Faults.TestCase
