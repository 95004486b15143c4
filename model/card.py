"""Builds the model card from a model file; the only place that parses a vocabulary."""

from __future__ import annotations

from stagewire.model.config import read_config
from stagewire.model.gguf import GgufFile
from stagewire.wire.card import ModelCard, TokenizerData
from stagewire.wire.errors import ModelError

_TOKENS = "tokenizer.ggml.tokens"
_TYPES = "tokenizer.ggml.token_type"
_NORMAL = 1
_CONTROL = 3


def build_card(gguf: GgufFile, name: str) -> ModelCard:
    """Returns the card under which the model is served as `name`.

    A vocabulary whose algorithm this version cannot run is carried all the same: requests by token id need
    none, and it is the client's tokenizer that refuses it. A file without a vocabulary gives a card without.

    Raises:
        ModelError: as `read_config`; or MODEL_FILE_INVALID, naming the defect of the vocabulary.
    """
    config = read_config(gguf)
    try:
        tokenizer = _read_tokenizer(gguf) if _TOKENS in gguf.arrays else None
        template = gguf.metadata.get("tokenizer.chat_template")
        card = ModelCard(
            name=name,
            config=config,
            tokenizer=tokenizer,
            chat_template=template if isinstance(template, str) and template else None,
            stop_token_ids=_stop_token_ids(gguf, tokenizer),
        )
        card.encode()  # so that a card that is too large is refused here, not when the first client asks
        return card
    except ValueError as error:
        raise ModelError(f"{gguf.path}: impossible vocabulary: {error}") from None


def _read_tokenizer(gguf: GgufFile) -> TokenizerData:
    tokens = _texts(gguf, _TOKENS)
    if _TYPES in gguf.arrays:
        token_types = bytes(_integers(gguf, _TYPES))
    else:
        token_types = bytes([_NORMAL]) * len(tokens)
    return TokenizerData(
        model=_text(gguf, "tokenizer.ggml.model"),
        pre=_text(gguf, "tokenizer.ggml.pre", "default"),
        tokens=tokens,
        token_types=token_types,
        merges=_texts(gguf, "tokenizer.ggml.merges") if "tokenizer.ggml.merges" in gguf.arrays else (),
        bos_token_id=_token_id(gguf, "bos"),
        eos_token_id=_token_id(gguf, "eos"),
        add_bos=gguf.metadata.get("tokenizer.ggml.add_bos_token") is True,
    )


def _stop_token_ids(gguf: GgufFile, tokenizer: TokenizerData | None) -> tuple[int, ...]:
    """End of sequence, end of turn, and `<|im_end|>`, which some files name as neither."""
    candidates = [_token_id(gguf, "eos"), _token_id(gguf, "eot")]
    if tokenizer is not None and "<|im_end|>" in tokenizer.tokens:
        token_id = tokenizer.tokens.index("<|im_end|>")
        if tokenizer.token_types[token_id] == _CONTROL:
            candidates.append(token_id)
    return tuple(sorted({token_id for token_id in candidates if token_id is not None}))


def _token_id(gguf: GgufFile, which: str) -> int | None:
    value = gguf.metadata.get(f"tokenizer.ggml.{which}_token_id")
    if value is not None and type(value) is not int:
        raise ValueError(f"{which}_token_id={value!r:.80} is not an integer")
    return value


def _text(gguf: GgufFile, key: str, default: str | None = None) -> str:
    value = gguf.metadata.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"{key} is {'missing' if value is None else 'not a text'}")
    return value


def _texts(gguf: GgufFile, key: str) -> tuple[str, ...]:
    values = gguf.array(key)
    texts = tuple(value for value in values if isinstance(value, str))
    if len(texts) != len(values):
        raise ValueError(f"{key} is not an array of texts")
    return texts


def _integers(gguf: GgufFile, key: str) -> list[int]:
    values = gguf.array(key)
    integers = [value for value in values if type(value) is int]
    if len(integers) != len(values):
        raise ValueError(f"{key} is not an array of integers")
    return integers
