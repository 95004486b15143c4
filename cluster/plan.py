"""Which layers each stage holds: splits of a model, as pure functions; it reads no model file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from stagewire.wire.card import ModelConfig
from stagewire.wire.counted import counted
from stagewire.wire.errors import ErrorCode, SettingsError


@dataclass(frozen=True, slots=True)
class LayerRange:
    """The layers `[start, end)`; written `start:end`, as in `--layers 0:12`.

    Raises:
        SettingsError: INVALID_LAYER_RANGE, on construction: the range is empty, or begins below 0.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise _invalid(f"layers {self} are an empty range; the end is the first layer left out")

    def __str__(self) -> str:
        return f"{self.start}:{self.end}"

    def __len__(self) -> int:
        return self.end - self.start

    @classmethod
    def parse(cls, text: str) -> LayerRange:
        """Reads `0:12`.

        Raises:
            SettingsError: INVALID_LAYER_RANGE, the text is not two numbers, or no range.
        """
        start, colon, end = text.strip().partition(":")
        if not colon or not (start.isdecimal() and end.isdecimal()):
            raise _invalid(f"layers {text.strip()!r}: expected start:end, as in 0:12 for the first 12")
        return cls(int(start), int(end))


def equal_split(num_layers: int, num_stages: int, weights: Sequence[float] | None = None) -> tuple[LayerRange, ...]:
    """Cuts `num_layers` into `num_stages` ranges in proportion to `weights` (all equal when None).

    Every cut is the whole number nearest to its share, moved only so far that each stage has a layer.

    Raises:
        SettingsError: INVALID_LAYER_RANGE, there are more stages than layers, or no stage; INVALID_SETTING,
            `weights` are not one positive number for each stage.
    """
    if not 1 <= num_stages <= num_layers:
        raise _invalid(
            f"stages={num_stages}: a model of {counted(num_layers, 'layer')} takes 1 to {counted(num_layers, 'stage')}"
        )
    shares = [1.0] * num_stages if weights is None else list(weights)
    if len(shares) != num_stages or not all(0 < share < math.inf for share in shares):
        raise SettingsError(f"weights={shares}: expected {num_stages} positive numbers, one for each stage")
    cuts = [0]
    for index in range(1, num_stages):
        nearest = math.floor(num_layers * sum(shares[:index]) / sum(shares) + 0.5)
        cuts.append(min(max(nearest, cuts[-1] + 1), num_layers - (num_stages - index)))
    cuts.append(num_layers)
    return tuple(LayerRange(start, end) for start, end in pairwise(cuts))


def projection_layers(config: ModelConfig) -> float:
    """How many layers the projection to the vocabulary counts as, where stages are balanced.

    Decode computes it for every row, and there it costs what its weights cost, as a layer does (8 layers of the
    default model); prefill computes it for one row of a prompt, which is nothing. One cut serves both, so it counts
    half: then neither is far from the cut that would be best for it alone (13% and 11% for the default model in two
    stages). The embedding of tokens is a look-up and counts nothing.
    """
    attention = 2 * config.hidden_size * config.head_dim * (config.num_heads + config.num_kv_heads)
    layer = attention + 3 * config.hidden_size * config.intermediate_size
    return 0.5 * config.vocab_size * config.hidden_size / layer


def balanced_split(num_layers: int, num_stages: int, last_extra: float) -> tuple[LayerRange, ...]:
    """Cuts so that the slowest stage is as fast as can be; the last one also computes as much as `last_extra` layers.

    Raises:
        SettingsError: as `equal_split`.
    """
    if not 1 < num_stages <= num_layers:
        return equal_split(num_layers, num_stages)

    def slowest(num_last: int) -> float:
        return max(math.ceil((num_layers - num_last) / (num_stages - 1)), num_last + last_extra)

    # Of equally good ones that with the most layers at the end, which is the most even.
    num_last = min(range(num_layers - num_stages + 1, 0, -1), key=slowest)
    first_last = num_layers - num_last
    return (*equal_split(first_last, num_stages - 1), LayerRange(first_last, num_layers))


def parse_split(text: str, num_layers: int) -> tuple[LayerRange, ...]:
    """Reads `0:12,12:30`: one range for each stage, head first.

    Raises:
        SettingsError: INVALID_LAYER_RANGE, naming what is not a range and the layers that belong to no stage,
            to two, or to no model.
    """
    ranges = tuple(LayerRange.parse(part) for part in text.split(","))
    check_split(ranges, num_layers)
    return ranges


def check_split(ranges: Sequence[LayerRange], num_layers: int) -> None:
    """Checks that `ranges`, in their order, cover `[0, num_layers)` without gap or overlap.

    Raises:
        SettingsError: INVALID_LAYER_RANGE, naming the layers.
    """
    if not ranges:
        raise _invalid("the split is empty: name one range for each stage, as in 0:12,12:30")
    if list(ranges) != sorted(ranges, key=lambda layers: layers.start):
        raise _invalid(f"split {_join(ranges)}: the ranges must be in order, the first layers first")
    covered = 0
    for layers in ranges:
        if layers.start > covered:
            raise _invalid(f"split {_join(ranges)}: layers {covered}:{layers.start} belong to no stage")
        if layers.start < covered:
            twice = LayerRange(layers.start, min(covered, layers.end))
            raise _invalid(f"split {_join(ranges)}: layers {twice} belong to two stages")
        covered = layers.end
    if covered > num_layers:
        raise _invalid(f"split {_join(ranges)}: the model has only the layers 0:{num_layers}")
    if covered < num_layers:
        raise _invalid(f"split {_join(ranges)}: layers {covered}:{num_layers} belong to no stage")


def _join(ranges: Sequence[LayerRange]) -> str:
    return ",".join(str(layers) for layers in ranges)


def _invalid(detail: str) -> SettingsError:
    return SettingsError(detail, ErrorCode.INVALID_LAYER_RANGE)
