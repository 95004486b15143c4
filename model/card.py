"""Builds the model card from a model file; the only place that parses a vocabulary."""

from __future__ import annotations

from stagewire.model.config import read_config
from stagewire.model.gguf import GgufFile
from stagewire.model.sampling_defaults import GenerationConfig, Tell, generation_config, gguf_sampling
from stagewire.model.special_tokens import NORMAL, Absent, absent, ends_by_text, is_special
from stagewire.wire.card import ModelCard, ModelConfig, TokenizerData
from stagewire.wire.errors import ModelError
from stagewire.wire.sampling import UNTOLD_SAMPLING, SamplingParams

_TOKENS = "tokenizer.ggml.tokens"
_TYPES = "tokenizer.ggml.token_type"
_ADD_BOS = "tokenizer.ggml.add_bos_token"
_UNDEFINED = 0
_END_LIST = "tokenizer.ggml.eos_token_ids"  # as some write more than one
_END_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


def build_card(
    gguf: GgufFile, name: str, recommended: SamplingParams | None = None, tell: Tell = lambda _line: None
) -> ModelCard:
    """Returns the card under which the model is served as `name`.

    How it is sampled where a request does not say: as the file recommends, else as the `generation_config.json` beside
    it does, else as `recommended`, else `UNTOLD_SAMPLING`. `tell` is given a line for each value that cannot be used.

    A vocabulary whose algorithm this version cannot run is carried all the same: requests by token id need
    none, and it is the client's tokenizer that refuses it. A file without a vocabulary gives a card without.

    Raises:
        ModelError: as `read_config`; or MODEL_FILE_INVALID, naming the defect of the vocabulary.
    """
    config = read_config(gguf)
    try:
        tokenizer = _read_tokenizer(gguf) if _TOKENS in gguf.arrays else None
        template = gguf.metadata.get("tokenizer.chat_template")
        beside = _generation_config(gguf, config, tokenizer, tell)
        card = ModelCard(
            name=name,
            config=config,
            tokenizer=tokenizer,
            chat_template=template if isinstance(template, str) and template else None,
            stop_token_ids=_stop_token_ids(gguf, tokenizer, beside),
            sampling=gguf_sampling(gguf, tell) or beside.sampling or recommended or UNTOLD_SAMPLING,
        )
        card.encode()  # so that a card that is too large is refused here, not when the first client asks
        return card
    except ValueError as error:
        raise ModelError(f"{gguf.path}: impossible vocabulary: {error}") from None


def _read_tokenizer(gguf: GgufFile) -> TokenizerData:
    model, pre = _text(gguf, "tokenizer.ggml.model"), _text(gguf, "tokenizer.ggml.pre", "default")
    tokens = _texts(gguf, _TOKENS)
    told_types = _told_types(gguf, len(tokens))
    missing = absent(model, pre)
    return TokenizerData(
        model=model,
        pre=pre,
        tokens=tokens,
        token_types=told_types if _TYPES in gguf.arrays else bytes([NORMAL]) * len(tokens),
        merges=_texts(gguf, "tokenizer.ggml.merges") if "tokenizer.ggml.merges" in gguf.arrays else (),
        bos_token_id=_token_id(gguf, "bos", missing.bos_token_id, told_types),
        eos_token_id=_token_id(gguf, "eos", missing.eos_token_id, told_types),
        add_bos=_add_bos(gguf, missing),
    )


def _told_types(gguf: GgufFile, num_tokens: int) -> bytes:
    """What the file says of each token; where it says nothing, any may be special."""
    return bytes(_integers(gguf, _TYPES)) if _TYPES in gguf.arrays else bytes([_UNDEFINED]) * num_tokens


def _add_bos(gguf: GgufFile, missing: Absent) -> bool:
    value = "a list" if _ADD_BOS in gguf.arrays else gguf.metadata.get(_ADD_BOS, missing.add_bos)
    if type(value) is not bool:
        raise ValueError(f"{_ADD_BOS}={value!r:.80} is neither true nor false")
    return value


def _generation_config(
    gguf: GgufFile, config: ModelConfig, tokenizer: TokenizerData | None, tell: Tell
) -> GenerationConfig:
    num_tokens = config.vocab_size if tokenizer is None else len(tokenizer.tokens)
    return generation_config(gguf.path.parent, num_tokens, _token_id(gguf, "eos"), tell)


def _stop_token_ids(gguf: GgufFile, tokenizer: TokenizerData | None, beside: GenerationConfig) -> tuple[int, ...]:
    """What the file names, what the vocabulary shows, and what the file beside it adds."""
    found = {_token_id(gguf, which) for which in _END_KEYS} | {*beside.eos_token_ids}
    found |= {*_integers(gguf, _END_LIST)} if _END_LIST in gguf.arrays else set()
    if tokenizer is not None:
        types = _told_types(gguf, len(tokenizer.tokens))
        found |= {tokenizer.eos_token_id, *ends_by_text(tokenizer.tokens, types)}
    return tuple(sorted(token_id for token_id in found if token_id is not None))


def _token_id(gguf: GgufFile, which: str, default: int | None = None, types: bytes = b"") -> int | None:
    """What the file names; else `default`, if it is special among `types`."""
    key = f"tokenizer.ggml.{which}_token_id"
    if key in gguf.arrays:
        raise ValueError(f"{which}_token_id is a list, not an integer")
    value = gguf.metadata.get(key)
    if value is None and is_special(default, types):
        return default
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
