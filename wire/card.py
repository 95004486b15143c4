"""The model card: what clients and the broker must know of a model. It holds no weight and reads no file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import msgpack

from stagewire.wire.errors import ProtocolError, RequestRefused
from stagewire.wire.limits import MAX_CARD_BYTES, MAX_NAME_CHARS
from stagewire.wire.sampling import MODEL_FIELDS, UNTOLD_SAMPLING, SamplingParams

CARD_VERSION = 2
_MAX_LAYERS = 4096
_MAX_DIMENSION = 1 << 24
_MAX_CONTEXT = 1 << 28


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The numbers that fix a decoder's shape.

    Raises:
        ValueError: on construction, naming field, value and limit. `rope_dim` is the number of leading
            elements of each head that are rotated.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float
    rope_theta: float
    rope_dim: int
    tie_word_embeddings: bool

    def __post_init__(self) -> None:
        _check_text("architecture", self.architecture, MAX_NAME_CHARS)
        _check_int("num_layers", self.num_layers, 1, _MAX_LAYERS)
        _check_int("context_length", self.context_length, 1, _MAX_CONTEXT)
        for name in ("hidden_size", "num_heads", "head_dim", "intermediate_size", "vocab_size"):
            _check_int(name, getattr(self, name), 1, _MAX_DIMENSION)
        _check_int("num_kv_heads", self.num_kv_heads, 1, self.num_heads)
        _check_int("rope_dim", self.rope_dim, 2, self.head_dim)
        _check_positive("rms_norm_eps", self.rms_norm_eps)
        _check_positive("rope_theta", self.rope_theta)
        _check(type(self.tie_word_embeddings) is bool, "tie_word_embeddings is not a bool")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads={self.num_heads} is no multiple of num_kv_heads={self.num_kv_heads}")
        _check(self.rope_dim % 2 == 0, f"rope_dim={self.rope_dim} is odd")


@dataclass(frozen=True, slots=True)
class TokenizerData:
    """A vocabulary as the model file holds it. Ids are indices into `tokens`.

    `token_types` has one byte per token, GGUF's numbers: 1 normal, 2 unknown, 3 control, 4 user-defined,
    5 unused, 6 byte. `model` and `pre` are GGUF's names of the algorithm and of its text splitter.

    Raises:
        ValueError: on construction, naming the field.
    """

    model: str
    pre: str
    tokens: tuple[str, ...]
    token_types: bytes
    merges: tuple[str, ...]
    bos_token_id: int | None
    eos_token_id: int | None
    add_bos: bool

    def __post_init__(self) -> None:
        _check_text("tokenizer model", self.model, MAX_NAME_CHARS)
        _check_text("tokenizer pre", self.pre, MAX_NAME_CHARS)
        _check_texts("tokens", self.tokens)
        _check_texts("merges", self.merges)
        _check(type(self.token_types) is bytes, "token_types is not bytes")
        _check(len(self.tokens) > 0, "tokens is empty")
        if len(self.token_types) != len(self.tokens):
            raise ValueError(f"{len(self.token_types)} token_types for {len(self.tokens)} tokens")
        for name, token_id in (("bos_token_id", self.bos_token_id), ("eos_token_id", self.eos_token_id)):
            if token_id is not None:
                _check_int(name, token_id, 0, len(self.tokens) - 1)
        _check(type(self.add_bos) is bool, "add_bos is not a bool")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model's name, shape, vocabulary, chat template, the tokens that end its answers, and how it is sampled.

    `sampling` counts for requests that do not say how: what the model recommends, or `UNTOLD_SAMPLING`. It has no
    seed, no biases and no log probabilities, which are a request's own.

    Raises:
        ValueError: on construction, naming the field.
    """

    name: str
    config: ModelConfig
    tokenizer: TokenizerData | None
    chat_template: str | None
    stop_token_ids: tuple[int, ...]
    sampling: SamplingParams = UNTOLD_SAMPLING

    def __repr__(self) -> str:
        shape = f"{self.config.num_layers} layers, context_length={self.config.context_length}"
        return f"ModelCard({self.name!r}, {shape}, vocab_size={self.config.vocab_size})"

    def __post_init__(self) -> None:
        _check_text("name", self.name, MAX_NAME_CHARS)
        _check(type(self.config) is ModelConfig, "config is not a ModelConfig")
        _check(type(self.stop_token_ids) is tuple, "stop_token_ids is not a tuple")
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, self.config.vocab_size - 1)
        if self.chat_template is not None:
            _check_text("chat_template", self.chat_template, MAX_CARD_BYTES)
        _check(type(self.sampling) is SamplingParams, "sampling is not SamplingParams")
        told = SamplingParams(**{name: getattr(self.sampling, name) for name in MODEL_FIELDS})
        _check(told == self.sampling, "sampling has a seed, a bias or log probabilities")
        if self.tokenizer is not None:
            _check(type(self.tokenizer) is TokenizerData, "tokenizer is not TokenizerData")
            # Fewer is fine: embeddings are often padded to a round number of rows.
            num_tokens = len(self.tokenizer.tokens)
            _check(num_tokens <= self.config.vocab_size, f"{num_tokens} tokens exceed vocab_size")

    def encode(self) -> bytes:
        """Returns the card's only encoding: equal cards give equal bytes, hence equal digests.

        Raises:
            ValueError: the card is larger than `MAX_CARD_BYTES`, or a text is not valid Unicode.
        """
        tokenizer = None if self.tokenizer is None else _values(self.tokenizer)
        head = [CARD_VERSION, self.name, _values(self.config)]
        sampling = [getattr(self.sampling, name) for name in MODEL_FIELDS]
        data = bytes(msgpack.packb([*head, tokenizer, self.chat_template, self.stop_token_ids, sampling]))
        _check(len(data) <= MAX_CARD_BYTES, f"the card has {len(data)} bytes, the limit is {MAX_CARD_BYTES}")
        return data

    @staticmethod
    def decode(data: bytes) -> ModelCard:
        """Reads what `encode` wrote.

        Raises:
            ProtocolError: anything else; no other exception escapes.
        """
        if len(data) > MAX_CARD_BYTES:
            raise ProtocolError(f"model card of {len(data)} bytes; the limit is {MAX_CARD_BYTES}")
        try:
            return _build_card(msgpack.unpackb(data, raw=False, max_ext_len=0))
        # RecursionError: msgpack's pure-Python reader recurses into nested arrays.
        except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
            raise ProtocolError(f"not a model card: {error}") from None


