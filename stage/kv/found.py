"""What a stage has of the tokens that it is asked for: counted once for each request, told with the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stagewire.stage.kv.prefix_cache import PrefixCache
from stagewire.stage.kv.store import KvStore
from stagewire.wire.request import Restored
from stagewire.wire.ring import Step


@dataclass(frozen=True, slots=True)
class Found:
    """What this stage has of a restore's tokens; `num_fetched` of them were read from files."""

    num_asked: int
    num_found: int
    num_fetched: int = 0


_NOTHING = Found(0, 0)


def count_asked(step: Step, found: Mapping[int, Found], cache: PrefixCache, *, is_head: bool) -> None:
    """The tokens of requests that begin with this step count as held or missing: once, however often they enter.

    A head is asked for a prompt's tokens but its last, or more where it has a snapshot; others for what the stages
    before them hold.
    """
    present = {span.seq_id for span in step.slices}
    for start in step.starts:
        here = found.get(start.seq_id, _NOTHING)
        num_asked = max(here.num_asked, start.num_prompt_tokens - 1) if is_head else here.num_asked
        if start.seq_id in present and num_asked:
            cache.count_tokens(here.num_found - here.num_fetched, here.num_fetched, num_asked - here.num_found)
            if here is _NOTHING:
                cache.count_lookup(0, num_asked)


def restored_so_far(step: Step, found: Mapping[int, Found], stage_index: int, store: KvStore) -> tuple[Restored, ...]:
    """What became of the step's restores through this stage."""
    before = {one.seq_id: one for one in step.restored}
    told: list[Restored] = []
    for seq_id, here in found.items():
        last = before.pop(seq_id, None) or Restored(seq_id, here.num_asked, here.num_asked)
        is_short = last.missed_at is None and here.num_found < here.num_asked
        told.append(
            Restored(
                seq_id,
                here.num_found,
                last.num_asked,
                last.num_bytes + store.num_bytes(here.num_found),
                max(last.num_fetched, here.num_fetched),
                stage_index if is_short else last.missed_at,
            )
        )
    return (*before.values(), *told)
