"""The sampler against a slow, plain one; its order of operations; draws that a replay repeats."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_numbers import picked, reference_uniform

from stagewire.stage.tail.philox import Place, uniform
from stagewire.stage.tail.sampler import InvalidLogits, PenaltyCounts, sample
from stagewire.wire.errors import RequestRefused
from stagewire.wire.prompt_digest import prompt_digest
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import TokenIds

VOCAB = 40
PROMPT = [504, 3575, 282]


def at(position: int) -> Place:
    """A place in the first answer to `PROMPT`."""
    return Place(prompt_digest(TokenIds.of(PROMPT)), 0, position)


def counts_of(prompt: list[int], generated: list[int], params: SamplingParams, vocab: int = VOCAB) -> PenaltyCounts:
    counts = PenaltyCounts(vocab, params)
    counts.add_prompt(np.array(prompt, dtype=np.int32))
    for token_id in generated:
        counts.add_generated(token_id)
    return counts


def plain_distribution(
    logits: np.ndarray, params: SamplingParams, prompt: list[int], generated: list[int]
) -> dict[int, float]:
    """The documented order, token by token, in Python floats."""
    values = [float(value) for value in logits]
    for token_id, bias in params.logit_bias:
        values[token_id] += bias
    for token_id in {*prompt, *generated}:
        penalty = params.repetition_penalty
        values[token_id] = values[token_id] / penalty if values[token_id] > 0 else values[token_id] * penalty
    for token_id in set(generated):
        values[token_id] -= params.presence_penalty + params.frequency_penalty * generated.count(token_id)
    if params.is_greedy:
        return {max(range(len(values)), key=lambda i: (values[i], -i)): 1.0}
    top = max(values)
    weights = {i: math.exp((value - top) / params.temperature) for i, value in enumerate(values)}
    ranked = sorted(weights, key=lambda i: (-weights[i], i))
    if params.top_k:
        ranked = ranked[: params.top_k]
    if params.top_p < 1.0:
        total, reached, kept = sum(weights[i] for i in ranked), 0.0, []
        for token_id in ranked:
            kept.append(token_id)
            reached += weights[token_id]
            if reached >= params.top_p * total:
                break
        ranked = kept
    ranked = [i for i in ranked if weights[i] >= params.min_p * weights[ranked[0]]]
    total = sum(weights[i] for i in ranked)
    return {i: weights[i] / total for i in sorted(ranked)}


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 10, 100]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.1, 0.6]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.sampled_from([(), ((3, 5.0),), ((0, -100.0), (7, 2.5))]),
    seed=st.integers(0, 2**64 - 1),
)
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=6)


@given(st.integers(0, 999), PARAMS, TOKENS, TOKENS, st.integers(0, 9000))
@settings(max_examples=400, deadline=None)
def test_a_draw_is_what_the_plain_sampler_gives(
    seed: int, params: SamplingParams, prompt: list[int], generated: list[int], position: int
) -> None:
    """The same number picks the same token from the same distribution, in order of id."""
    logits = (np.random.default_rng(seed).standard_normal(VOCAB) * 3).astype(np.float32)
    expected = plain_distribution(logits, params, prompt, generated)
    token_id = sample(logits, params, counts_of(prompt, generated, params), at(position)).token_id
    assert token_id in expected
    reached, target = 0.0, uniform(params.seed or 0, at(position))
    for candidate, share in expected.items():
        reached += share
        if abs(reached - target) < 1e-9:
            return  # a tie of rounding: either is right
        if target < reached:
            assert token_id == candidate
            return
    assert token_id == list(expected)[-1]


@given(
    st.integers(0, 99), st.sampled_from([0.9, 0.3, 1.0]), st.sampled_from([0.0, 0.02]), st.sampled_from([0, 40, 3000])
)
@settings(max_examples=60, deadline=None)
def test_a_large_vocabulary_is_cut_exactly_as_a_full_sort_would(
    seed: int, top_p: float, min_p: float, top_k: int
) -> None:
    """Preselecting a thousand candidates must not change which tokens are kept."""
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(5000) * rng.choice([0.1, 1, 4])).astype(np.float32)
    params = SamplingParams(top_p=top_p, min_p=min_p, top_k=top_k, seed=seed)
    expected = plain_distribution(logits, params, [], [])
    for position in range(5):
        assert sample(logits, params, PenaltyCounts(5000, params), at(position)).token_id in expected


def test_equal_logits_take_the_lowest_id() -> None:
    """Greedy, and top-k at a tie."""
    logits = np.zeros(VOCAB, np.float32)
    logits[[5, 9]] = 1.0
    greedy = SamplingParams(temperature=0.0)
    assert sample(logits, greedy, PenaltyCounts(VOCAB, greedy), at(0)).token_id == 5
    first = SamplingParams(top_k=1, seed=3)
    assert {sample(logits, first, PenaltyCounts(VOCAB, first), at(i)).token_id for i in range(20)} == {5}


def test_draws_follow_the_distribution() -> None:
    """Chi-square over 20,000 positions of one seed; 39 degrees of freedom, p well above 0.001."""
    logits = (np.random.default_rng(1).standard_normal(VOCAB)).astype(np.float32)
    params = SamplingParams(seed=42)
    expected = plain_distribution(logits, params, [], [])
    num_draws = 20_000
    drawn = np.bincount(
        [sample(logits, params, PenaltyCounts(VOCAB, params), at(i)).token_id for i in range(num_draws)],
        minlength=VOCAB,
    )
    shares = np.array([expected[i] for i in range(VOCAB)])
    assert float((((drawn - num_draws * shares) ** 2) / (num_draws * shares)).sum()) < 72.1


@pytest.mark.parametrize(
    ("choice", "token_ids"),
    [
        (SamplingParams(seed=2024), [1494, 6511, 19703, 39734, 37905, 41195]),
        (SamplingParams(seed=2024, temperature=0.7, top_p=0.9), [1494, 6508, 19698, 39729, 37902, 41190]),
        (SamplingParams(seed=2024, top_k=40), [646, 4739, 16695, 39045, 35275, 39368]),
        (SamplingParams(seed=2024, temperature=1.5, min_p=0.3), [1499, 6513, 19706, 39739, 37907, 41195]),
        (SamplingParams(seed=2024, top_p=0.5, top_k=200), [1292, 6301, 18580, 39045, 37483, 40014]),
    ],
)
def test_draws_are_fixed(choice: SamplingParams, token_ids: list[int]) -> None:
    """A release or a machine that draws others is no replica of those before. The plain sampler draws them, too."""
    logits = (np.arange(49_152) * 2_654_435_761 % 4093 / 512).astype(np.float32)
    shares = plain_distribution(logits, choice, [], [])
    numbers = [reference_uniform(choice.seed or 0, PROMPT, position) for position in range(6)]
    assert [list(shares)[picked(list(shares.values()), number)] for number in numbers] == token_ids
    counts = PenaltyCounts(len(logits), choice)
    assert [sample(logits, choice, counts, at(position)).token_id for position in range(6)] == token_ids


def test_log_probabilities_are_fixed_to_the_bit() -> None:
    logits = (np.arange(49_152) * 2_654_435_761 % 4093 / 512).astype(np.float32)
    params = SamplingParams(temperature=0.0, logprobs=2)
    drawn = sample(logits, params, PenaltyCounts(len(logits), params), at(0))
    assert (drawn.token_id, drawn.logprob) == (2208, float.fromhex("-0x1.172e209d58535p+3"))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    """The one request fails; nothing is drawn."""
    logits = np.zeros(VOCAB, np.float32)
    logits[3] = bad
    params = SamplingParams(temperature=0.0)
    with pytest.raises(InvalidLogits):
        sample(logits, params, PenaltyCounts(VOCAB, params), at(0))


def test_a_penalty_that_would_overflow_is_refused() -> None:
    """Dividing by a denormal number makes infinities of good logits."""
    for tiny in (5e-324, 0.009, 0.0):
        with pytest.raises(RequestRefused, match="repetition_penalty"):
            SamplingParams(repetition_penalty=tiny)
    lowest = SamplingParams(repetition_penalty=0.01, top_k=5, seed=1)
    logits = np.full(VOCAB, 80.0, np.float32)
    assert 0 <= sample(logits, lowest, counts_of([1, 2], [3], lowest), at(0)).token_id < VOCAB


def test_log_probabilities_are_the_models_own() -> None:
    """Of the logits as they came, whatever bias, penalties and temperature do to the draw."""
    logits = (np.random.default_rng(2).standard_normal(VOCAB) * 2).astype(np.float32)
    params = SamplingParams(temperature=0.0, logit_bias=((4, 100.0),), repetition_penalty=1.5, logprobs=3)
    drawn = sample(logits, params, counts_of([4], [], params), at(0))
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    assert drawn.token_id == 4
    assert drawn.logprob == pytest.approx(exact[4])
    top = np.argsort(-exact)[:3]
    assert [token_id for token_id, _ in drawn.top_logprobs] == top.tolist()
    assert [value for _, value in drawn.top_logprobs] == pytest.approx(exact[top].tolist())


def test_repetition_counts_the_prompt_and_presence_does_not() -> None:
    """Scope as documented: the whole history against generated tokens only."""
    logits = np.zeros(VOCAB, np.float32)
    logits[[1, 2]] = [2.0, 1.9]
    repetition = SamplingParams(temperature=0.0, repetition_penalty=1.5)
    assert sample(logits, repetition, counts_of([1], [], repetition), at(0)).token_id == 2
    presence = SamplingParams(temperature=0.0, presence_penalty=1.0)
    assert sample(logits, presence, counts_of([1], [], presence), at(0)).token_id == 1
    assert sample(logits, presence, counts_of([], [1], presence), at(0)).token_id == 2


@pytest.mark.parametrize(("vocab", "asked"), [(14, 20), (9, 20), (1, 1), (2, 20), (20, 20), (21, 20), (5, 3)])
def test_there_are_as_many_log_probabilities_as_tokens(vocab: int, asked: int) -> None:
    """Not more than asked for; from the likeliest on, equals by id."""
    logits = np.arange(vocab, dtype=np.float32) % 7
    sampled = sample(
        logits, SamplingParams(temperature=0.0, logprobs=asked), counts_of([], [], SamplingParams()), at(0)
    )
    ranked = sorted(range(vocab), key=lambda token_id: (-logits[token_id], token_id))
    assert [token_id for token_id, _ in sampled.top_logprobs] == ranked[:asked]
    if asked >= vocab:
        assert sum(math.exp(value) for _, value in sampled.top_logprobs) == pytest.approx(1.0)
