"""Prompts seen before, over whole pipelines: the same tokens, the reuse that the documents promise, one traversal.

`Held` is the documented policy written down a second time, as plainly as it can be.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.in_process import InProcessPipeline, executor_of, request
from support.toy_operators import VOCAB_SIZE, ToyOperators, expected_tokens
from support.whole_model import whole_model

from stagewire.stage.compute.operators import BLOCK_SIZE
from stagewire.stage.executor import StepFailed
from stagewire.stage.files.disk_tier import DiskTier
from stagewire.stage.instructions import SendHead, SendNext
from stagewire.stage.kv.store import KvStore
from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import FinishReason, SnapshotWish, StageTiming, Usage
from stagewire.wire.ring import Miss, Phase, Restored, Slice, Step, StepResult
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.snapshots import AskHeadSnapshots, SnapshotAction, SnapshotOrder
from stagewire.wire.tensor import Tensor, TokenIds

GREEDY = SamplingParams(temperature=0.0)
CUTS = [(0, 2), (2, 3), (3, 6)]
TIMING = StageTiming(0, 1, 0.0, 0.0, 0.0)


def toy_pipeline(num_blocks: int = 600, cuts: Sequence[tuple[int, int]] = CUTS, **options: Any) -> InProcessPipeline:
    operators = [ToyOperators(*cut, cuts[-1][1], num_blocks) for cut in cuts]
    return InProcessPipeline(operators, 2, VOCAB_SIZE, **options)


def restored_tokens(pipeline: InProcessPipeline) -> list[int]:
    return [store.statistics.restored_tokens for store in pipeline.stores]


def ask(pipeline: InProcessPipeline, name: str, prompt: Sequence[int], max_tokens: int = 3) -> Usage:
    """Run one request to its end; returns its usage, after looking at its tokens."""
    pipeline.start(request(name, prompt, max_tokens, GREEDY))
    output = pipeline.run()[name]
    assert output.ending is not None and output.ending.finish_reason is FinishReason.LENGTH
    assert output.token_ids == expected_tokens(list(prompt), max_tokens, CUTS[-1][1])
    return output.ending.usage


# --- the documented formula ---


Prefix = tuple[int, ...]


class Held:
    """Which prefixes a stage holds after requests that run one after the other: the policy of docs/architecture.md.

    Each prefix is that of one keyed block, which ends with it.
    """

    def __init__(self, capacity: int = 10**9) -> None:
        self.capacity, self.time = capacity, 0
        self.last_use: dict[Prefix, int] = {}
        self.used: list[Prefix] = []
        self.num_private = 0

    def reused(self, prompt: Sequence[int]) -> int:
        return min(len(self.matched(prompt)[-1]), len(prompt) - 1) if self.matched(prompt) else 0

    def matched(self, prompt: Sequence[int]) -> list[Prefix]:
        """Full blocks as far as they go, then the longest partial one."""
        found: list[Prefix] = []
        for start in range(0, len(prompt), BLOCK_SIZE):
            ends = range(min(start + BLOCK_SIZE, len(prompt)), start, -1)
            prefix = next((tuple(prompt[:end]) for end in ends if tuple(prompt[:end]) in self.last_use), None)
            found += [prefix] if prefix else []
            if prefix is None or len(prefix) < start + BLOCK_SIZE:
                break
        return found

    def run(self, prompt: Sequence[int], answer: Sequence[int]) -> int:
        """A request that starts when the last one has left; returns the tokens that it finds."""
        found, computed = self.reused(prompt), [*prompt, *answer[:-1]]
        self.time += 1
        self.used = [prefix for prefix in self.matched(prompt) if len(prefix) - BLOCK_SIZE < found]
        self.write(found, len(prompt))
        for position in range(len(prompt), len(computed)):
            self.time += 1
            self.publish(computed[:position], len(prompt) if position == len(prompt) else 0)
            self.write(position, position + 1)
        self.time += 1
        self.publish(computed, len(prompt) if len(answer) == 1 else 0)
        for prefix in self.used:
            self.last_use[prefix] = self.time
        self.used, self.num_private = [], 0
        return found

    def write(self, start: int, end: int) -> None:
        """Rows `[start, end)` need blocks of their own; what is shared and partly filled is copied."""
        source = self.used[-1] if start % BLOCK_SIZE and self.used and len(self.used[-1]) > start // 16 * 16 else None
        num_needed = -(-end // BLOCK_SIZE) - -(-start // BLOCK_SIZE) + (source is not None)
        for _ in range(num_needed):
            if len(self.last_use) + self.num_private == self.capacity:
                idle = [prefix for prefix in self.last_use if prefix not in self.used]
                del self.last_use[min(idle, key=lambda prefix: (self.last_use[prefix], -len(prefix)))]
            self.num_private += 1
        if source is not None:
            self.used.remove(source)
            self.last_use[source] = self.time

    def publish(self, tokens: Sequence[int], prompt_end: int) -> None:
        """Full blocks, and the partial one that ends the prompt; what is held already is held once."""
        for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
            if tuple(tokens[:end]) not in self.used:
                self.used.append(tuple(tokens[:end]))
                self.num_private -= 1
                self.last_use.setdefault(self.used[-1], self.time)
        partial = tuple(tokens[:prompt_end])
        if prompt_end % BLOCK_SIZE and partial not in self.last_use:
            self.used.append(partial)
            self.num_private -= 1
            self.last_use[partial] = self.time


def prompts_that_share() -> list[list[int]]:
    """Forty: of no common prefix, partial, whole, longer, shorter, differing in one middle token, repeated."""
    rng = random.Random(4)

    def fresh(length: int) -> list[int]:
        return [rng.randrange(VOCAB_SIZE) for _ in range(length)]

    bases = [fresh(length) for length in (5, 16, 33, 48, 70)]
    prompts = [*bases]
    for base in bases:
        middle = len(base) // 2
        prompts += [
            [*base],
            [*base, *fresh(7)],
            [*base, *fresh(25)],
            base[: max(1, len(base) - 1)],
            base[: max(1, middle)],
            [*base[:middle], (base[middle] + 1) % VOCAB_SIZE, *base[middle + 1 :]],
        ]
    return [*prompts, *(fresh(length) for length in (1, 2, 17)), bases[4][:64], bases[4][:65]]


def test_forty_prompts_give_the_cold_tokens_and_find_what_the_formula_says_at_every_stage() -> None:
    """With their answers kept too; `usage.cached_tokens` is the same number."""
    prompts = prompts_that_share()
    assert len(prompts) == 40
    pipeline, held = toy_pipeline(), Held()
    rng = random.Random(9)
    for number, prompt in enumerate(prompts):
        before = restored_tokens(pipeline)
        max_tokens = rng.randrange(1, 30)
        usage = ask(pipeline, f"r{number}", prompt, max_tokens)
        found = held.run(prompt, expected_tokens(prompt, max_tokens, 6))
        assert usage == Usage(len(prompt), max_tokens, found), number
        assert restored_tokens(pipeline) == [count + found for count in before], number
    assert held.reused(prompts[4]) == len(prompts[4]) - 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_forty_prompts_of_the_real_model_give_the_cold_tokens_and_log_probabilities() -> None:
    """Over three stages, against a pipeline that has no cache: equal to the last bit."""
    assert_warm_is_cold([[token + 300 for token in prompt] for prompt in prompts_that_share()])


def test_the_real_model_gives_the_cold_tokens_and_log_probabilities() -> None:
    """A whole prompt again, a longer one, and one that differs in the middle: equal to the last bit."""
    first = prompts_that_share()[3]
    assert_warm_is_cold([first, first, [*first, 5, 6, 7], [*first[:20], 9, *first[21:]]])


def assert_warm_is_cold(prompts: list[list[int]]) -> None:
    sampling = SamplingParams(temperature=0.8, seed=3, repetition_penalty=1.2, logprobs=1)
    warm, cold = whole_model("bf16").pipeline(7, 19), whole_model("bf16").pipeline(7, 19, cache_blocks=0)
    held = Held()
    for number, prompt in enumerate(prompts):
        outputs = []
        for pipeline in (warm, cold):
            pipeline.start(request(f"r{number}", prompt, 3, sampling))
            outputs.append(pipeline.run()[f"r{number}"])
        assert outputs[0].token_ids == outputs[1].token_ids
        assert outputs[0].logprobs == outputs[1].logprobs
        cached = [output.ending.usage.cached_tokens for output in outputs if output.ending]
        assert cached == [held.run(prompt, outputs[1].token_ids), 0]


def test_the_second_turn_of_a_conversation_finds_what_the_first_computed_its_answer_included() -> None:
    """In full blocks: an answer's last tokens are computed again, with the new question."""
    pipeline = toy_pipeline()
    prompt = [7 + i % 40 for i in range(20)]
    answer = expected_tokens(prompt, 30, 6)
    assert ask(pipeline, "first", prompt, 30).cached_tokens == 0
    second = [*prompt, *answer, 5, 6, 7]
    assert ask(pipeline, "second", second, 4).cached_tokens == (20 + 29) // BLOCK_SIZE * BLOCK_SIZE == 48
    assert ask(pipeline, "again", second, 4).cached_tokens == len(second) - 1


