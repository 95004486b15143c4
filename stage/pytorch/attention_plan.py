"""Cuts a step's attention into calls of fixed shape, once per step; all layers share the plan. No torch here.

Queries come in groups of tokens of one sequence, keys in tiles of `KEY_TILE` positions from 0. Which tokens share
a group depends on the batch, so nothing may depend on it: a group's rows do not see each other, and a key after a
row's own position is masked, which adds an exact zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagewire.stage.compute.operators import BLOCK_SIZE, SequenceRows

KEY_TILE = 256
TILE_BLOCKS = KEY_TILE // BLOCK_SIZE
# What bounds a batch's memory: groups of one sequence share its keys; groups of several bring their own.
_MAX_SHARED_GROUPS = 8
_MAX_SEPARATE_TILES = 16


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """Tokens in a query group: `few` for a slice that has no more than that (decode), else `many`.

    Two sizes, since a decode that is padded to a prefill's group costs several times as much. They are right
    only where a row's bits do not depend on the choice; `stage.selftest` finds out, or else takes one for both.
    """

    few: int
    many: int


@dataclass(frozen=True, slots=True)
class KeyTile:
    """Positions `[index * KEY_TILE, (index + 1) * KEY_TILE)`, for the batch's first `num_groups` groups.

    `blocks` int64: the tile's KV blocks, of each group in turn, or once where all groups share a sequence.
    `visible` bool [num_groups, group_tokens, KEY_TILE]: where a query may look; None: everywhere.
    """

    num_groups: int
    blocks: NDArray[np.int64]
    visible: NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """Groups of one size that are computed together, those that reach furthest first."""

    num_groups: int
    group_tokens: int
    tiles: tuple[KeyTile, ...]

    @property
    def num_queries(self) -> int:
        return self.num_groups * self.group_tokens


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """`query_rows` int64 [queries]: the step's row of each group's tokens, batch after batch.

    A group with fewer tokens than its size repeats its last. `output_rows` int64 [T] is the way back.
    """

    query_rows: NDArray[np.int64]
    output_rows: NDArray[np.int64]
    batches: tuple[GroupBatch, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    """Up to `size` rows of one sequence."""

    size: int
    row_start: int
    num_rows: int
    pos_start: int
    block_table: NDArray[np.int32]

    @property
    def num_tiles(self) -> int:
        return (self.pos_start + self.num_rows - 1) // KEY_TILE + 1

    @property
    def offsets(self) -> NDArray[np.int64]:
        return np.minimum(np.arange(self.size), self.num_rows - 1)

    def tile_blocks(self, index: int) -> NDArray[np.int32]:
        blocks = self.block_table[index * TILE_BLOCKS : (index + 1) * TILE_BLOCKS]
        # Beyond the sequence: any block whose numbers are finite, for nothing of it gets through.
        return np.pad(blocks, (0, TILE_BLOCKS - len(blocks)), constant_values=self.block_table[0])


def plan_attention(slices: Sequence[SequenceRows], sizes: GroupSizes) -> AttentionPlan:
    """Returns the plan of a step with these rows."""
    query_rows, batches, num_queries = [], [], 0
    output_rows = np.zeros(sum(part.num_rows for part in slices), np.int64)
    for groups, is_shared in _batches(slices, sizes):
        for group in groups:
            rows = np.arange(group.num_rows)
            output_rows[group.row_start + rows] = num_queries + rows
            query_rows.append(group.row_start + group.offsets)
            num_queries += group.size
        batches.append(GroupBatch(len(groups), groups[0].size, tuple(_tiles(groups, is_shared))))
    return AttentionPlan(np.concatenate(query_rows), output_rows, tuple(batches))


def _batches(slices: Sequence[SequenceRows], sizes: GroupSizes) -> Iterator[tuple[list[_Group], bool]]:
    """Yields groups that go together, and whether they are all of one sequence."""
    separate: list[_Group] = []
    for part in slices:
        if part.num_rows <= sizes.few:
            separate.append(_group(part, 0, sizes.few))
            continue
        groups = [_group(part, offset, sizes.many) for offset in range(0, part.num_rows, sizes.many)][::-1]
        for start in range(0, len(groups), _MAX_SHARED_GROUPS):
            yield groups[start : start + _MAX_SHARED_GROUPS], True
    separate.sort(key=lambda group: -group.num_tiles)
    while separate:
        num_groups = max(1, _MAX_SEPARATE_TILES // separate[0].num_tiles)
        yield separate[:num_groups], False
        del separate[:num_groups]


def _group(part: SequenceRows, offset: int, size: int) -> _Group:
    num_rows = min(size, part.num_rows - offset)
    return _Group(size, part.row_start + offset, num_rows, part.pos_start + offset, part.block_table)


def _tiles(groups: list[_Group], is_shared: bool) -> Iterator[KeyTile]:
    positions = np.stack([group.pos_start + group.offsets for group in groups])
    for index in range(groups[0].num_tiles):
        members = [group for group in groups if group.num_tiles > index]
        owners = members[:1] if is_shared else members
        blocks = np.concatenate([group.tile_blocks(index) for group in owners]).astype(np.int64)
        yield KeyTile(len(members), blocks, _visible(positions[: len(members)], index))


def _visible(positions: NDArray[np.int64], index: int) -> NDArray[np.bool_] | None:
    keys = np.arange(index * KEY_TILE, (index + 1) * KEY_TILE)
    if positions.min() >= keys[-1]:
        return None
    return keys <= positions[:, :, None]
