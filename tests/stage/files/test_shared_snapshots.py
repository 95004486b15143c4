"""Snapshots of many clients: shared blocks count once, whoever is left can be freed, in any order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.in_process import InProcessPipeline, request
from support.snapshots import GREEDY, head_of, pipeline_of
from support.toy_operators import VOCAB_SIZE, expected_tokens

from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import SnapshotRequest
from stagewire.wire.snapshots import SnapshotAction, SnapshotOrder, SnapshotReport

SIZE = 16
LIST_ALL, FREE_ALL = SnapshotAction.LIST_ALL, SnapshotAction.FREE_ALL


def prompt_of(base: int, length: int) -> list[int]:
    return [(7 * base + 3 * i + 1) % VOCAB_SIZE for i in range(length)]


def save(pipeline: InProcessPipeline, number: int, client_id: str, name: str, prompt: list[int]) -> ErrorCode | None:
    """Ask for a snapshot; returns why there is none."""
    asked = replace(request(f"r{number}", prompt, 1, GREEDY), snapshot=SnapshotRequest(name), client_id=client_id)
    pipeline.start(asked)
    pipeline.run()
    return next((ack.code for ack in pipeline.acks if ack.request_id == asked.request_id), None)


def everything(pipeline: InProcessPipeline) -> SnapshotReport:
    return pipeline.ask_snapshots(SnapshotOrder(LIST_ALL), client_id="operator")


@pytest.mark.parametrize(("length", "num_blocks"), [(48, 3), (64, 4), (40, 2 + 22), (16, 1)])
def test_22_runs_of_a_script_take_the_room_of_one(length: int, num_blocks: int) -> None:
    """Each under a name that nobody knows; the stages hold what the head counts, and an operator sees all."""
    pipeline, prompt = pipeline_of(num_blocks=60), prompt_of(1, length)
    for number in range(22):
        assert save(pipeline, number, f"anonymous-{number}", "rules", prompt) is None
    told = everything(pipeline)
    assert [one.client_id for one in told.items] == sorted(f"anonymous-{number}" for number in range(22))
    assert head_of(pipeline).scheduler.snapshots.num_blocks == num_blocks
    assert [store.num_used for store in pipeline.stores] == [num_blocks] * 3
    assert {one.num_own_blocks for one in told.items} == {1 if length % SIZE else 0}
    freed = pipeline.ask_snapshots(SnapshotOrder(FREE_ALL), client_id="anonymous-3")
    assert (freed.num_freed, freed.items) == (1, ())
    assert len(everything(pipeline).items) == 21
    for number in range(22):
        pipeline.ask_snapshots(SnapshotOrder(FREE_ALL), client_id=f"anonymous-{number}")
    assert [store.num_used for store in pipeline.stores] == [0] * 3
    assert head_of(pipeline).scheduler.blocks.num_free == 60


def test_what_shares_nothing_fills_the_pool_and_the_refusal_says_where_to_look() -> None:
    """It counts what is held, and names the command that shows whose it is."""
    pipeline = pipeline_of(num_blocks=12)
    codes = [save(pipeline, number, f"c{number}", "rules", prompt_of(number, 32)) for number in range(4)]
    assert codes == [None, None, None, ErrorCode.SNAPSHOT_LIMIT]
    detail = pipeline.acks[-1].detail
    assert "3 snapshots hold 6 of 12" in detail and "stagewire snapshot list --all" in detail
    assert pipeline.ask_snapshots(SnapshotOrder(FREE_ALL), client_id="c1").num_freed == 1
    assert save(pipeline, 9, "c9", "rules", prompt_of(9, 32)) is None


@pytest.mark.parametrize("cache_blocks", [0, 1, 30])
def test_the_account_covers_what_stages_hold_with_any_cache(cache_blocks: int) -> None:
    """Without one nothing is shared, and nothing is counted as if it were."""
    pipeline = pipeline_of(num_blocks=40, cache_blocks=cache_blocks)
    for number in range(5):
        assert save(pipeline, number, f"c{number}", "rules", prompt_of(2, 48)) is None
    counted = head_of(pipeline).scheduler.snapshots.num_blocks
    assert counted == (15 if cache_blocks == 0 else 3)
    assert [store.num_used for store in pipeline.stores] == [counted] * 3


class SharedSnapshots(RuleBasedStateMachine):
    """Clients save prompts that share beginnings, free one or all, ask, and go away, while others run."""

    @initialize(num_blocks=st.sampled_from([10, 16, 40]), chunk_tokens=st.sampled_from([7, 16, 64]))
    def begin(self, num_blocks: int, chunk_tokens: int) -> None:
        self.pipeline = pipeline_of(num_blocks=num_blocks, chunk_tokens=chunk_tokens, max_sequences=3)
        self.head = head_of(self.pipeline)
        self.prompts: dict[str, tuple[list[int], int]] = {}

    @rule(
        client=st.sampled_from("abc"), name=st.sampled_from(["x", "y"]), base=st.integers(0, 1),
        length=st.integers(1, 60), max_tokens=st.integers(0, 4), is_kept=st.booleans(),
        num_kept=st.none() | st.integers(1, 60),
    )  # fmt: skip
    def ask(
        self, client: str, name: str, base: int, length: int, max_tokens: int, is_kept: bool, num_kept: int | None
    ) -> None:
        asked, prompt = f"r{len(self.prompts)}", prompt_of(base, length)
        self.prompts[asked] = prompt, max_tokens
        wish = SnapshotRequest(name, num_kept) if is_kept else None
        self.pipeline.start(
            replace(request(asked, prompt, max_tokens, GREEDY), snapshot=wish, client_id=f"anonymous-{client}")
        )

    @rule(turns=st.lists(st.integers(0, 2), max_size=30))
    def work(self, turns: list[int]) -> None:
        for index in turns:
            self.pipeline.turn(index)

    @rule(client=st.sampled_from("abc"), name=st.sampled_from(["x", "y"]))
    def free(self, client: str, name: str) -> None:
        self.head.snapshots.free(f"anonymous-{client}", name)

    @rule(client=st.sampled_from("abc"))
    def expire(self, client: str) -> None:
        self.head.snapshots.free(f"anonymous-{client}")

    @rule(index=st.integers(0, 2))
    def clear(self, index: int) -> None:
        self.pipeline.stores[index].clear()

    @rule()
    def rest(self) -> None:
        """Nothing runs: each stage holds exactly what snapshots are counted for, but for ends that are shared."""
        self.pipeline.run()
        full, num_ends = set(), 0
        for one in self.head.scheduler.snapshots.of_all():
            full |= {tuple(one.token_ids[:end]) for end in range(SIZE, one.num_tokens + 1, SIZE)}
            num_ends += one.num_tokens % SIZE > 0
        assert self.head.scheduler.snapshots.num_blocks == len(full) + num_ends
        for store in self.pipeline.stores:
            assert len(full) <= store.num_used <= len(full) + num_ends

    @invariant()
    def books_add_up(self) -> None:
        if not hasattr(self, "pipeline"):
            return
        self.head.check_invariants()
        for store in self.pipeline.stores:
            store.check_invariants()
        for name, output in self.pipeline.outputs.items():
            assert output.token_ids == expected_tokens(self.prompts[name][0], len(output.token_ids), 6)

    def teardown(self) -> None:
        if hasattr(self, "pipeline"):
            self.rest()
            for client in "abc":
                self.head.snapshots.free(f"anonymous-{client}")
            self.rest()
            assert [store.num_used for store in self.pipeline.stores] == [0] * 3


SharedSnapshots.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSharedSnapshots = SharedSnapshots.TestCase