class RoundingOperators(ToyOperators):
    """Says that a row's bits depend on how it was computed, as a GPU's may."""

    is_row_exact = False


def test_without_row_exactness_only_what_prefill_computed_is_found() -> None:
    """Not the answer, nor a last token that a restore-and-decode computed."""
    pipeline = InProcessPipeline([RoundingOperators(0, 6, 6, 64)], 2, VOCAB_SIZE)
    prompt = [7 + i % 40 for i in range(33)]
    ask(pipeline, "first", prompt, 30)
    assert ask(pipeline, "second", [*prompt, *expected_tokens(prompt, 30, 6)], 1).cached_tokens == 33
    whole = [9 + i % 40 for i in range(40)]
    ask(pipeline, "whole", whole, 1)
    ask(pipeline, "again", whole[:33], 1)
    assert ask(pipeline, "decoded", whole[:33], 1).cached_tokens == 32
    assert ask(pipeline, "prefilled", [*whole, 1], 1).cached_tokens == 40


# --- one traversal ---


def slices_on_hops(pipeline: InProcessPipeline) -> list[list[tuple[Phase, int, int, bool]]]:
    """For each stage that sent steps with slices: what they were."""
    sent: list[list[tuple[Phase, int, int, bool]]] = [[] for _ in pipeline.cores]
    for index, message in pipeline.hops:
        if isinstance(message, Step):
            sent[index] += [(s.phase, s.num_restored, s.num_rows, s.missed) for s in message.slices]
    return sent


