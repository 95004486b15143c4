"""The flags that say how tokens are chosen, and the parameters that they make."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields, replace

from stagewire.cli.options import add_settings, chosen
from stagewire.wire.errors import RequestRefused, SettingsError
from stagewire.wire.sampling import SamplingParams

_NAMES = tuple(field.name for field in fields(SamplingParams))


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    described = {
        "temperature": "0 takes the most likely token, as --greedy does; only above it do --top-k, --top-p, --min-p "
        "and --seed matter; 1 draws from the whole spread (default: the model's own)",
        "top_k": "draw from the K most likely tokens; 0 is off (default: the model's own)",
        "top_p": "draw from the most likely tokens that reach this share together; 1 is off (default: the model's own)",
        "min_p": "drop tokens less likely than this share of the most likely one (default: the model's own)",
        "repetition_penalty": "above 1 discourages tokens of the prompt and of the answer (default: the model's own)",
        "presence_penalty": "discourages tokens that the answer has (default: the model's own)",
        "frequency_penalty": "the same, each time more (default: the model's own)",
        "seed": "the same seed gives the same prompt the same answer; each prompt has its own luck (default: random)",
    }
    group = parser.add_argument_group("sampling", "What is not given is the model's own; `generate --json` tells it.")
    group.add_argument(
        "--greedy",
        action="store_true",
        help="always the most likely token, and no penalties: the same answer each time",
    )
    add_settings(group, SamplingParams, described)
    group.add_argument(
        "--logit-bias", action="append", type=_bias, metavar="ID=VALUE", default=argparse.SUPPRESS,
        help="add VALUE to the logit of token ID; may be given again",
    )  # fmt: skip


def sampling_of(options: argparse.Namespace, of_model: Callable[[], SamplingParams]) -> SamplingParams | None:
    """What the flags ask for, and the model's own values for the rest; None where no flag is given.

    Temperature 0 asks for the likeliest token, so it takes none of the model's penalties.

    Raises:
        SettingsError: with the code of the refusal: a value is outside its limits; --greedy, and not greedy.
    """
    given = [name for name in _NAMES if hasattr(options, name)]
    try:
        asked = chosen(SamplingParams, options)
    except RequestRefused as error:
        raise SettingsError(error.detail, error.code) from None
    if options.greedy and "temperature" in given and not asked.is_greedy:
        raise SettingsError(f"temperature={asked.temperature:g}: --greedy is temperature 0; give one of them")
    if options.greedy or asked.is_greedy:
        return replace(asked, temperature=0.0)
    return replace(of_model(), **{name: getattr(asked, name) for name in given}) if given else None


def _bias(text: str) -> tuple[int, float]:
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError:
        raise SettingsError(f"logit_bias={text}: expected ID=VALUE, as in 42=-100") from None
