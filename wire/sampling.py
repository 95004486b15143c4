"""What a request may ask of the sampler, and the limits of each; it must not know how a token is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stagewire.wire.errors import RequestRefused

MAX_TEMPERATURE = 100.0
MAX_TOP_K = 1 << 24
MIN_REPETITION_PENALTY = 0.01
MAX_REPETITION_PENALTY = 100.0
MAX_ADDITIVE_PENALTY = 2.0
MAX_LOGIT_BIAS = 100.0
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_TOKEN_ID = (1 << 31) - 1
MAX_SEED = (1 << 64) - 1
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen.

    Every default is neutral: the model's own distribution, drawn from as it is. So `temperature` is 1.0, as
    with OpenAI: whoever sets nothing gets neither truncation nor greed by surprise, and a reader of a request
    can skip what it leaves alone.

    Attributes:
        temperature: 0 is greedy (the most likely token, the lowest id of equals); at most 100.
        top_k: keep the k most likely tokens; 0 is off; at most 2**24.
        top_p: keep the smallest set of most likely tokens whose probability reaches this; in (0, 1].
        min_p: drop tokens less likely than this share of the most likely one; in [0, 1].
        repetition_penalty: divides positive and multiplies negative logits of every token in the prompt or
            the answer (as Hugging Face); in [0.01, 100], above 1 discourages.
        presence_penalty: taken from the logit of each token already generated; in [-2, 2]. As with OpenAI,
            the prompt does not count.
        frequency_penalty: the same, times the number of its occurrences; in [-2, 2].
        logit_bias: {token id: value in [-100, 100]}, added to the logits; at most 1024 pairs, no id twice. Kept as
            a tuple of pairs, which may be given, too.
        seed: what makes a request repeatable; in [0, 2**64). None lets whoever accepts the request draw one. Equal
            prompts with equal seeds get equal answers; different prompts draw independently, whatever their seeds.
        logprobs: None is off; else log probabilities of the chosen token and of this many of the most likely
            ones, or all there are; at most 20.

    Raises:
        RequestRefused: INVALID_REQUEST on construction, naming field, value and limit.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    logprobs: int | None = None

    if TYPE_CHECKING:
        # What may be given is more than what is kept.
        def __init__(
            self,
            temperature: float = ...,
            top_k: int = ...,
            top_p: float = ...,
            min_p: float = ...,
            repetition_penalty: float = ...,
            presence_penalty: float = ...,
            frequency_penalty: float = ...,
            logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ...,
            seed: int | None = ...,
            logprobs: int | None = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        self._set_float("temperature", 0.0, MAX_TEMPERATURE)
        self._set_float("top_p", 0.0, 1.0, above_low=True)
        self._set_float("min_p", 0.0, 1.0)
        self._set_float("repetition_penalty", MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
        self._set_float("presence_penalty", -MAX_ADDITIVE_PENALTY, MAX_ADDITIVE_PENALTY)
        self._set_float("frequency_penalty", -MAX_ADDITIVE_PENALTY, MAX_ADDITIVE_PENALTY)
        _check_int("top_k", self.top_k, MAX_TOP_K)
        if self.seed is not None:
            _check_int("seed", self.seed, MAX_SEED)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, MAX_LOGPROBS)
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens seen so far matter to the next one's distribution."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    def _set_float(self, name: str, low: float, high: float, above_low: bool = False) -> None:
        value = _checked_float(name, getattr(self, name), low, high, above_low)
        # A whole number may come as an int; stored as a float, equal parameters have one encoding.
        object.__setattr__(self, name, value)


MODEL_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""What a model may recommend; the other fields are one request's own."""


def _checked_float(name: str, value: object, low: float, high: float, above_low: bool = False) -> float:
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    # NaN compares false to everything, so no range holds it.
    if not low <= number <= high or (above_low and number == low):
        bracket = "(" if above_low else "["
        raise RequestRefused(f"{name}={value!r:.80} is not a number in {bracket}{low:g}, {high:g}]")
    return float(number)


def _check_int(name: str, value: object, high: int) -> None:
    if type(value) is not int or not 0 <= value <= high:
        raise RequestRefused(f"{name}={value!r:.80} is not an integer in [0, {high}]")


def _checked_bias(pairs: object) -> tuple[tuple[int, float], ...]:
    if isinstance(pairs, Mapping):
        pairs = tuple(pairs.items())
    if not isinstance(pairs, (tuple, list)) or not all(isinstance(pair, (tuple, list)) for pair in pairs):
        raise RequestRefused(f"logit_bias={pairs!r:.80} is neither {{token id: value}} nor a tuple of such pairs")
    if len(pairs) > MAX_LOGIT_BIAS_ENTRIES:
        raise RequestRefused(f"logit_bias has {len(pairs)} pairs; at most {MAX_LOGIT_BIAS_ENTRIES}")
    checked: dict[int, float] = {}
    for pair in pairs:
        if len(pair) != 2:
            raise RequestRefused(f"logit_bias: {pair!r:.80} is not a (token id, value) pair")
        token_id, value = pair
        _check_int("logit_bias token id", token_id, MAX_TOKEN_ID)
        if token_id in checked:
            raise RequestRefused(f"logit_bias names token id {token_id} twice")
        checked[token_id] = _checked_float(f"logit_bias[{token_id}]", value, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
    return tuple(checked.items())


UNTOLD_SAMPLING = SamplingParams(temperature=0.7, top_p=0.95, repetition_penalty=1.1)
"""For models that recommend nothing: varied, without the unlikely, and kept from going round in circles."""
