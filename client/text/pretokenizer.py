"""How each known vocabulary splits text before its merges apply, by GGUF's name `tokenizer.ggml.pre`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

# The patterns are those of the models' own `tokenizer.json` files.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to split.

    `ignore_merges`: a piece that is a token as a whole is taken as it is. `normalize`: to NFC first. `splits_digits`:
    each digit is a piece of its own.
    """

    build: Callable[[], PreTokenizer]
    ignore_merges: bool = False
    normalize: bool = False
    splits_digits: bool = False

    def normalizer(self) -> NFC | None:
        return NFC() if self.normalize else None


def _byte_level() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_and_byte_level() -> PreTokenizer:
    return Sequence([Digits(individual_digits=True), _byte_level()])


def _pattern(pattern: str) -> PreTokenizer:
    split = Split(Regex(pattern), behavior="isolated", invert=False)
    return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "gpt-2": Scheme(_byte_level),
        "smollm": Scheme(_digits_and_byte_level, splits_digits=True),
        "llama-bpe": Scheme(lambda: _pattern(_LLAMA3), ignore_merges=True),
        "qwen2": Scheme(lambda: _pattern(_QWEN2), normalize=True),
    }
)
