"""The flags that say how tokens are chosen, and the parameters that they make."""

from __future__ import annotations

import argparse

from stagewire.cli.options import add_settings, chosen
from stagewire.wire.errors import RequestRefused, SettingsError
from stagewire.wire.sampling import SamplingParams


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    described = {
        "temperature": "0 takes the most likely token; only above it do --top-k, --top-p, --min-p and --seed matter; "
        "1 draws as the model would (default here: 0)",
        "top_k": "draw from the K most likely tokens; 0 is off",
        "top_p": "draw from the most likely tokens that reach this probability together",
        "min_p": "drop tokens less likely than this share of the most likely one",
        "repetition_penalty": "above 1 discourages tokens of the prompt and of the answer",
        "presence_penalty": "discourages tokens that the answer has",
        "frequency_penalty": "the same, each time more",
        "seed": "the same seed gives the same prompt the same answer; each prompt has its own luck (default: random)",
    }
    group = parser.add_argument_group("sampling")
    add_settings(group, SamplingParams, described)
    group.add_argument(
        "--logit-bias", action="append", type=_bias, metavar="ID=VALUE", default=argparse.SUPPRESS,
        help="add VALUE to the logit of token ID; may be given again",
    )  # fmt: skip


def sampling_of(options: argparse.Namespace) -> SamplingParams:
    """What the flags ask for.

    Raises:
        SettingsError: with the code of the refusal: a value is outside its limits.
    """
    try:
        return chosen(SamplingParams, _greedy_unless_told(options))
    except RequestRefused as error:
        raise SettingsError(error.detail, error.code) from None


def _greedy_unless_told(options: argparse.Namespace) -> argparse.Namespace:
    """At the command line a sane, repeatable answer is a better default than the model's full spread."""
    return argparse.Namespace(**({"temperature": 0.0} | vars(options)))


def _bias(text: str) -> tuple[int, float]:
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError:
        raise SettingsError(f"logit_bias={text}: expected ID=VALUE, as in 42=-100") from None
