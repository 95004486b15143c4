"""Draws one token from one row of logits. No state but the counts that penalties need, no clock, no torch.

Order of operations, all in float64:

1. logit bias is added;
2. repetition penalty, for every token of prompt or answer: positive logits are divided, negative multiplied;
3. presence and frequency penalties are taken off, for generated tokens only;
4. temperature 0 takes the largest logit, of equals the lowest id, and is done;
5. temperature divides; probabilities follow;
6. top-k keeps the k most likely; 7. top-p, of those, the smallest set of the most likely whose share reaches p;
8. min-p, of those, what is at least that share of the most likely. Equals are ranked by id, the lowest first;
9. one number in [0, 1), of seed, prompt, choice and position alone, picks from what is left: the first token, in order
   of id, at which the probabilities so far exceed it. It is a word of Philox4x64-10 with key (seed, 0) and counter
   (position + 1, choice index, and the two halves of the BLAKE2b-128 of the prompt's ids): see `philox.uniform`.

Log probabilities are the model's own: of the logits as they came, before step 1.

Machines of all kinds draw the same from the same logits: each operation is correctly rounded, `exp` and `log` are our
own, and sums go from the first to the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagewire.stage.tail.exponential import exp_in_place, log, total
from stagewire.stage.tail.philox import Place, uniform
from stagewire.wire.errors import ErrorCode, StagewireError
from stagewire.wire.sampling import SamplingParams

# How many of the most likely tokens are tried, before all are sorted.
_PRESELECTED = (1024, 8192)


class InvalidLogits(StagewireError):
    """The model gave no distribution for this row: a NaN, or an infinity. Nothing was drawn."""

    default_code = ErrorCode.DECODE_FAILED


@dataclass(frozen=True, slots=True)
class Sampled:
    """A drawn token; natural log probabilities where they were asked for, of the most likely in order."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


class PenaltyCounts:
    """Which tokens a request holds and how often it has generated each; empty where no penalty asks.

    `takes_largest`: the request wants nothing but the largest logit, so that nothing else is looked at.
    """

    def __init__(self, vocab_size: int, params: SamplingParams) -> None:
        self.is_counting = params.has_penalties
        is_plain = not params.logit_bias and params.logprobs is None
        self.takes_largest = params.is_greedy and is_plain and not self.is_counting
        size = vocab_size if self.is_counting else 0
        self.is_seen: NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)
        self.num_generated: NDArray[np.int32] = np.zeros(size, dtype=np.int32)

    def add_prompt(self, token_ids: NDArray[np.int32]) -> None:
        """Tokens of the prompt, restored ones included."""
        if self.is_counting:
            self.is_seen[token_ids] = True

    def add_generated(self, token_id: int) -> None:
        if self.is_counting:
            self.is_seen[token_id] = True
            self.num_generated[token_id] += 1


def sample(logits: NDArray[np.float32], params: SamplingParams, counts: PenaltyCounts, place: Place) -> Sampled:
    """Draw the token at `place`.

    Args:
        logits: float32 [V], not modified.
        params: with a seed, unless greedy.
        counts: of the tokens before `place`, made for `params`.
        place: of the token that is drawn; all that its luck depends on besides the seed.

    Raises:
        InvalidLogits: `logits` hold a NaN or no finite maximum.
    """
    # Of NaNs and largest values, `argmax` finds the first: it is the greedy choice, and it says whether there is any.
    largest = int(logits.argmax())
    if not math.isfinite(logits.item(largest)):
        raise InvalidLogits("the model's logits are not finite")
    if counts.takes_largest:
        return Sampled(largest)
    values = _penalized(logits, params, counts)
    token_id = largest if params.is_greedy and values is logits else _choose(values, params, place)
    if params.logprobs is None:
        return Sampled(token_id)
    return _with_logprobs(token_id, logits, params.logprobs)