def forget_messages(pipeline: InProcessPipeline) -> None:
    pipeline.hops.clear()
    pipeline.fed.clear()


def test_a_prompt_seen_before_answers_after_exactly_one_traversal() -> None:
    """One message on each hop, with one row of activations; one back to the head; and the token is out."""
    pipeline = toy_pipeline()
    prompt = [3 + i % 50 for i in range(100)]
    ask(pipeline, "cold", prompt, 1)
    forget_messages(pipeline)
    pipeline.start(request("warm", prompt, 1, GREEDY))
    for index in range(3):
        assert pipeline.turn(index)
    assert pipeline.outputs["warm"].token_ids == expected_tokens(prompt, 1, 6)
    assert slices_on_hops(pipeline) == [[(Phase.TRY_RESTORE_DECODE, 99, 1, False)]] * 2 + [[]]
    activations = [m.hidden_states for _, m in pipeline.hops if isinstance(m, Step)]
    assert [tensor and tensor.shape for tensor in activations] == [(1, 2)] * 2
    ((sender, result),) = pipeline.fed
    assert sender == 2 and isinstance(result, StepResult)
    assert result.restored == (Restored(2, 99),)
    assert (result.cache.lookups, result.cache.hits, result.cache.hit_stages) == (3, 3, 0b111)
    assert result.cache.restored_tokens == 3 * 99


def test_what_is_partly_there_is_restored_and_prefilled_in_one_traversal() -> None:
    """No stage waits to hear what the later ones hold."""
    pipeline = toy_pipeline()
    prompt = [3 + i % 50 for i in range(40)]
    ask(pipeline, "cold", prompt, 1)
    forget_messages(pipeline)
    assert ask(pipeline, "longer", [*prompt, 1, 2, 3], 1).cached_tokens == 40
    restore = [(Phase.TRY_RESTORE, 40, 0, False), (Phase.PREFILL, 0, 3, False)]
    assert slices_on_hops(pipeline) == [restore, restore, []]


@pytest.mark.parametrize("cleared", [0, 1, 2])
@pytest.mark.parametrize("extra", [0, 5])
def test_a_cache_cleared_on_one_stage_costs_one_message_and_counts_there(cleared: int, extra: int) -> None:
    """Fused, and with a rest to prefill. The head's own stage asks itself, which costs none."""
    pipeline = toy_pipeline()
    prompt = [3 + i % 50 for i in range(40)]
    ask(pipeline, "cold", prompt, 1)
    pipeline.stores[cleared].clear()
    forget_messages(pipeline)
    before = [store.statistics for store in pipeline.stores]
    prompt = [*prompt, *range(extra)]
    assert ask(pipeline, "warm", prompt, 1).cached_tokens == 0
    misses = [(index, message) for index, message in pipeline.fed if isinstance(message, Miss)]
    assert [(index, miss.length) for index, miss in misses] == ([(cleared, 0)] if cleared else [])
    missed = [now.statistics.misses - old.misses for now, old in zip(pipeline.stores, before, strict=True)]
    assert missed == [int(index == cleared) for index in range(3)]
    assert all(store.num_used == 0 for store in pipeline.stores)
    assert ask(pipeline, "again", prompt, 1).cached_tokens == len(prompt) - 1
    if not extra:
        assert pipeline.stores[0].prefixes() == pipeline.stores[1].prefixes() == pipeline.stores[2].prefixes()


