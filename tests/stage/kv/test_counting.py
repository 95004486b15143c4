"""What counts as a hit, and what an answer gives to the caches: the same numbers everywhere, each thing once."""

from __future__ import annotations

import random

import pytest
from support.in_process import InProcessPipeline, request
from support.toy_operators import VOCAB_SIZE
from support.toy_pipelines import CUTS, GREEDY, ask, restored_tokens, toy_pipeline

from stagewire.wire.ring import Step


def asked_and_held(pipeline: InProcessPipeline) -> list[tuple[int, int]]:
    """Prompt tokens that each stage was asked for, and of these held."""
    caches = [store.cache for store in pipeline.stores]
    held = [cache.num_held_tokens + cache.num_fetched_tokens for cache in caches]
    return [(num + cache.num_missed_tokens, num) for num, cache in zip(held, caches, strict=True)]


def crowd(pipeline: InProcessPipeline, seed: int, num_requests: int) -> tuple[int, int]:
    """Requests that together want more blocks than there are; returns prompt tokens but the last, and cached ones."""
    rng = random.Random(seed)
    shared = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(17, 40))]
    prompts = [
        [*shared, *(rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 30)))] for _ in range(num_requests)
    ]
    for number, prompt in enumerate(prompts):
        pipeline.start(request(f"r{number}", prompt, 60, GREEDY))
        for _ in range(rng.randrange(40)):
            pipeline.turn(rng.randrange(3))
    outputs = pipeline.run()
    endings = [outputs[f"r{number}"].ending for number in range(num_requests)]
    cached = [ending.usage.cached_tokens for ending in endings if ending]
    assert len(cached) == num_requests
    return sum(len(prompt) - 1 for prompt in prompts), sum(cached)


@pytest.mark.parametrize(("seed", "num_blocks"), [(1, 12), (2, 12), (3, 14), (4, 20)])
def test_a_preemption_makes_no_hits(seed: int, num_blocks: int) -> None:
    """What is restored when a sequence comes back was counted when it came first: at all stages as usage has it."""
    pipeline = toy_pipeline(num_blocks, max_sequences=8, chunk_tokens=24)
    num_prompt, num_cached = crowd(pipeline, seed, 7)
    stage_epoch = pipeline.cores[0].stage_epoch
    assert stage_epoch is not None and stage_epoch.head is not None
    assert stage_epoch.head.scheduler.num_preemptions > 0
    assert min(restored_tokens(pipeline)) > num_cached, "some came back to what they had left"
    head, middle, tail = asked_and_held(pipeline)
    assert head == (num_prompt, num_cached)
    assert middle == tail == (num_cached, num_cached)


@pytest.mark.parametrize("num_missed", [1, 2])
def test_a_request_that_misses_and_begins_again_is_counted_once(num_missed: int) -> None:
    """Each stage by what it held the first time; the second attempt asks for the same tokens."""
    pipeline, prompt = toy_pipeline(), [3 + i % 50 for i in range(50)]
    ask(pipeline, "cold", prompt)
    for index in range(1, 1 + num_missed):
        pipeline.stores[index].clear()
    assert ask(pipeline, "again", prompt).cached_tokens == 0
    assert asked_and_held(pipeline) == [(98, 49), (49, 0), (0, 0)]


def test_the_last_token_and_an_empty_cache_are_asked_for_as_ever() -> None:
    """A prompt of one token asks for nothing; without a cache all of a prompt is missing."""
    for cache_blocks, held in ((None, 20), (0, 0)):
        pipeline = toy_pipeline(cache_blocks=cache_blocks)
        for name, prompt in (("one", [7]), ("cold", list(range(21))), ("warm", list(range(21)))):
            ask(pipeline, name, prompt, 1)
        assert asked_and_held(pipeline) == [(40, held), (held, held), (held, held)]
        assert pipeline.stores[0].statistics.misses == (1 if held else 2)


# --- what an answer gives ---


def recorded(pipeline: InProcessPipeline) -> tuple[int, int]:
    """Tokens and bytes that all stages have inserted since their start."""
    told = [store.statistics for store in pipeline.stores]
    return sum(one.recorded_tokens for one in told), sum(one.recorded_bytes for one in told)


@pytest.mark.parametrize(
    ("length", "max_tokens"), [(1, 1), (15, 1), (16, 1), (40, 1), (40, 0), (48, 0), (10, 7), (31, 3), (33, 50), (5, 44)]
)
def test_an_ending_tells_what_its_release_inserts(length: int, max_tokens: int) -> None:
    """All that the caches got from the request, alone: also of an answer of one step, and of a prompt given again."""
    pipeline, prompt = toy_pipeline(), [3 + i % 50 for i in range(length)]
    before = (0, 0)
    for name in ("cold", "warm"):
        pipeline.start(request(name, prompt, max_tokens, GREEDY))
        ending = pipeline.run()[name].ending
        assert ending is not None
        told = ending.cache.recorded_tokens, ending.cache.recorded_bytes
        total = recorded(pipeline)
        assert told == (total[0] - before[0], total[1] - before[1])
        assert name == "warm" or max_tokens > 1 or told[0] == 3 * length
        before = total


def test_a_request_that_is_cancelled_tells_it_too() -> None:
    """In the middle of its answer: the release is in the step of its ending."""
    pipeline, prompt = toy_pipeline(), [3 + i % 50 for i in range(40)]
    pipeline.start(request("r", prompt, 50, GREEDY))
    for turn in range(40):
        pipeline.turn(turn % 3)
    pipeline.cancel("r")
    ending = pipeline.run()["r"].ending
    assert ending is not None and 0 < ending.usage.completion_tokens < 50
    assert (ending.cache.recorded_tokens, ending.cache.recorded_bytes) == recorded(pipeline)


def test_a_step_that_cannot_end_anything_carries_nothing_of_it() -> None:
    """Decodes carry it when a block is full, which is once in sixteen."""
    pipeline = toy_pipeline()
    ask(pipeline, "r", [3 + i % 50 for i in range(20)], 60)
    told = [len(m.unrecorded) for index, m in pipeline.hops if isinstance(m, Step) and index == len(CUTS) - 2]
    assert sum(told) == 1 + 3, "the prompt, and what fills the blocks up to 32, 48 and 64 of 79 tokens"
