"""Reads a model's shape from GGUF metadata, and refuses by name whatever would change the arithmetic."""

from __future__ import annotations

import struct

from stagewire.model.foreign import describe_metadata
from stagewire.model.gguf import GgufFile
from stagewire.model.split import refuse_parts
from stagewire.wire.card import ModelConfig
from stagewire.wire.errors import ErrorCode, ModelError

SUPPORTED_ARCHITECTURES = ("llama",)
_DEFAULT_ROPE_THETA = 10000.0


def read_config(gguf: GgufFile) -> ModelConfig:
    """Returns the decoder's shape.

    Raises:
        ModelError: UNSUPPORTED_ARCHITECTURE, naming the architecture or the feature that is not supported, or
            what else than a whole language model the file holds;
            MODEL_FILE_INVALID, naming a key or tensor that is missing or impossible.
    """
    refuse_parts(gguf)
    if kind := describe_metadata(gguf.metadata):
        raise ModelError(f"{gguf.path}: no language model, but {kind}", ErrorCode.UNSUPPORTED_ARCHITECTURE)
    architecture = gguf.metadata.get("general.architecture")
    if architecture is None:
        raise ModelError(f"{gguf.path}: the metadata has no general.architecture; is it a model at all?")
    if architecture not in SUPPORTED_ARCHITECTURES:
        supported = ", ".join(SUPPORTED_ARCHITECTURES)
        raise _unsupported(gguf, f"the architecture {architecture!r:.80} (supported: {supported})")
    keys = _Keys(gguf, str(architecture))
    _refuse_variants(keys)
    try:
        return _build(keys)
    except ValueError as error:
        raise ModelError(f"{gguf.path}: impossible model shape: {error}") from None


class _Keys:
    """The metadata of one architecture, by type; a missing key without a default is an error."""

    def __init__(self, gguf: GgufFile, architecture: str) -> None:
        self.gguf, self.architecture = gguf, architecture

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._lookup(key, default)
        if type(value) is not int:
            raise ModelError(f"{self.gguf.path}: {self.architecture}.{key}={value!r:.80} is not an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._lookup(key, default)
        if isinstance(value, (bool, str)):
            raise ModelError(f"{self.gguf.path}: {self.architecture}.{key}={value!r:.80} is not a number")
        return float(value)

    def _lookup(self, key: str, default: int | float | None) -> int | float | bool | str:
        full_key = f"{self.architecture}.{key}"
        if full_key in self.gguf.arrays:
            raise _unsupported(self.gguf, f"a different {full_key} in each layer")
        value = self.gguf.metadata.get(full_key, default)
        if value is None:
            raise ModelError(f"{self.gguf.path}: the metadata has no {full_key}")
        return value


def _build(keys: _Keys) -> ModelConfig:
    gguf = keys.gguf
    embedding = gguf.tensor("token_embd.weight").shape
    hidden_size = keys.integer("embedding_length")
    if len(embedding) != 2 or embedding[1] != hidden_size:
        raise ValueError(f"token_embd.weight has shape {embedding}, embedding_length is {hidden_size}")
    num_heads = keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", _default_head_dim(hidden_size, num_heads))
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise _unsupported(gguf, "values of another length than keys")
    return ModelConfig(
        architecture=keys.architecture,
        num_layers=keys.integer("block_count"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=keys.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        intermediate_size=keys.integer("feed_forward_length"),
        vocab_size=embedding[0],
        context_length=keys.integer("context_length"),
        rms_norm_eps=shortest(keys.number("attention.layer_norm_rms_epsilon")),
        rope_theta=shortest(keys.number("rope.freq_base", _DEFAULT_ROPE_THETA)),
        rope_dim=keys.integer("rope.dimension_count", head_dim),
        tie_word_embeddings="output.weight" not in gguf.tensors,
    )


def _default_head_dim(hidden_size: int, num_heads: int) -> int | None:
    # None where it does not divide: then the key is required.
    return hidden_size // num_heads if num_heads > 0 and hidden_size % num_heads == 0 else None


def _refuse_variants(keys: _Keys) -> None:
    """Refuses what shares the architecture's name but not its arithmetic."""
    gguf, metadata = keys.gguf, keys.gguf.metadata
    scaling = metadata.get(f"{keys.architecture}.rope.scaling.type", "none")
    if scaling != "none":
        raise _unsupported(gguf, f"rope scaling {scaling!r:.80}")
    # A factor without a type means linear scaling; `rope.scale_linear` is the factor's older name.
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        if keys.number(key, 1.0) not in (0.0, 1.0):
            raise _unsupported(gguf, f"rope scaling ({keys.architecture}.{key}={keys.number(key)})")
    for name in ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"):
        if name in gguf.tensors:
            raise _unsupported(gguf, f"rope scaling by the tensor {name}")
    if keys.integer("expert_count", 0) > 0:
        raise _unsupported(gguf, f"a mixture of experts ({keys.architecture}.expert_count)")
    window = keys.integer("attention.sliding_window", 0)
    if 0 < window < keys.integer("context_length"):
        raise _unsupported(gguf, f"sliding-window attention (window {window})")


def shortest(value: float) -> float:
    """Undoes a float32 round trip: 9.999999747378752e-06 in a file is the model author's 1e-05.

    Only for reading: the result is the shortest decimal that rounds to the same float32.
    """
    for digits in range(1, 10):
        candidate = float(f"{value:.{digits}g}")
        if struct.pack("f", candidate) == struct.pack("f", value):
            return candidate
    return value


def _unsupported(gguf: GgufFile, what: str) -> ModelError:
    return ModelError(f"{gguf.path}: {what} is not supported", ErrorCode.UNSUPPORTED_ARCHITECTURE)
