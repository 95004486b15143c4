"""One seed, many prompts: each answer can be had again however it is computed, and no prompt shares another's luck."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.in_process import InProcessPipeline, request
from support.random_numbers import picked, reference_uniform
from support.snapshots import bring_back, head_of, order
from support.toy_operators import VOCAB_SIZE, ToyOperators, expected_tokens
from support.toy_pipelines import CUTS, toy_pipeline

from stagewire.cluster.local import LocalCluster
from stagewire.cluster.spec import BrokerSpec, StageLimits
from stagewire.stage.files.disk_tier import DiskTier
from stagewire.wire.request import SnapshotRequest
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.snapshots import SnapshotAction

NUM_LAYERS, NUM_TOKENS, SEED = 6, 12, 1234
MILD = SamplingParams(temperature=3.0, seed=SEED)
"""The likeliest token of the toy has a quarter of all weight, so that what is drawn is mostly luck."""
PROMPTS = [[3 + (7 * i + j) % 50 for j in range(20)] for i in range(3)]


def drawn_tokens(prompt: Sequence[int], params: SamplingParams, num_tokens: int = NUM_TOKENS) -> list[int]:
    """What the toy answers, computed from the written rule and the tokens alone."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        (likeliest,) = expected_tokens(token_ids, 1, NUM_LAYERS)
        weights = [math.exp(-9.0 / params.temperature)] * VOCAB_SIZE
        weights[likeliest] = 1.0
        shares = [weight / sum(weights) for weight in weights]
        token_ids.append(picked(shares, reference_uniform(params.seed or 0, prompt, len(token_ids))))
    return token_ids[len(prompt) :]


EXPECTED = [drawn_tokens(prompt, MILD) for prompt in PROMPTS]


def answers(pipeline: InProcessPipeline, name: str = "r", num_tokens: int = NUM_TOKENS) -> list[list[int]]:
    """Of the three prompts, side by side."""
    pipeline.start(*(request(f"{name}{i}", prompt, num_tokens, MILD) for i, prompt in enumerate(PROMPTS)))
    outputs = pipeline.run()
    return [outputs[f"{name}{i}"].token_ids for i in range(len(PROMPTS))]


# --- the same again ---


@pytest.mark.parametrize("cuts", [[(0, 6)], [(0, 1), (1, 6)], CUTS, [(i, i + 1) for i in range(6)]])
def test_answers_are_those_of_the_rule_whatever_the_cut(cuts: list[tuple[int, int]]) -> None:
    assert answers(toy_pipeline(cuts=cuts)) == EXPECTED


@pytest.mark.parametrize("options", [{"chunk_tokens": 1}, {"chunk_tokens": 7}, {"max_sequences": 1}])
def test_neither_chunks_nor_company_change_a_draw(options: dict[str, Any]) -> None:
    assert answers(toy_pipeline(**options)) == EXPECTED


def test_a_preempted_answer_goes_on_with_the_same_luck() -> None:
    """What was generated is computed again as if it were prompt; the digest stays that of the prompt."""
    pipeline = toy_pipeline(num_blocks=6)
    assert answers(pipeline, num_tokens=50) == [drawn_tokens(prompt, MILD, 50) for prompt in PROMPTS]
    assert head_of(pipeline).scheduler.num_preemptions > 0


def test_a_prompt_found_in_the_cache_draws_as_a_cold_one() -> None:
    """Whole, and a continuation whose own prompt contains the first answer: that one is another prompt."""
    pipeline = toy_pipeline()
    assert answers(pipeline, "cold") == answers(pipeline, "warm") == EXPECTED
    second = [*PROMPTS[0], *EXPECTED[0]]
    pipeline.start(request("second", second, NUM_TOKENS, MILD))
    output = pipeline.run()["second"]
    assert output.ending is not None and output.ending.usage.cached_tokens > 0
    assert output.token_ids == drawn_tokens(second, MILD)


def test_a_snapshot_draws_as_its_prompt_also_when_it_comes_from_files(tmp_path: Path) -> None:
    """Resumed from kept logits, and in another pipeline after an export and an import."""
    first = toy_pipeline(directory=tmp_path)
    saved = replace(request("save", PROMPTS[1], 0, MILD), snapshot=SnapshotRequest("it"))
    first.start(saved)
    first.run()
    assert answers(first) == EXPECTED
    assert order(first, SnapshotAction.EXPORT, "it", "file") is None
    second = toy_pipeline(directory=tmp_path)
    assert bring_back(second, "back", "file") is None
    assert answers(second) == EXPECTED
    ending = second.outputs["r1"].ending
    assert ending is not None and ending.usage.cached_tokens == len(PROMPTS[1])


