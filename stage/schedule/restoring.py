"""How a sequence enters: what it takes from snapshots and caches before anything is computed; why not what it named."""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.stage.schedule.sequence import Sequence
from stagewire.stage.schedule.snapshots import Snapshots
from stagewire.stage.schedule.step_builder import Lookup
from stagewire.wire.ring import Phase


@dataclass(frozen=True, slots=True)
class Restore:
    """The slice that restores the first `num_restored` tokens; `source` is the snapshot that it resumes."""

    phase: Phase
    num_tokens: int
    num_restored: int
    source: int | None = None


class Restoring:
    """What the head knows to be held: by `snapshots`, and, through `lookup`, by its own stage's cache."""

    def __init__(self, snapshots: Snapshots, lookup: Lookup) -> None:
        self._snapshots, self._lookup = snapshots, lookup

    def choose(self, sequence: Sequence, only_whole: bool) -> Restore | None:
        """The restore with which `sequence` begins in this step, whose releases are done.

        Whole: from a snapshot of exactly its tokens, or fused with the first decode where all but the last token is
        there. That is done on admission. A part is taken when the first chunk is due, for by then more may be there;
        what is left is prefilled in the same step, without waiting for what later stages hold.
        """
        self._note(sequence)
        token_ids, last = sequence.token_ids, len(sequence.token_ids) - 1
        snapshot = self._snapshots.longest(sequence.request.client_id, token_ids)
        if sequence.restore_limit is not None or not sequence.max_tokens:
            snapshot = None
        if snapshot and snapshot.num_tokens > last:
            return Restore(Phase.RESUME, last + 1, last + 1, snapshot.seq_id)
        if sequence.restore_limit is not None:
            token_ids = token_ids[: sequence.restore_limit]
        limit = min(last, len(token_ids))
        num_held = self._lookup(token_ids, limit) if limit else 0
        num_held = max(num_held, min(limit, sequence.num_fetched))
        if snapshot and not only_whole and snapshot.num_tokens >= num_held:
            return Restore(Phase.RESUME, snapshot.num_tokens, snapshot.num_tokens, snapshot.seq_id)
        if not num_held or (only_whole and num_held < last):
            return None
        if num_held == last:
            return Restore(Phase.TRY_RESTORE_DECODE, last + 1, last)
        return Restore(Phase.TRY_RESTORE, num_held, num_held)

    def _note(self, sequence: Sequence) -> None:
        """As it begins: whether the snapshot that its request names is of use, for the tail to tell in the ending."""
        request = sequence.request
        if request.restore is not None and not sequence.is_announced:
            sequence.restore_note = self._snapshots.why_unused(request.client_id, request.restore, sequence.token_ids)
