"""Identities of a model file: of the whole, cheaply, and of a stage's tensors, exactly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from stagewire.model.gguf import GgufFile

_SAMPLE_BYTES = 64


def model_digest(gguf: GgufFile) -> str:
    """Tells model files apart at start-up, in milliseconds; SHA-256 in hexadecimal.

    It covers the complete header (all metadata, vocabulary and merges included, and the tensor table with
    names, shapes, types and offsets) and 64 bytes from the middle of every tensor, so that checkpoints of
    one training run differ. It does *not* cover the other weights: that is what `stage_digest` is for. The
    samples are read past the mapping: no page of another stage's tensor is mapped.
    """
    digest = hashlib.sha256(b"stagewire-model-1\n")
    digest.update(gguf.read_bytes(0, gguf.header_bytes))
    for info in sorted(gguf.tensors.values(), key=lambda info: info.offset):
        middle = info.offset + max(0, info.num_bytes - _SAMPLE_BYTES) // 2
        digest.update(gguf.read_bytes(middle, min(_SAMPLE_BYTES, info.num_bytes)))
    return digest.hexdigest()


def stage_digest(gguf: GgufFile, names: Iterable[str]) -> str:
    """Identifies a stage's tensors exactly: names, types, shapes and every byte; SHA-256 in hexadecimal.

    The order of `names` does not matter. Each tensor's pages are given back as soon as it has been read.

    Raises:
        ModelError: a tensor is missing or of an unknown type.
    """
    digest = hashlib.sha256(b"stagewire-stage-1\n")
    for name in sorted(set(names)):
        digest.update(gguf.tensor_digest(name))
        gguf.release(name)
    return digest.hexdigest()