def test_a_restart_that_finds_the_blocks_on_disk_draws_the_same(tmp_path: Path) -> None:
    for cached in (0, len(PROMPTS[0]) - 1):
        operators = [ToyOperators(*cut, NUM_LAYERS, 200) for cut in CUTS]
        tiers = [DiskTier(tmp_path, 1 << 20) for _ in operators]
        pipeline = InProcessPipeline(operators, 2, VOCAB_SIZE, tiers=tiers)
        assert answers(pipeline) == EXPECTED
        ending = pipeline.outputs["r0"].ending
        assert ending is not None and ending.usage.cached_tokens == cached
        for disk, tier in zip(pipeline.disks, tiers, strict=True):
            while disk.has_work:
                disk.pump()
            tier.close()


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_another_cluster_with_another_cut_gives_the_same_answers_and_each_prompt_its_own() -> None:
    """Real processes and the real model, started twice; of twelve prompts of equal length no two answers agree."""
    prompts = [[504, 3575, 282, 260, 905, 314, 253, number] for number in range(1000, 1012)]
    runs = []
    for split in ("0:13,13:30", "0:7,7:21,21:30"):
        cluster = LocalCluster(split=split, limits=StageLimits(kv_tokens=4096), broker=BrokerSpec(grace_s=0.2))
        with cluster, cluster.client() as client:
            flat = SamplingParams(temperature=100.0, seed=SEED)
            asked = [
                client.session().generate(prompt_token_ids=prompt, sampling=flat, max_tokens=4, ignore_eos=True)
                for prompt in prompts
            ]
            runs.append([generation.wait(60).token_ids for generation in asked])
    assert runs[0] == runs[1]
    assert [len(set(column)) for column in zip(*runs[0], strict=True)] == [len(prompts)] * 4


# --- its own luck for each ---

FLAT = SamplingParams(temperature=100.0, seed=SEED)
"""All tokens within a tenth of equally likely: the drawn ones show the random numbers themselves."""
MANY = [[(i * 17 + j * j) % VOCAB_SIZE for j in range(9)] + [i % VOCAB_SIZE, i // VOCAB_SIZE] for i in range(120)]


def drawn_by_a_pipeline(prompts: Sequence[Sequence[int]], params: SamplingParams, num_tokens: int) -> list[list[int]]:
    pipeline = toy_pipeline(cuts=[(0, 6)])
    pipeline.start(*(request(f"r{i}", prompt, num_tokens, params) for i, prompt in enumerate(prompts)))
    outputs = pipeline.run()
    return [outputs[f"r{i}"].token_ids for i in range(len(prompts))]


def are_independent(drawn: list[list[int]]) -> bool:
    """Whether 120 answers of eight tokens from 64 look like 960 draws that know nothing of each other.

    For each position, the commonest of 64 tokens has at most 11 of the 120: were all draws independent, more than
    that had a probability of 64 * P[Bin(120, 1/64) > 11] < 2e-5. Over all of them, chi-square against equal shares
    (63 degrees of freedom) is below 103.4, which one in a thousand exceeds.
    """
    commonest = max(Counter(column).most_common(1)[0][1] for column in zip(*drawn, strict=True))
    counts = np.bincount(np.array(drawn).reshape(-1), minlength=VOCAB_SIZE)
    mean = counts.sum() / VOCAB_SIZE
    return commonest <= 11 and float(((counts - mean) ** 2 / mean).sum()) < 103.4


def test_120_prompts_of_equal_length_with_one_seed_are_independent() -> None:
    """What depends on seed and position alone fails the same test."""
    assert len({tuple(prompt) for prompt in MANY}) == 120
    assert are_independent(drawn_by_a_pipeline(MANY, FLAT, 8))
    alike = [[picked([1 / VOCAB_SIZE] * VOCAB_SIZE, reference_uniform(SEED, [], 11 + j)) for j in range(8)]] * 120
    assert not are_independent(alike)


def uncorrelated(one: list[list[int]], other: list[list[int]]) -> bool:
    """Whether two runs agree as often as chance has it: 15 of 960, at most 30 (four deviations)."""
    return sum(a == b for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)) <= 30


@pytest.mark.parametrize(
    "change",
    [
        lambda prompt: [*prompt[:-2], prompt[-1], prompt[-2]],
        lambda prompt: [(prompt[0] + 1) % VOCAB_SIZE, *prompt[1:]],
        lambda prompt: prompt[::-1],
    ],
    ids=["swapped end", "another first token", "reversed"],
)
def test_a_prompt_that_differs_a_little_has_other_luck(change: Callable[[list[int]], list[int]]) -> None:
    """In one token, or in order only."""
    prompts = [prompt for prompt in MANY if change(prompt) != prompt]
    assert len(prompts) > 100
    changed = drawn_by_a_pipeline([change(prompt) for prompt in prompts], FLAT, 8)
    assert uncorrelated(drawn_by_a_pipeline(prompts, FLAT, 8), changed)


@pytest.mark.parametrize("seed", [SEED + 1, 0, 2**64 - 1])
def test_another_seed_has_other_luck_on_the_same_prompts(seed: int) -> None:
    one, other = (drawn_by_a_pipeline(MANY, replace(FLAT, seed=each), 8) for each in (SEED, seed))
    assert uncorrelated(one, other)


def test_the_same_prompt_twice_in_one_batch_is_answered_alike() -> None:
    """As the same seed promises; whoever wants another answer takes another seed."""
    one, other = drawn_by_a_pipeline([MANY[3], MANY[3]], FLAT, 8)
    assert one == other
