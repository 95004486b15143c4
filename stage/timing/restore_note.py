"""What became of a restore, and the line of the log that says so: the head's, when the step's result is back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

from stagewire.stage.timing.timing_line import one_word
from stagewire.wire.epoch import Epoch
from stagewire.wire.note import Note
from stagewire.wire.request import Restored
from stagewire.wire.ring import StartRequest, StepResult


class RestoreOutcome(str, Enum):
    """HIT: all stages held all that was asked for; PARTIAL: a part of it; MISS: nothing."""

    HIT = "hit"
    PARTIAL = "partial"
    MISS = "miss"


def outcome_of(restored: Restored) -> RestoreOutcome:
    """What a restore came to over all stages."""
    if restored.num_tokens >= restored.num_asked:
        return RestoreOutcome.HIT
    return RestoreOutcome.PARTIAL if restored.num_tokens else RestoreOutcome.MISS


def restore_notes(
    requests: Mapping[int, StartRequest], result: StepResult, total_s: float, epoch: Epoch
) -> Iterator[Note]:
    """One for each restore of a step that took `total_s`, as far as its request is still here, by sequence id."""
    for one in result.restored:
        if request := requests.get(one.seq_id):
            yield restore_note(request, one, result, total_s, epoch)


def restore_note(request: StartRequest, restored: Restored, result: StepResult, total_s: float, epoch: Epoch) -> Note:
    """`key=value`; `missed_at` is the stage that first held less, `evicted` what the step cost others, in blocks."""
    missed_at = "-" if restored.missed_at is None else restored.missed_at
    return Note(
        "restore",
        f"request={one_word(request.request_id)} session={one_word(request.session_id)} epoch={epoch} "
        f"outcome={outcome_of(restored).value} missed_at={missed_at} asked={restored.num_asked} "
        f"tokens={restored.num_tokens} fetched={restored.num_fetched} bytes={restored.num_bytes} "
        f"evicted={result.cache.evicted_blocks} elapsed_ms={1000 * total_s:.2f}",
        is_detail=True,
    )