def card_digest(data: bytes) -> str:
    """Names an encoded card: SHA-256 in lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _build_card(message: object) -> ModelCard:
    version = message[0] if isinstance(message, list) and message else None
    _check(version == CARD_VERSION, f"card version {version!r:.80}, expected {CARD_VERSION}")
    _, name, config, tokenizer, template, stops, sampling = _array("card", message, 7)
    return ModelCard(
        name=name,  # type: ignore[arg-type]  # the constructors check every field's type
        config=ModelConfig(*_array("config", config, len(fields(ModelConfig)))),  # type: ignore[arg-type]
        tokenizer=None if tokenizer is None else _build_tokenizer(tokenizer),
        chat_template=template,  # type: ignore[arg-type]
        stop_token_ids=tuple(_array("stop_token_ids", stops)),  # type: ignore[arg-type]
        sampling=_build_sampling(sampling),
    )


def _build_sampling(message: object) -> SamplingParams:
    values = dict(zip(MODEL_FIELDS, _array("sampling", message, len(MODEL_FIELDS)), strict=True))
    try:
        return SamplingParams(**values)  # type: ignore[arg-type]
    except RequestRefused as error:
        raise ValueError(error.detail) from None


def _build_tokenizer(message: object) -> TokenizerData:
    model, pre, tokens, types, merges, bos, eos, add_bos = _array("tokenizer", message, 8)
    token_texts, merge_texts = tuple(_array("tokens", tokens)), tuple(_array("merges", merges))
    return TokenizerData(model, pre, token_texts, types, merge_texts, bos, eos, add_bos)  # type: ignore[arg-type]


def _values(record: ModelConfig | TokenizerData) -> list[object]:
    return [getattr(record, field.name) for field in fields(record)]


def _array(name: str, value: object, length: int | None = None) -> list[object]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise ValueError(f"{name} is not an array" + ("" if length is None else f" of {length}"))
    return value


def _check(condition: bool, defect: str) -> None:
    if not condition:
        raise ValueError(defect)


def _check_int(name: str, value: object, low: int, high: int) -> None:
    # bool is an int to Python, but not to a peer.
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name}={value!r:.80} is not an integer in [{low}, {high}]")


def _check_positive(name: str, value: object) -> None:
    if type(value) is not float or not 0.0 < value < math.inf:
        raise ValueError(f"{name}={value!r:.80} is not a positive finite number")


def _check_text(name: str, value: object, max_chars: int) -> None:
    if type(value) is not str or not 1 <= len(value) <= max_chars:
        raise ValueError(f"{name} is not a text of 1 to {max_chars} characters")


def _check_texts(name: str, values: Sequence[object]) -> None:
    is_texts = type(values) is tuple and all(type(value) is str for value in values)
    _check(is_texts, f"{name} is not a tuple of texts")
