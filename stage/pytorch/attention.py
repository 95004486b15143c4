"""Attention over paged keys and values whose result for a row depends on nothing but its sequence up to it.

Every call into torch has the same shape for a query group and a key tile; only the number of groups varies, and
batched products were measured not to depend on it. Two passes: all scores and their exact maximum first, then
exponentials, their sum and the weighted values, tile after tile in the order of positions. So neither chunking
nor the batch changes an operation or its order (`stage.selftest` proves that in every process).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stagewire.stage.compute.operators import BLOCK_SIZE
from stagewire.stage.pytorch.attention_plan import KEY_TILE, AttentionPlan, GroupBatch, KeyTile
from stagewire.wire.card import ModelConfig

# Next to the maximum's weight of 1, exp(-80) is nothing; but where exp gets denormal it takes 200 times as long.
_LOWEST_EXPONENT = -80.0


def new_kv_pool(
    config: ModelConfig, num_layers: int, num_blocks: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Returns a pool [num_layers, num_blocks, BLOCK_SIZE, 2 * K, E], zeroed: a token's keys, then its values.

    On CPUs its memory becomes resident as blocks are written. Zeros matter: a masked position takes part with
    weight 0, and 0 times what is left in fresh memory may be NaN.
    """
    shape = (num_layers, num_blocks, BLOCK_SIZE, 2 * config.num_kv_heads, config.head_dim)
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy's zeros are the system's untouched pages; torch.zeros would write to each.
    storage = torch.from_numpy(np.zeros(shape, np.int32 if dtype == torch.float32 else np.int16))
    return storage.view(dtype)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A `KeyTile` on the device. `visible` is 1 where a query may look, else 0; `hidden` 0, else -infinity."""

    num_groups: int
    blocks: Tensor
    visible: Tensor | None
    hidden: Tensor | None

    @classmethod
    def of(cls, tile: KeyTile, group_heads: int, device: torch.device) -> _Tile:
        blocks = torch.from_numpy(tile.blocks).to(device)
        if tile.visible is None:
            return cls(tile.num_groups, blocks, None, None)
        visible = torch.from_numpy(tile.visible).to(device, torch.float32)
        visible = visible.repeat_interleave(group_heads, dim=1)  # [groups, rows, KEY_TILE]
        return cls(tile.num_groups, blocks, visible, visible.log())


@dataclass(frozen=True, slots=True)
class _Batch:
    """A `GroupBatch` on the device; `queries` is its part of all queries."""

    num_groups: int
    queries: slice
    tiles: tuple[_Tile, ...]


class PlannedAttention:
    """The attention of one step, for one layer after another."""

    def __init__(self, plan: AttentionPlan, config: ModelConfig, device: torch.device) -> None:
        self._group_heads = config.num_heads // config.num_kv_heads
        self._query_rows = torch.from_numpy(plan.query_rows).to(device)
        self._output_rows = torch.from_numpy(plan.output_rows).to(device)
        self._batches = tuple(self._to_device(plan.batches, device))

    def _to_device(self, batches: tuple[GroupBatch, ...], device: torch.device) -> Iterator[_Batch]:
        start = 0
        for batch in batches:
            queries = slice(start, start + batch.num_queries)
            tiles = tuple(_Tile.of(tile, self._group_heads, device) for tile in batch.tiles)
            yield _Batch(batch.num_groups, queries, tiles)
            start = queries.stop

    def __call__(self, queries: Tensor, pool: Tensor) -> Tensor:
        """Attends.

        Args:
            queries: float32 [K, T, H / K, E], rotated and scaled.
            pool: one layer's [num_blocks, BLOCK_SIZE, 2 * K, E]; holds the step's own keys and values already.

        Returns:
            float32 [K, T, H / K, E].
        """
        grouped = queries.index_select(1, self._query_rows)
        outputs = torch.empty_like(grouped)
        num_heads, _, _, head_dim = grouped.shape
        for batch in self._batches:
            shape = (num_heads, batch.num_groups, -1, head_dim)  # rows of a group: its tokens times H / K
            output, total = _attend(grouped[:, batch.queries].view(shape), pool, batch.tiles)
            torch.div(output, total, out=outputs[:, batch.queries].view(shape))
        return outputs.index_select(1, self._output_rows)


def _attend(queries: Tensor, pool: Tensor, tiles: tuple[_Tile, ...]) -> tuple[Tensor, Tensor]:
    """Returns weighted values [K, groups, rows, E] of queries of that shape, and weights [K, groups, rows, 1]."""
    gathered = [_gather(pool, tile.blocks) for tile in tiles]
    scores = [
        _scores(queries[:, : tile.num_groups], keys, tile) for tile, (keys, _) in zip(tiles, gathered, strict=True)
    ]
    maximum = scores[0].amax(-1, keepdim=True)
    for tile, score in zip(tiles[1:], scores[1:], strict=True):
        reached = maximum[:, : tile.num_groups]
        torch.maximum(reached, score.amax(-1, keepdim=True), out=reached)
    output, total = None, None
    for tile, score, (_, values) in zip(tiles, scores, gathered, strict=True):
        weights = score.sub_(maximum[:, : tile.num_groups]).clamp_min_(_LOWEST_EXPONENT).exp_()
        if tile.visible is not None:
            weights.mul_(tile.visible)
        part, part_total = _product(weights, values), weights.sum(-1, keepdim=True)
        if output is None or total is None:  # the first tile, which all groups reach
            output, total = part, part_total
        else:
            output[:, : tile.num_groups] += part
            total[:, : tile.num_groups] += part_total
    assert output is not None
    assert total is not None
    return output, total


def _gather(pool: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Returns keys [K, S, E, KEY_TILE] and values [K, S, KEY_TILE, E] in float32, tokens in order.

    S is 1 where all groups share a sequence.
    """
    tokens = pool.index_select(0, blocks).float().view(-1, KEY_TILE, *pool.shape[2:])
    keys, values = tokens.chunk(2, dim=2)
    return keys.permute(2, 0, 3, 1), values.permute(2, 0, 1, 3)


def _scores(queries: Tensor, keys: Tensor, tile: _Tile) -> Tensor:
    scores = _product(queries, keys)
    return scores if tile.hidden is None else scores.add_(tile.hidden)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Returns left [K, groups, rows, X] times right [K, groups or 1, X, Y], head by head."""
    num_heads, num_groups, num_rows, _ = left.shape
    if num_groups == 1:
        return torch.bmm(left[:, 0], right[:, 0]).unsqueeze(1)
    product = left.new_empty(num_heads, num_groups, num_rows, right.shape[-1])
    for head in range(num_heads):
        torch.bmm(left[head], right[head].expand(num_groups, -1, -1), out=product[head])
    return product
