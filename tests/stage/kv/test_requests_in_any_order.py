"""Requests, snapshots and files in any order, against a model that recomputes everything."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.in_process import request
from support.toy_operators import VOCAB_SIZE, expected_tokens
from support.toy_pipelines import CUTS, GREEDY, toy_pipeline

from stagewire.stage.files.disk_tier import DiskTier
from stagewire.wire.request import FinishReason, SnapshotRequest
from stagewire.wire.snapshots import AskHeadSnapshots, SnapshotAction, SnapshotOrder

# --- anything in any order ---


FILE_ACTIONS = [SnapshotAction.RENAME, SnapshotAction.EXPORT]


class AnyRequests(RuleBasedStateMachine):
    """Requests that start, run a little, are cancelled, kept, find their caches cleared or their blocks given up.

    Snapshots of them are renamed, exported, imported and freed; a disk tier writes and reads beside it. The model
    beside all this recomputes everything from the tokens alone.
    """

    @initialize(num_blocks=st.sampled_from([8, 12, 40]), chunk_tokens=st.sampled_from([5, 32]), has_tier=st.booleans())
    def begin(self, num_blocks: int, chunk_tokens: int, has_tier: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name)
        tiers = [DiskTier(path / "kv", 1 << 30) for _ in CUTS] if has_tier else []
        self.pipeline = toy_pipeline(
            num_blocks, max_sequences=4, chunk_tokens=chunk_tokens, tiers=tiers, directory=path
        )  # fmt: skip
        stage_epoch = self.pipeline.cores[0].stage_epoch
        assert stage_epoch is not None and stage_epoch.head is not None
        self.head = stage_epoch.head
        self.prompts: dict[str, tuple[list[int], int]] = {}

    @rule(
        base=st.integers(0, 2),
        length=st.integers(1, 70),
        tail=st.lists(st.integers(0, 3), max_size=3),
        max_tokens=st.integers(0, 40),
    )
    def generate(
        self, base: int, length: int, tail: list[int], max_tokens: int, wish: SnapshotRequest | None = None
    ) -> None:
        name, prompt = f"r{len(self.prompts)}", [*[(base + 1) * (i + 1) % VOCAB_SIZE for i in range(length)], *tail]
        self.prompts[name] = (prompt, max_tokens)
        self.pipeline.start(replace(request(name, prompt, max_tokens, GREEDY), snapshot=wish))

    @rule(which=st.integers(0, 9))
    def repeat(self, which: int) -> None:
        """The same prompt with its answer so far: the next turn of a conversation."""
        names = [name for name, output in self.pipeline.outputs.items() if output.token_ids]
        if names:
            name = names[which % len(names)]
            prompt = [*self.prompts[name][0], *self.pipeline.outputs[name].token_ids][:90]
            again = f"r{len(self.prompts)}"
            self.prompts[again] = (prompt, 5)
            self.pipeline.start(request(again, prompt, 5, GREEDY))

    @rule(turns=st.lists(st.integers(0, 3), max_size=30))
    def work(self, turns: list[int]) -> None:
        """A step of a stage, or the oldest job of all file threads."""
        for index in turns:
            self.pipeline.turn(index) if index < 3 else self.pipeline.do_job()

    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        running = [name for name, output in self.pipeline.outputs.items() if output.ending is None]
        if running:
            self.pipeline.cancel(running[which % len(running)])

    @rule(
        name=st.sampled_from(["a", "b"]),
        base=st.integers(0, 2),
        length=st.integers(1, 40),
        num_kept=st.none() | st.integers(1, 40),
        max_tokens=st.integers(0, 5),
    )
    def snapshot(self, name: str, base: int, length: int, num_kept: int | None, max_tokens: int) -> None:
        self.generate(base, length, [], max_tokens, SnapshotRequest(name, num_kept))

    @rule(name=st.sampled_from(["a", "b"]))
    def free(self, name: str) -> None:
        self.head.snapshots.free("client", name)

    @rule(name=st.sampled_from(["a", "b"]), new=st.sampled_from(["a", "b"]), action=st.sampled_from(FILE_ACTIONS))
    def order(self, name: str, new: str, action: SnapshotAction) -> None:
        self.pipeline.perform_control(0, AskHeadSnapshots(1, "client", SnapshotOrder(action, name, new)))

    @rule(name=st.sampled_from(["a", "b"]), file=st.sampled_from(["a", "b"]))
    def bring_back(self, name: str, file: str) -> None:
        asked = f"r{len(self.prompts)}"
        self.prompts[asked] = ([], 0)
        wish = SnapshotRequest(name, file=file)
        self.pipeline.start(replace(request(asked, [], 0, GREEDY), snapshot=wish))

    @rule(index=st.integers(0, 2))
    def clear(self, index: int) -> None:
        self.pipeline.stores[index].clear()

    @invariant()
    def every_token_is_right(self) -> None:
        if not hasattr(self, "pipeline"):
            return
        for name, output in self.pipeline.outputs.items():
            prompt, max_tokens = self.prompts[name]
            assert output.token_ids == expected_tokens(prompt, len(output.token_ids), 6)
            if output.ending is not None and output.ending.finish_reason is FinishReason.LENGTH:
                assert len(output.token_ids) == max_tokens
        self.head.check_invariants()
        for store in self.pipeline.stores:
            store.check_invariants()

    def teardown(self) -> None:
        if not hasattr(self, "pipeline"):
            return
        self.pipeline.run()
        self.every_token_is_right()
        refused = {ack.request_id for ack in self.pipeline.acks if ack.code is not None}
        assert all(output.ending for name, output in self.pipeline.outputs.items() if name not in refused)
        snapshots = self.head.snapshots.of_client("client")
        for one in snapshots:
            assert [store.length(one.seq_id) for store in self.pipeline.stores] == [one.num_tokens] * 3
            self.head.snapshots.free("client", one.name)
        self.pipeline.run()
        assert self.head.scheduler.blocks.num_free == self.pipeline.stores[0].num_free
        for store, core in zip(self.pipeline.stores, self.pipeline.cores, strict=True):
            assert store.num_used == 0
            store.clear()
            assert store.num_cached == 0 and store.prefixes() == set()
            store.check_invariants()
            assert core.stage_epoch is not None and core.stage_epoch.executor.files.num_staged == 0
        for disk in self.pipeline.disks:
            disk.close()
        self.folder.cleanup()


AnyRequests.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestAnyRequests = AnyRequests.TestCase
