"""The store against a model of it: any steps in any order."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.kv_stores import new_store

from stagewire.stage.kv.blocks import Copy, MissingTokens, OutOfBlocks

# --- anything in any order ---


class AnySteps(RuleBasedStateMachine):
    """Whatever is appended, restored, rewound, released and cleared: every public block keeps its tokens' content.

    `content` is what the operators' memory would hold; a row that is written says which token chain it belongs to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.store, self.twin = new_store(6), new_store(6)
        self.content: dict[tuple[int, int], tuple[int, ...]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.step = 1

    def both(self, step_id: int) -> None:
        self.step = step_id
        self.store.begin_step(step_id)
        self.twin.begin_step(step_id)

    @rule(
        seq_id=st.integers(1, 4),
        pos_start=st.integers(0, 20),
        new=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        is_decode=st.booleans(),
    )
    def append(self, seq_id: int, pos_start: int, new: list[int], is_decode: bool) -> None:
        self.both(self.step + 1)
        if is_decode:
            pos_start, new = len(self.tokens.get(seq_id, [])), new[:1]
        token_ids, kind = np.array(new, np.int32), {"is_decode": is_decode, "is_prompt": not is_decode}
        answer = self.store.append(seq_id, pos_start, token_ids, **kind)
        assert answer == self.twin.append(seq_id, pos_start, token_ids, **kind)
        held = self.tokens.get(seq_id, [])
        if pos_start > len(held):
            assert answer == MissingTokens(len(held))
        elif not isinstance(answer, OutOfBlocks):
            if isinstance(answer, Copy):
                for slot in range(4):
                    self.content[answer.target, slot] = self.content.get((answer.source, slot), ())
            self.tokens[seq_id] = held[:pos_start] + new
            self.write(seq_id, pos_start)

    def write(self, seq_id: int, pos_start: int) -> None:
        table, tokens = self.store.block_table(seq_id), self.tokens[seq_id]
        for position in range(pos_start, len(tokens)):
            self.content[int(table[position // 4]), position % 4] = tuple(tokens[: position + 1])

    @rule(
        seq_id=st.integers(1, 4), prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20), spare=st.integers(0, 3)
    )
    def restore(self, seq_id: int, prompt: list[int], spare: int) -> None:
        self.both(self.step + 1)
        limit = max(1, len(prompt) - spare)
        num_held = self.store.restore(seq_id, np.array(prompt, np.int32), limit)
        assert num_held == self.twin.restore(seq_id, np.array(prompt, np.int32), limit)
        self.tokens.pop(seq_id, None)
        if num_held:
            self.tokens[seq_id] = prompt[:num_held]

    @rule(source=st.integers(1, 4), other=st.integers(1, 3), num_tokens=st.integers(1, 12))
    def keep(self, source: int, other: int, num_tokens: int) -> None:
        self.both(self.step + 1)
        kept = 1 + (source - 1 + other) % 4
        is_kept = self.store.keep(source, kept, num_tokens)
        assert is_kept == self.twin.keep(source, kept, num_tokens) == (len(self.tokens.get(source, [])) >= num_tokens)
        if is_kept:
            self.tokens[kept] = self.tokens[source][:num_tokens]

    @rule(seq_id=st.integers(1, 4))
    def release(self, seq_id: int) -> None:
        self.both(self.step + 1)
        self.store.release(seq_id)
        self.twin.release(seq_id)
        self.tokens.pop(seq_id, None)

    @rule()
    def clear(self) -> None:
        assert self.store.clear() == self.twin.clear()

    @invariant()
    def every_sequence_sees_its_own_tokens(self) -> None:
        self.store.check_invariants()
        assert self.store.prefixes() == self.twin.prefixes()
        for seq_id, tokens in self.tokens.items():
            table = self.store.block_table(seq_id)
            assert self.store.length(seq_id) == len(tokens)
            assert table.tolist() == self.twin.block_table(seq_id).tolist()
            for position in range(len(tokens)):
                assert self.content[int(table[position // 4]), position % 4] == tuple(tokens[: position + 1])

    def teardown(self) -> None:
        for seq_id in range(1, 5):
            self.store.release(seq_id)
        self.store.clear()
        assert self.store.num_free == 6 and self.store.num_cached == 0
        self.store.check_invariants()


AnySteps.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestAnySteps = AnySteps.TestCase