def test_stages_that_hold_different_lengths_agree_on_the_least() -> None:
    """N shrinks at each stage; the tail tells the minimum, so that the head tries only once more."""
    pipeline = toy_pipeline()
    prompt = [3 + i % 50 for i in range(100)]
    for index, length in ((0, 96), (1, 64), (2, 32)):
        store = pipeline.stores[index]
        store.append(999, 0, np.array(prompt[:length], np.int32))
        store.release(999)
    forget_messages(pipeline)
    pipeline.start(request("r", prompt, 2, GREEDY))
    for index in range(3):
        assert pipeline.turn(index)
    restored = [m.restored for _, m in pipeline.fed if isinstance(m, StepResult)]
    assert restored == [(Restored(1, 32),)]


# --- the route of a restore at one stage ---


@pytest.mark.parametrize(("index", "is_held"), [(1, False), (2, False), (1, True), (2, True)])
def test_a_miss_goes_straight_to_the_head_a_hit_forward_and_at_the_tail_it_ends(index: int, is_held: bool) -> None:
    """Nothing of a miss is computed or passed on but its mark; a hit is forwarded without asking anybody."""
    pipeline = toy_pipeline()
    prompt = [3 + i % 50 for i in range(20)]
    if is_held:
        ask(pipeline, "cold", prompt, 1)
    assembly = pipeline.cores[index].assembly
    assert assembly is not None
    piece = Slice(50, Phase.TRY_RESTORE_DECODE, 0, 20, True, num_restored=19)
    row = Tensor.from_numpy(np.ones((1, 2), np.float32))
    plan = assembly.executor.plan(Step(9, (), (), (piece,), (), (), TokenIds.of(prompt), row))
    out = assembly.finish_step(plan, plan.compute(pipeline.operators[index]), [], TIMING, 0.0)
    to_head = [i.message for i in out if isinstance(i, SendHead)]
    forwarded = [i.message for i in out if isinstance(i, SendNext) and isinstance(i.message, Step)]
    assert [m for m in to_head if isinstance(m, Miss)] == ([] if is_held else [Miss(9, 50, 0)])
    assert len([m for m in to_head if isinstance(m, StepResult)]) == int(index == 2)
    assert [(step.slices, step.hidden_states is not None) for step in forwarded] == (
        [] if index == 2 else [((piece if is_held else replace(piece, missed=True, num_restored=0),), is_held)]
    )


def test_what_goes_on_as_a_decode_is_one_token_sampled_as_before() -> None:
    """Sequence and sampling stay; the prefix, its length and the wish to restore are gone."""
    piece = Slice(7, Phase.TRY_RESTORE_DECODE, 0, 4, True, num_restored=3)
    assert piece.as_decode() == Slice(7, Phase.DECODE, 3, 1, True)
    assert not replace(piece, sample=False).as_decode().sample


def test_a_restored_request_is_drawn_with_its_own_parameters_and_its_whole_prompt() -> None:
    """Seed, temperature and penalties reach the tail as with a computed prompt."""
    sampling = SamplingParams(temperature=5.0, seed=11, repetition_penalty=3.0, presence_penalty=1.0)
    pipeline = toy_pipeline()
    prompt = [3 + i % 50 for i in range(45)]
    for name in ("cold", "warm"):
        pipeline.start(request(name, prompt, 12, sampling))
    outputs = pipeline.run()
    pipeline.start(request("hot", prompt, 12, sampling))
    outputs = pipeline.run()
    assert outputs["cold"].token_ids == outputs["warm"].token_ids == outputs["hot"].token_ids
    ending = outputs["hot"].ending
    assert ending is not None and ending.usage.cached_tokens == 44


@pytest.mark.parametrize(
    "piece",
    [
        Slice(1, Phase.TRY_RESTORE_DECODE, 0, 1, True, num_restored=0),
        Slice(1, Phase.TRY_RESTORE_DECODE, 0, 3, True, num_restored=3),
        Slice(1, Phase.TRY_RESTORE_DECODE, 4, 3, True, num_restored=2),
        Slice(1, Phase.TRY_RESTORE, 0, 3, False, num_restored=4),
    ],
)
def test_a_restore_without_a_prefix_or_a_token_to_continue_from_is_an_error(piece: Slice) -> None:
    """Typed, and nothing is guessed."""
    executor = executor_of(KvStore(16, 16), 0)
    step = Step(1, (), (), (piece,), (), (), TokenIds.of([1] * piece.num_tokens), None)
    with pytest.raises(StepFailed) as caught:
        executor.plan(step)
    assert caught.value.code is ErrorCode.RESTORE_INCOMPLETE


