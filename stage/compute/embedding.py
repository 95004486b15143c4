"""Looks token embeddings up in the mapped model file: decodes the rows that tokens need, never the table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stagewire.model.gguf import GgufFile
from stagewire.model.gguf_types import dequantize_bytes
from stagewire.stage.compute.operators import Batch

_Q8_0 = np.dtype([("scale", "<f2", (1,)), ("codes", "i1", (32,))])


class EmbeddingTable:
    """The token embedding, left in the file.

    The pages that are touched belong to the file, not to the process: the system takes them back when memory
    is short. The default model's table would take 113 MB as float32.
    """

    def __init__(self, gguf: GgufFile, name: str) -> None:
        vocab_size = gguf.tensor(name).shape[0]
        self._type = gguf.tensor_type(name).name
        self._rows = np.frombuffer(gguf.raw(name), np.uint8).reshape(vocab_size, -1)  # no copy

    def rows(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """The embeddings of these tokens as a new array: float32 [T, D]."""
        stored = self._rows[token_ids]
        if self._type == "Q8_0":  # the general way takes three times as long for a few rows
            blocks = stored.view(_Q8_0)
            with np.errstate(all="ignore"):
                values = blocks["codes"] * blocks["scale"].astype(np.float32)
            rows: NDArray[np.float32] = values.reshape(len(token_ids), -1)
            return rows
        decoded = dequantize_bytes(stored.reshape(-1), self._type).reshape(len(token_ids), -1)
        return np.array(decoded, np.float32)


def input_rows(
    embedding: EmbeddingTable | None, batch: Batch, hidden_states: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """What a stage's first layer takes, as a new array: float32 [T, D], looked up or copied from what came.

    Raises:
        ValueError: token ids and hidden states at once, or neither, or numbers that are not float32.
    """
    if embedding is not None and hidden_states is None:
        return embedding.rows(batch.token_ids)
    if embedding is not None or hidden_states is None:
        raise ValueError("a first stage starts from token ids, and only a first stage")
    if hidden_states.dtype != np.float32:
        raise ValueError(f"hidden states of {hidden_states.dtype}, not float32")
    return np.array(hidden_states, np.float32, order="C")
