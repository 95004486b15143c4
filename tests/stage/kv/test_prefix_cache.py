"""Prompts seen before, over whole pipelines: the same tokens, and the reuse that the documents promise.

`Held` is the documented policy written down a second time, as plainly as it can be.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from support.in_process import InProcessPipeline, request
from support.toy_operators import VOCAB_SIZE, ToyOperators, expected_tokens
from support.toy_pipelines import GREEDY, ask, restored_tokens, toy_pipeline
from support.whole_model import whole_model

from stagewire.stage.compute.operators import BLOCK_SIZE
from stagewire.wire.request import FinishReason, Usage
from stagewire.wire.sampling import SamplingParams

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
            self.insert(computed[:position], len(prompt) if position == len(prompt) else 0)
            self.write(position, position + 1)
        self.time += 1
        self.insert(computed, len(prompt) if len(answer) == 1 else 0)
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

    def insert(self, tokens: Sequence[int], prompt_end: int) -> None:
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
    stage_epoch = pipeline.cores[0].stage_epoch
    assert stage_epoch is not None and stage_epoch.head is not None
    assert stage_epoch.head.scheduler.num_preemptions > 0
    for store in pipeline.stores:
        store.check_invariants()
        assert store.num_used == 0 and store.statistics.restored_tokens > 0
