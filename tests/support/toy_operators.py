"""A model whose every output depends on every token before it, through the KV blocks, in exact integers.

It stands for the arithmetic where a test is about scheduling, blocks, messages or failures: a wrong block, a lost or
repeated row, or a token out of place changes what comes out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stagewire.stage.compute.operators import BLOCK_SIZE, Batch

VOCAB_SIZE = 64
_PRIME = 9973


class ToyOperators:
    """Layers `[layer_start, layer_end)` of the toy; `is_first` embeds, `is_last` gives logits float32 [R, V]."""

    fingerprint = "toy"
    is_row_exact = True
    file_bytes = 0
    weight_bytes = 0

    def __init__(self, layer_start: int, layer_end: int, num_layers: int, num_blocks: int) -> None:
        self.layers = range(layer_start, layer_end)
        self.is_first, self.is_last = layer_start == 0, layer_end == num_layers
        self.num_blocks = num_blocks
        # Stale values are there on purpose: reading one is a bug that must show.
        self._pool = np.full((len(self.layers), num_blocks, BLOCK_SIZE), 7919, dtype=np.int64)

    @property
    def block_bytes(self) -> int:
        return self._pool[:, 0].nbytes

    def copy_block(self, source: int, target: int) -> None:
        self._pool[:, target] = self._pool[:, source]

    def read_block(self, block: int) -> bytes:
        return self._pool[:, block].tobytes()

    def write_block(self, block: int, content: bytes) -> None:
        self._pool[:, block] = np.frombuffer(content, np.int64).reshape(len(self.layers), BLOCK_SIZE)

    def forward(self, batch: Batch, hidden_states: NDArray[np.float32] | None) -> NDArray[np.float32]:
        batch.check()
        values = batch.token_ids.astype(np.int64) + 1 if hidden_states is None else hidden_states[:, 0].astype(np.int64)
        for index, layer in enumerate(self.layers):
            values = self._layer(index, layer, batch, values)
        if not self.is_last:
            return values.astype(np.float32)[:, None].repeat(2, axis=1)
        logits = np.zeros((len(batch.logit_rows), VOCAB_SIZE), dtype=np.float32)
        logits[np.arange(len(batch.logit_rows)), values[batch.logit_rows] % VOCAB_SIZE] = 9.0
        return logits

    def _layer(self, index: int, layer: int, batch: Batch, values: NDArray[np.int64]) -> NDArray[np.int64]:
        out = np.empty_like(values)
        for part in batch.slices:
            for row in range(part.row_start, part.row_start + part.num_rows):
                position = part.pos_start + row - part.row_start
                block, slot = part.block_table[position // BLOCK_SIZE], position % BLOCK_SIZE
                self._pool[index, block, slot] = values[row]
                history = self._pool[index, part.block_table].reshape(-1)[: position + 1]
                out[row] = (int(history @ np.arange(1, position + 2)) + 31 * (layer + 1)) % _PRIME
        return out


def expected_tokens(prompt: list[int], num_tokens: int, num_layers: int) -> list[int]:
    """What greedy decoding of the toy gives, computed from the tokens alone."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        values = np.array(token_ids, dtype=np.int64) + 1
        for layer in range(num_layers):
            sums = np.cumsum(values * np.arange(1, len(values) + 1))
            values = (sums + 31 * (layer + 1)) % _PRIME
        token_ids.append(int(values[-1] % VOCAB_SIZE))
    return token_ids[len(prompt) :]
