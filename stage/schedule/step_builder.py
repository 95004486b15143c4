"""A step under construction: what the scheduler has put into it so far, and what it may ask meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items

from stagewire.stage.schedule.sequence import Sequence
from stagewire.wire.file_orders import FileOrder
from stagewire.wire.ring import SequenceFinish, SequenceStart, Slice, Step
from stagewire.wire.tensor import TokenIds

Lookup = Callable[[Items[int], int, int | None], int]
"""How many of the first `limit` tokens the head's own stage can restore.

Asked with token ids, limit, and how many of them there are elsewhere, so that what is missing can be counted; None if
it will be asked again.
"""


def no_lookup(_token_ids: Items[int], _limit: int, _elsewhere: int | None) -> int:
    """Nothing can ever be restored."""
    return 0


class StepBuilder:
    """`taken` are the sequences that already have a slice in it."""

    def __init__(self, releases: list[int]) -> None:
        self.releases = releases
        self.starts: list[SequenceStart] = []
        self.slices: list[Slice] = []
        self.token_ids: list[int] = []
        self.taken: set[int] = set()
        self.computed_only: list[Sequence] = []

    def announce(self, sequence: Sequence) -> None:
        """Tell the tail about a sequence, once."""
        if not sequence.is_announced:
            sequence.is_announced = True
            self.starts.append(sequence.start())

    def add(self, span: Slice, token_ids: Items[int]) -> None:
        """One more slice with its tokens."""
        self.slices.append(span)
        self.token_ids.extend(token_ids)
        self.taken.add(span.seq_id)

    def step(self, step_id: int, finishes: Items[SequenceFinish], orders: Items[FileOrder]) -> Step:
        """The step as it leaves the head."""
        return Step(
            step_id=step_id,
            releases=tuple(self.releases),
            starts=tuple(self.starts),
            slices=tuple(self.slices),
            finishes=tuple(finishes),
            timings=(),
            token_ids=TokenIds.of(self.token_ids),
            hidden_states=None,
            orders=tuple(orders),
        )
