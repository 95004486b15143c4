"""One sequence as the head sees it: its tokens, how far they are scheduled, its state."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from stagewire.wire.errors import InvalidTransition
from stagewire.wire.prompt_digest import prompt_digest
from stagewire.wire.ring import Keep, SequenceStart, StartRequest


class SequenceState(Enum):
    """WAITING holds no blocks; RUNNING does once it has a slice; ENDING: the tail is to write the ending."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


_NEXT: dict[SequenceState, frozenset[SequenceState]] = {
    SequenceState.WAITING: frozenset({SequenceState.RUNNING, SequenceState.ENDING, SequenceState.ENDED}),
    SequenceState.RUNNING: frozenset({SequenceState.WAITING, SequenceState.ENDING, SequenceState.ENDED}),
    SequenceState.ENDING: frozenset({SequenceState.ENDED}),
    SequenceState.ENDED: frozenset(),
}


@dataclass(slots=True)
class Sequence:
    """`token_ids` are prompt and generated tokens; the first `num_scheduled` have gone into steps.

    `awaited_step` is the step whose sample is on its way. `first_step` is the earliest step whose misses
    concern the present attempt: a rewind makes older ones stale. `last_step` is the latest that took it along.
    `keep` is a snapshot that is not complete yet, `kept_in` the step that carries it.
    `is_fetching`: it waits for files, of which all stages have then `num_fetched` tokens. `has_files`: stages may hold
    what they have read for it, until it is released.
    `restore_note`: why the snapshot that the request names cannot be used as a whole, as the tail is told.
    `restore_limit` is what the stage held that lacked a part of the last restore: the next one asks for no more.
    """

    seq_id: int
    request: StartRequest
    token_ids: list[int]
    num_prompt_tokens: int
    max_tokens: int
    state: SequenceState = SequenceState.WAITING
    num_scheduled: int = 0
    awaited_step: int | None = None
    first_step: int = 0
    last_step: int = 0
    restore_note: str = ""
    restore_limit: int | None = None
    keep: Keep | None = None
    kept_in: int | None = None
    is_fetching: bool = False
    has_files: bool = False
    num_fetched: int = 0
    is_announced: bool = False
    is_paused: bool = False
    history: deque[object] = field(default_factory=lambda: deque(maxlen=16))

    @property
    def num_unscheduled(self) -> int:
        return len(self.token_ids) - self.num_scheduled

    @property
    def is_decoding(self) -> bool:
        """All of the prompt has been scheduled, and never rewound since."""
        return self.num_scheduled >= self.num_prompt_tokens and len(self.token_ids) - self.num_scheduled <= 1

    @property
    def is_schedulable(self) -> bool:
        is_free = self.awaited_step is None and not self.is_paused and not self.is_fetching
        return is_free and len(self.token_ids) > self.num_scheduled

    def start(self) -> SequenceStart:
        """What the tail must know of it."""
        request = self.request
        return SequenceStart(
            seq_id=self.seq_id,
            request_id=request.request_id,
            client_id=request.client_id,
            sampling=request.sampling,
            num_prompt_tokens=self.num_prompt_tokens,
            prompt_digest=prompt_digest(request.prompt_token_ids),
            max_tokens=self.max_tokens,
            stop_token_ids=request.stop_token_ids,
            offer=request.offer,
            admission_s=request.admission_s,
            restore_note=self.restore_note,
            session_id=request.session_id,
        )

    @property
    def num_prefill(self) -> int:
        """Tokens of the next chunk if it may be as long as it likes: up to a snapshot, or to the end."""
        missing = self.keep.num_tokens - self.num_scheduled if self.keep and self.kept_in is None else 0
        return missing if missing > 0 else self.num_unscheduled

    def num_blocks(self, block_size: int, extra_tokens: int = 0) -> int:
        """Blocks that the scheduled tokens and `extra_tokens` more occupy."""
        return -(-(self.num_scheduled + extra_tokens) // block_size)

    def move(self, state: SequenceState) -> None:
        """Change state along the table.

        Raises:
            InvalidTransition: the table has no such step; nothing changed.
        """
        if state not in _NEXT[self.state]:
            raise InvalidTransition(self.request.request_id, self.state, state, list(self.history))
        self.history.append(self.state)
        self.state = state

    def rewind(self, next_step: int, restore_limit: int | None = None) -> None:
        """Forget what was scheduled; the next attempt begins at position 0, in `next_step` or later."""
        self.move(SequenceState.WAITING)
        self.num_scheduled = 0
        self.first_step = next_step
        self.restore_limit, self.num_fetched = restore_limit, 0
