"""What the head has the stages do with files: orders that go out with steps, and who has not answered yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stagewire.stage.files.stage_files import MAX_STAGED
from stagewire.stage.schedule.scheduler import Scheduler
from stagewire.stage.schedule.sequence import Sequence as TokenSequence
from stagewire.wire.errors import ErrorCode
from stagewire.wire.file_orders import FileAction, FileDone, FileOrder
from stagewire.wire.tensor import TokenIds

FileLookup = Callable[[Sequence[int]], tuple[int, int]]
"""How many of the first tokens the head's own stage holds in full blocks, and how many with its files behind them."""

_FEWEST_FETCHED_TOKENS = 16
"""Computing fewer is about as fast as asking for them."""
_MAX_ORDERS = MAX_STAGED
_MANIFEST = -1
"""In place of a stage's index."""
_FETCH_S = 2.0
_FETCH_PAUSE_S = 30.0
"""A disk that has not answered once is not asked for so long: every prompt would wait for it."""
_FILE_S = 60.0


def no_files(_token_ids: Sequence[int]) -> tuple[int, int]:
    """There are no files."""
    return 0, 0


@dataclass(slots=True)
class FileWait:
    """An order, the stages that still work on it, and what the others have answered. The first failure stays."""

    order: FileOrder
    deadline: float
    missing: set[int]
    num_tokens: list[int] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)
    code: ErrorCode | None = None
    detail: str = ""

    def take(self, done: FileDone) -> None:
        self.missing.discard(done.stage_index)
        self.num_tokens.append(done.num_tokens)
        self.digests[done.stage_index] = done.digest
        if done.code and not self.code:
            self.code, self.detail = done.code, f"stage {done.stage_index}: {done.detail}"


class HeadFiles:
    """Open orders of one pipeline epoch, one for a sequence at a time."""

    def __init__(self, scheduler: Scheduler, num_stages: int, file_lookup: FileLookup) -> None:
        self._scheduler, self._num_stages, self._file_lookup = scheduler, num_stages, file_lookup
        self._waits: dict[int, FileWait] = {}
        self._fetch_again_at = float("-inf")

    @property
    def has_room(self) -> bool:
        """Whether one more order may be given."""
        return len(self._waits) < _MAX_ORDERS

    def fetch(self, sequence: TokenSequence, now: float) -> None:
        """If files hold more of a new sequence's tokens than memory does, it waits until they are read."""
        if not self.has_room or now < self._fetch_again_at:
            return
        num_held, num_reached = self._file_lookup(sequence.token_ids)
        if num_reached - num_held >= _FEWEST_FETCHED_TOKENS:
            sequence.is_fetching = sequence.has_files = True
            token_ids = TokenIds.of(sequence.token_ids)
            self.order(FileOrder(sequence.seq_id, FileAction.FETCH, token_ids=token_ids), now)

    def await_manifest(self, order: FileOrder, now: float) -> None:
        """The head itself is busy with a manifest for this order, which has not gone out yet."""
        self._waits[order.seq_id] = FileWait(order, now + _FILE_S, {_MANIFEST})

    def take_manifest(self, seq_id: int, file: str) -> bool:
        """The manifest of this file is there; False if it was not waited for any more."""
        wait = self._waits.get(seq_id)
        if wait is None or _MANIFEST not in wait.missing or wait.order.file != file:
            return False
        del self._waits[seq_id]
        return True

    def order(self, order: FileOrder, now: float) -> None:
        """Send it with the next step; `take`, or `overdue`, tells what became of it."""
        allowed_s = _FETCH_S if order.action is FileAction.FETCH else _FILE_S
        self._waits[order.seq_id] = FileWait(order, now + allowed_s, set(range(self._num_stages)))
        self._scheduler.order(order)

    def take(self, done: FileDone) -> FileWait | None:
        """A stage's answer; returns the order's end once all have answered."""
        wait = self._waits.get(done.seq_id)
        if wait is None or done.stage_index not in wait.missing:
            return None
        wait.take(done)
        return self._waits.pop(done.seq_id) if not wait.missing else None

    def overdue(self, now: float) -> list[FileWait]:
        """Orders that have taken too long; what is answered later is ignored."""
        late = [seq_id for seq_id, wait in self._waits.items() if now >= wait.deadline]
        waits = [self._waits.pop(seq_id) for seq_id in late]
        if any(wait.order.action is FileAction.FETCH for wait in waits):
            self._fetch_again_at = now + _FETCH_PAUSE_S
        for wait in waits:
            wait.code, wait.detail = ErrorCode.SNAPSHOT_FILE, "reading or writing the files took too long"
        return waits