def _penalized(logits: NDArray[np.float32], params: SamplingParams, counts: PenaltyCounts) -> NDArray[np.floating]:
    if not params.logit_bias and not params.has_penalties:
        return logits
    values = logits.astype(np.float64)
    for token_id, bias in params.logit_bias:
        values[token_id] += bias
    if params.has_penalties:
        seen = np.flatnonzero(counts.is_seen)
        penalty = params.repetition_penalty
        values[seen] = np.where(values[seen] > 0, values[seen] / penalty, values[seen] * penalty)
        generated = np.flatnonzero(counts.num_generated)
        values[generated] -= params.presence_penalty + params.frequency_penalty * counts.num_generated[generated]
    return values


def _choose(values: NDArray[np.floating], params: SamplingParams, place: Place) -> int:
    if params.is_greedy:
        return int(values.argmax())
    assert params.seed is not None, "whoever accepts a request fixes its seed"
    scaled = values.astype(np.float64)
    scaled -= scaled.max()
    scaled /= params.temperature
    exp_in_place(scaled)
    weights, kept = scaled, _kept(scaled, params)
    cumulative = np.cumsum(weights if kept is None else weights[kept])
    index = int(np.searchsorted(cumulative, uniform(params.seed, place) * cumulative[-1], side="right"))
    index = min(index, len(cumulative) - 1)
    return index if kept is None else int(kept[index])


def _kept(weights: NDArray[np.float64], params: SamplingParams) -> NDArray[np.intp] | None:
    """Ids that top-k, top-p and min-p leave, ascending; None for all."""
    if params.top_k == 0 and params.top_p == 1.0 and params.min_p == 0.0:
        return None
    # A sum takes as long as a third of all exponentials: once, and only where it is asked for.
    share = params.top_p * total(weights) if params.top_p < 1.0 and not params.top_k else 0.0
    ranked = _ranked(weights, params, share)
    if params.top_k:
        ranked = ranked[: params.top_k]
        share = params.top_p * total(weights[ranked])
    if params.top_p < 1.0:
        reached = np.searchsorted(np.cumsum(weights[ranked]), share)
        ranked = ranked[: int(reached) + 1]
    # The most likely token has weight 1.
    return np.sort(ranked[weights[ranked] >= params.min_p])


def _ranked(weights: NDArray[np.float64], params: SamplingParams, share: float) -> NDArray[np.intp]:
    """Ids by falling weight, equals by id; at least as many as will be kept.

    Sorting the whole vocabulary takes milliseconds, and what is kept is nearly always among the first thousand.
    """
    for count in (params.top_k,) if params.top_k else _PRESELECTED:
        if count < len(weights):
            threshold = np.partition(weights, len(weights) - count)[len(weights) - count]
            likely = np.flatnonzero(weights >= threshold)
            if params.top_k or _is_enough(weights[likely], params, share):
                return likely[np.argsort(-weights[likely], kind="stable")]
    return np.argsort(-weights, kind="stable")


def _is_enough(likely: NDArray[np.float64], params: SamplingParams, share: float) -> bool:
    """Whether what top-p or min-p keep is surely among these weights."""
    reaches = params.top_p < 1.0 and total(likely) > share * (1 + 1e-9)
    return bool(reaches or likely.min() < params.min_p)


def _with_logprobs(token_id: int, logits: NDArray[np.float32], num_top: int) -> Sampled:
    values = logits.astype(np.float64)
    values -= values.max()
    weights = values.copy()
    exp_in_place(weights)
    values -= log(total(weights))
    top: tuple[tuple[int, float], ...] = ()
    num_top = min(num_top, len(values))  # a small vocabulary has no more
    if num_top:
        threshold = np.partition(values, len(values) - num_top)[len(values) - num_top]
        likely = np.flatnonzero(values >= threshold)
        ranked = likely[np.argsort(-values[likely], kind="stable")][:num_top]
        top = tuple((int(i), float(values[i])) for i in ranked)
    return Sampled(token_id, float(values[token_id]), top)
