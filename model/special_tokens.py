"""Which tokens begin a text and which end an answer: what a file says, and what it means where it says nothing.

The tables are llama.cpp's (`llama-vocab.cpp`, `llama_vocab::impl::load`), which files are written for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

NORMAL = 1  # GGUF's token type of ordinary text


@dataclass(frozen=True, slots=True)
class Absent:
    """What absent keys mean: whether a prompt begins with the start token, and which tokens start and end are."""

    add_bos: bool
    bos_token_id: int | None
    eos_token_id: int | None


_NOTHING = Absent(add_bos=False, bos_token_id=None, eos_token_id=None)
_BYTE_PAIRS = Absent(add_bos=False, bos_token_id=11, eos_token_id=11)
_BY_MODEL: Mapping[str, Absent] = MappingProxyType(
    {
        "llama": Absent(add_bos=True, bos_token_id=1, eos_token_id=2),
        "gpt2": _BYTE_PAIRS,
        "hybriddna": _BYTE_PAIRS,
        "whitespace": _BYTE_PAIRS,
        "gemma4": Absent(add_bos=True, bos_token_id=None, eos_token_id=None),
        "bert": Absent(add_bos=True, bos_token_id=101, eos_token_id=None),
        "t5": Absent(add_bos=False, bos_token_id=None, eos_token_id=1),
        "rwkv": _NOTHING,
        "plamo2": Absent(add_bos=False, bos_token_id=1, eos_token_id=2),
    }
)
"""By `tokenizer.ggml.model`."""

_STARTED = Absent(add_bos=True, bos_token_id=11, eos_token_id=11)
_BY_PRE: Mapping[str, Absent] = MappingProxyType(
    {
        "llama3": _STARTED,
        "llama-v3": _STARTED,
        "llama-bpe": _STARTED,
        "falcon3": _STARTED,
        "falcon-h1": _STARTED,
        "pixtral": _STARTED,
        "midm-2.0": _STARTED,
        "lfm2": _STARTED,
        "jina-v5-nano": _STARTED,
        "tekken": _STARTED,
        "chameleon": _STARTED,
        "gemma4": _STARTED,
        "granite-embed-multi-311m": _STARTED,
        "glm4": Absent(add_bos=False, bos_token_id=None, eos_token_id=11),
        "chatglm-bpe": Absent(add_bos=False, bos_token_id=None, eos_token_id=11),
    }
)
"""Of `gpt2`, by `tokenizer.ggml.pre`, where that differs."""

_PLAIN_ENDS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<｜end▁of▁sentence｜>",  # noqa: RUF001  DeepSeek's own bars
        "<|fim_pad|>",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<|file_sep|>",
    }
)
"""Nobody writes these in ordinary text: they end an answer whatever type a file gives them."""

_SPECIAL_ENDS = frozenset(
    {
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<|tool_response>",
        "</s>",
        "<eos>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "[e~[",
        "<fim-pad>",
        "<PAD>",
        "[PAD]",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
    }
)
"""These may be text (`</s>` is HTML): they end an answer where they are not ordinary tokens."""

_NO_ENDS = (
    # Harmony and Solar end a part of a turn with `<|end|>`; Gemma 4 keeps an old model's `</s>`.
    ("<|end|>", frozenset({"<|return|>", "<|call|>"})),
    ("<|end|>", frozenset({"<|return|>", "<|calls|>"})),
    ("<|end|>", frozenset({"<|flush|>", "<|call|>"})),
    ("<|end|>", frozenset({"<|flush|>", "<|calls|>"})),
    ("</s>", frozenset({"<|tool_response>"})),
)
"""A text that ends nothing in a vocabulary that has all of these."""


def absent(model: str, pre: str) -> Absent:
    """What absent keys mean for this kind of tokenizer; nothing for kinds that nobody knows."""
    return (_BY_PRE.get(pre) if model == "gpt2" else None) or _BY_MODEL.get(model, _NOTHING)


def is_special(token_id: int | None, token_types: Sequence[int]) -> bool:
    """Whether a file that does not name this token can mean it: it is there, and no ordinary text."""
    return token_id is not None and token_id < len(token_types) and token_types[token_id] != NORMAL


def ends_by_text(tokens: Sequence[str], token_types: Sequence[int]) -> Iterable[int]:
    """The ids of tokens that end an answer by what they are, whatever else a file says."""
    found = {
        token: token_id
        for token_id, token in enumerate(tokens)
        if token in _PLAIN_ENDS or (token in _SPECIAL_ENDS and token_types[token_id] != NORMAL)
    }
    for token, company in _NO_ENDS:
        if company <= found.keys():
            found.pop(token, None)
    return found.values()
