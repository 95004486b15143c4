"""Which stages make a pipeline, and which layers keep one from being whole; it knows no state but ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from stagewire.wire.control import StageInfo


class Kind(NamedTuple):
    """What must be equal in all stages of a pipeline. The head counts KV in blocks, hence their size."""

    model_digest: str
    precision: str
    fingerprint: str
    num_layers: int
    block_size: int


def kind_of(info: StageInfo) -> Kind:
    return Kind(info.model_digest, info.precision, info.fingerprint, info.num_layers, info.block_size)


def find_chain(stages: Iterable[StageInfo]) -> tuple[StageInfo, ...] | None:
    """The stages that cover `[0, num_layers)` without gap or overlap; None when no choice does.

    Of several chains the one with fewest stages (each costs a hop), then the one with the first names: the
    same pool always gives the same answer.
    """
    for _, members in _by_kind(stages):
        best: dict[int, tuple[StageInfo, ...]] = {0: ()}
        for info in sorted(members, key=lambda info: info.layer_start):
            if info.layer_start in best:
                chain = (*best[info.layer_start], info)
                best[info.layer_end] = min(best.get(info.layer_end, chain), chain, key=_preference)
        if info.num_layers in best:
            return best[info.num_layers]
    return None


def is_whole(stages: tuple[StageInfo, ...]) -> bool:
    """Whether these stages, in this order, are a pipeline."""
    starts = [0, *(info.layer_end for info in stages)]
    ends = [*(info.layer_start for info in stages), stages[-1].num_layers] if stages else []
    return starts == ends and len({kind_of(info) for info in stages}) == 1


def missing_layers(stages: Iterable[StageInfo]) -> str:
    """What keeps these stages from being a pipeline, in words; empty when nothing does."""
    registered = list(stages)
    if not registered:
        return "no stage has registered"
    if find_chain(registered):
        return ""
    return "; ".join(_lack(kind, members) for kind, members in _by_kind(registered))


def _lack(kind: Kind, members: list[StageInfo]) -> str:
    label = f"{members[0].model_name} ({kind.precision}, fingerprint {kind.fingerprint})"
    gaps = ", ".join(f"{start}:{end}" for start, end in _gaps(members))
    if gaps:
        return f"{label}: nobody holds layers {gaps} of {kind.num_layers}"
    ranges = ", ".join(sorted(f"{info.layer_start}:{info.layer_end}" for info in members))
    return f"{label}: all {kind.num_layers} layers are held, but the ranges {ranges} overlap and make no chain"


def _gaps(members: list[StageInfo]) -> Iterator[tuple[int, int]]:
    covered = 0
    for info in sorted(members, key=lambda info: info.layer_start):
        if info.layer_start > covered:
            yield covered, info.layer_start
        covered = max(covered, info.layer_end)
    if covered < members[0].num_layers:
        yield covered, members[0].num_layers


def _by_kind(stages: Iterable[StageInfo]) -> Iterator[tuple[Kind, list[StageInfo]]]:
    for kind, members in groupby(sorted(stages, key=kind_of), key=kind_of):
        yield kind, list(members)


def _preference(chain: tuple[StageInfo, ...]) -> tuple[int, tuple[str, ...]]:
    return len(chain), tuple(info.stage_id for info in chain)
