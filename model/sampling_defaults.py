"""How a model wants to be sampled where a request does not say: what its file recommends, or the one beside it.

A value that cannot be used is left out and told by name; it never keeps a model from being served.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from stagewire.model.config import shortest
from stagewire.model.gguf import GgufFile
from stagewire.wire.errors import RequestRefused
from stagewire.wire.sampling import SamplingParams

Tell = Callable[[str], None]

_GGUF = "general.sampling."
_GGUF_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        f"{_GGUF}temp": "temperature",
        f"{_GGUF}top_k": "top_k",
        f"{_GGUF}top_p": "top_p",
        f"{_GGUF}min_p": "min_p",
        f"{_GGUF}penalty_repeat": "repetition_penalty",
    }
)
_NOT_DONE = (f"{_GGUF}mirostat", f"{_GGUF}xtc_probability")
_LAST_N = f"{_GGUF}penalty_last_n"
_JSON_NAME = "generation_config.json"
_JSON_FIELDS: Mapping[str, str] = MappingProxyType(
    {name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
)
_MAX_JSON_BYTES = 1 << 20
_TOP_K_OFF = -1  # as llama.cpp and others write it


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """What a `generation_config.json` says of sampling, and its end tokens."""

    sampling: SamplingParams | None = None
    eos_token_ids: tuple[int, ...] = ()


def gguf_sampling(gguf: GgufFile, tell: Tell) -> SamplingParams | None:
    """What the file's `general.sampling.*` keys recommend, neutral where they are silent; None if all are.

    `tell` is given a line for each value that cannot be used.
    """
    for key in _GGUF_FIELDS:
        if key in gguf.arrays:
            tell(f"ignored {key}: a list is not a number")
    for key in _NOT_DONE:
        if gguf.metadata.get(key):
            tell(f"ignored {key}={gguf.metadata[key]!r:.80}: there is no such way of sampling here")
    sampling = _checked(gguf.metadata, _GGUF_FIELDS, tell)
    if sampling is not None and gguf.metadata.get(_LAST_N) == 0:
        return replace(sampling, repetition_penalty=1.0)  # a penalty for the last 0 tokens is none
    return sampling


def generation_config(folder: Path, vocab_size: int, eos_token_id: int | None, tell: Tell) -> GenerationConfig:
    """What `generation_config.json` in a model's folder says; nothing if there is none, or it is another model's.

    Args:
        folder: where the model file lies.
        vocab_size: ids beyond it cannot be used.
        eos_token_id: what the model file names; a config that names others is not of this model.
        tell: is given a line for each value that cannot be used.
    """
    values = _read_json(folder / _JSON_NAME, tell)
    eos = _eos_token_ids(values, vocab_size, tell)
    if eos and eos_token_id is not None and eos_token_id not in eos:
        tell(f"ignored {_JSON_NAME}: it does not have the model file's end token {eos_token_id}, so it is another's")
        return GenerationConfig()
    sampling = _checked(values, _JSON_FIELDS, tell)
    if values.get("do_sample") is False:
        sampling = replace(sampling or SamplingParams(), temperature=0.0)
    return GenerationConfig(sampling, eos)


def _checked(values: Mapping[str, object], fields: Mapping[str, str], tell: Tell) -> SamplingParams | None:
    sampling = None
    for key, field in fields.items():
        value = values.get(key)
        if value is None:
            continue
        if field == "top_k" and type(value) is int and value == _TOP_K_OFF:
            value = 0
        try:
            sampling = replace(sampling or SamplingParams(), **{field: value})  # type: ignore[arg-type]
        except RequestRefused as error:
            tell(f"ignored {key}: {error.detail}")
            continue
        if type(value) is float:
            sampling = replace(sampling, **{field: shortest(value)})  # type: ignore[arg-type]
    return sampling


def _read_json(path: Path, tell: Tell) -> Mapping[str, object]:
    try:
        # Not a pipe, which would never end.
        if not path.is_file():
            return {}
        with path.open("rb") as file:
            data = file.read(_MAX_JSON_BYTES + 1)
        if len(data) > _MAX_JSON_BYTES:
            raise ValueError(f"it is longer than {_MAX_JSON_BYTES} bytes")
        values = json.loads(data)
        if not isinstance(values, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError, RecursionError) as error:
        tell(f"ignored {_JSON_NAME}: {error}")
        return {}
    return values


def _eos_token_ids(values: Mapping[str, object], vocab_size: int, tell: Tell) -> tuple[int, ...]:
    told = values.get("eos_token_id")
    found = []
    for value in told if isinstance(told, list) else [told]:
        if type(value) is int and 0 <= value < vocab_size:
            found.append(value)
        elif value is not None:
            tell(f"ignored {_JSON_NAME}: eos_token_id={value!r:.80} is no token of the vocabulary of {vocab_size}")
    return tuple(found)