def test_a_probe_takes_nothing() -> None:
    """It only says how much is there."""
    pipeline = toy_pipeline()
    prompt = [3 + i % 50 for i in range(20)]
    ask(pipeline, "cold", prompt, 1)
    assembly = pipeline.cores[0].assembly
    assert assembly is not None
    piece = Slice(50, Phase.PROBE, 0, 20, False, num_restored=20)
    plan = assembly.executor.plan(Step(9, (), (), (piece,), (), (), TokenIds.of(prompt), None))
    assert plan.step.slices == (piece,) and plan.batch is None and plan.misses == ()
    assert pipeline.stores[0].num_used == 0


# --- budgets ---


def test_ten_times_more_prefixes_than_fit_hit_as_often_as_a_simulation_of_the_policy_says() -> None:
    """A thousand requests: none fails, nothing beyond the budget is kept, all stages hold the same at the end."""
    num_blocks, rng = 40, random.Random(5)
    pipeline = toy_pipeline(num_blocks, cuts=[(0, 1), (1, 2), (2, 3)])
    held = Held(num_blocks)
    prefixes = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(20, 80))] for _ in range(130)]
    assert sum(-(-len(prefix) // BLOCK_SIZE) for prefix in prefixes) > 10 * num_blocks
    num_found = num_expected = num_hits = 0
    for number in range(1000):
        prefix = prefixes[min(int(rng.expovariate(0.08)), len(prefixes) - 1)]
        prompt = [*prefix, *(rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([0, 0, 5])))]
        pipeline.start(request(f"r{number}", prompt, 2, GREEDY))
        output = pipeline.run()[f"r{number}"]
        assert output.ending is not None and output.ending.finish_reason is FinishReason.LENGTH
        found = output.ending.usage.cached_tokens
        num_found, num_hits = num_found + found, num_hits + (found > 0)
        num_expected += held.run(prompt, output.token_ids)
        assert all(store.num_used == 0 and store.num_cached <= num_blocks for store in pipeline.stores)
    assert num_found == num_expected
    assert 200 < num_hits < 900, "the test must see both"
    for store in pipeline.stores:
        store.check_invariants()
        assert store.prefixes() == pipeline.stores[0].prefixes()
        assert store.num_cached == len(held.last_use)


def test_a_pool_that_is_too_small_for_all_preempts_and_gives_the_same_tokens() -> None:
    """They come back through the cache, as far as it could keep them."""
    pipeline = toy_pipeline(num_blocks=9, max_sequences=8, chunk_tokens=32)
    prompts = [[1 + (i * (k + 1)) % 60 for i in range(10 + 7 * k)] for k in range(6)]
    pipeline.start(*[request(f"r{k}", prompt, 40, GREEDY) for k, prompt in enumerate(prompts)])
    outputs = pipeline.run()
    for k, prompt in enumerate(prompts):
        assert outputs[f"r{k}"].token_ids == expected_tokens(prompt, 40, 6)
    assembly = pipeline.cores[0].assembly
    assert assembly is not None and assembly.head is not None
    assert assembly.head.scheduler.num_preemptions > 0
    for store in pipeline.stores:
        store.check_invariants()
        assert store.num_used == 0 and store.statistics.restored_tokens > 0


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
        assembly = self.pipeline.cores[0].assembly
        assert assembly is not None and assembly.head is not None
        self.head = assembly.head
        self.prompts: dict[str, tuple[list[int], int]] = {}

    @rule(
        base=st.integers(0, 2),
        length=st.integers(1, 70),
        tail=st.lists(st.integers(0, 3), max_size=3),
        max_tokens=st.integers(0, 40),
    )
    def generate(
        self, base: int, length: int, tail: list[int], max_tokens: int, wish: SnapshotWish | None = None
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
        self.generate(base, length, [], max_tokens, SnapshotWish(name, num_kept))

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
        wish = SnapshotWish(name, file=file)
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
            assert core.assembly is not None and core.assembly.executor.files.num_staged == 0
        for disk in self.pipeline.disks:
            disk.close()
        self.folder.cleanup()


AnyRequests.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestAnyRequests = AnyRequests.TestCase
