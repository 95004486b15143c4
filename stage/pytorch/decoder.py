"""A stage's layers in plain PyTorch: the general path on any device, and the oracle of the native one.

A Llama-family decoder: RMSNorm, rotary embedding, grouped-query attention over paged keys and values, SwiGLU.
Everything but attention runs on tiles of up to TILE_ROWS rows. Products, whose bits depend on the number of rows, are
padded to exactly as many; norms, activations and rotations treat each row alike in any company. On CPUs a row's bits
then depend on its sequence alone: not on the batch, the chunking or the number of threads (1 and 2 were compared).
That is measured, not promised by torch: `stage.selftest` proves it per process. Other machines and other torch builds
may compute other bits; the fingerprint says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from stagewire.stage.compute.embedding import EmbeddingTable, input_rows
from stagewire.stage.compute.operators import BLOCK_SIZE, Batch
from stagewire.stage.compute.rotary import rotary_table
from stagewire.stage.pytorch.attention import PlannedAttention, new_kv_pool
from stagewire.stage.pytorch.attention_plan import GroupSizes, plan_attention
from stagewire.stage.pytorch.linear import TILE_ROWS
from stagewire.stage.pytorch.weights import LayerWeights, OutputWeights
from stagewire.wire.card import ModelConfig


@dataclass(frozen=True, slots=True)
class StageWeights:
    """A stage's tensors. The first stage has `embedding`, the last `output`; `dtype` is the linear layers'."""

    embedding: EmbeddingTable | None
    layers: tuple[LayerWeights, ...]
    output: OutputWeights | None
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Resident bytes; the embedding stays in the file."""
        return sum(layer.num_bytes for layer in self.layers) + (self.output.num_bytes if self.output else 0)


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers of one step share."""

    attention: PlannedAttention
    rotations: Tensor  # complex64 [T, H + K, E / 2]; those of queries hold attention's 1 / sqrt(E) too
    slots: Tensor  # int64 [T]: each row's place in the pool, seen as [num_blocks * BLOCK_SIZE, 2 * K, E]
    tiles: tuple[slice, ...]


class TorchDecoder:
    """`Operators` on PyTorch: layers, their KV pool, and the arithmetic between them.

    Fingerprint, proof and sizes are the loader's to set.
    """

    fingerprint = ""
    is_row_exact = False
    file_bytes = 0
    weight_bytes = 0

    def __init__(
        self,
        config: ModelConfig,
        weights: StageWeights,
        num_blocks: int,
        device: torch.device,
        sizes: GroupSizes,
    ) -> None:
        self._config, self._weights, self._device = config, weights, device
        self._pool = new_kv_pool(config, len(weights.layers), num_blocks, weights.dtype, device)
        table = rotary_table(config)
        self._rotations = torch.view_as_complex(torch.from_numpy(table)).to(device)
        self.num_blocks = num_blocks
        self.block_bytes = self._pool[:, 0].numel() * self._pool.element_size()
        scales = torch.ones(config.num_heads + config.num_kv_heads, 1)
        scales[: config.num_heads] = config.head_dim**-0.5
        self._scales = scales.to(device)
        self._sizes = sizes

    def copy_block(self, source: int, target: int) -> None:
        """See `Operators.copy_block`."""
        self._pool[:, target].copy_(self._pool[:, source])

    def read_block(self, block: int) -> bytes:
        """See `Operators.read_block`."""
        return self._pool[:, block].contiguous().cpu().view(torch.uint8).numpy().tobytes()

    def write_block(self, block: int, content: bytes) -> None:
        """See `Operators.write_block`."""
        values = torch.frombuffer(bytearray(content), dtype=self._pool.dtype)
        self._pool[:, block].copy_(values.view(self._pool[:, block].shape))

    @torch.inference_mode()
    def forward(self, batch: Batch, hidden_states: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """See `Operators.forward`."""
        rows = input_rows(self._weights.embedding, batch, hidden_states)
        residual = torch.from_numpy(rows).to(self._device)
        step = self._plan(batch)
        for layer, pool in zip(self._weights.layers, self._pool, strict=True):
            self._run_layer(layer, pool, residual, step)
        if self._weights.output is None:
            return residual.cpu().numpy()
        return self._logits(self._weights.output, residual, batch.logit_rows)

    def _plan(self, batch: Batch) -> _Step:
        positions = torch.from_numpy(np.concatenate([part.positions for part in batch.slices])).to(self._device)
        slots = np.concatenate([
            part.block_table[part.positions // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE
            + part.positions % BLOCK_SIZE
            for part in batch.slices
        ])  # fmt: skip
        return _Step(
            PlannedAttention(plan_attention(batch.slices, self._sizes), self._config, self._device),
            self._rotations.index_select(0, positions).unsqueeze(1) * self._scales,
            torch.from_numpy(slots).to(self._device),
            _tiles(batch.num_rows),
        )

    def _run_layer(self, layer: LayerWeights, pool: Tensor, residual: Tensor, step: _Step) -> None:
        """Adds the layer's two contributions to `residual`, and stores keys and values in `pool`."""
        config = self._config
        shape = (config.num_kv_heads, len(residual), config.num_heads // config.num_kv_heads, config.head_dim)
        queries = torch.empty(shape, device=self._device)
        for tile in step.tiles:
            self._project(layer, pool.flatten(0, 1), residual[tile], step, tile, queries[:, tile])
        attended = step.attention(queries, pool).transpose(0, 1)
        for tile in step.tiles:
            self._transform(layer, residual[tile], attended[tile])

    def _project(
        self, layer: LayerWeights, pool: Tensor, rows: Tensor, step: _Step, tile: slice, queries: Tensor
    ) -> None:
        """Stores one tile's keys and values in `pool`, its queries in `queries` [K, rows, H / K, E]."""
        projected = layer.qkv(self._norm(rows, layer.attention_norm)).float()
        # Neighbouring elements are a pair, and a pair is a complex number: GGUF's order needs no shuffling.
        rotations = step.rotations[tile]
        pairs = torch.view_as_complex(projected.view(len(rows), -1, rotations.shape[2], 2))
        pairs[:, : rotations.shape[1]].mul_(rotations)
        heads = projected.view(len(rows), -1, self._config.head_dim)
        queries.copy_(heads[:, : self._config.num_heads].unflatten(1, (len(queries), -1)).transpose(0, 1))
        pool.index_copy_(0, step.slots[tile], heads[:, self._config.num_heads :].to(pool.dtype))

    def _transform(self, layer: LayerWeights, rows: Tensor, attended: Tensor) -> None:
        """Adds attention's output and the feed-forward network's to one tile of the residual stream."""
        attended = attended.reshape(len(rows), -1).to(self._weights.dtype)
        rows.add_(layer.attention_output(attended))
        gate, up = layer.gate_up(self._norm(rows, layer.ffn_norm)).chunk(2, dim=-1)
        rows.add_(layer.down(functional.silu(gate).mul_(up)))

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Returns the RMS norm of float32 rows, in the linear layers' dtype."""
        normed = functional.rms_norm(rows, weight.shape, weight, self._config.rms_norm_eps)
        return normed.to(self._weights.dtype)

    def _logits(self, output: OutputWeights, residual: Tensor, logit_rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Returns float32 [R, V]; rows that ask for no logits cost nothing."""
        logits = np.empty((len(logit_rows), self._config.vocab_size), np.float32)
        for tile in _tiles(len(logit_rows)):
            rows = residual.index_select(0, torch.from_numpy(logit_rows[tile]).to(self._device))
            logits[tile] = output.projection.float32(self._norm(rows, output.norm)).cpu().numpy()
        return logits


def _tiles(num_rows: int) -> tuple[slice, ...]:
    return tuple(slice(row, min(row + TILE_ROWS, num_rows)) for row in range(0, num_rows, TILE_ROWS))
