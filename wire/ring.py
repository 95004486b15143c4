"""Messages of the ring: the feed into the head, and the steps along the hops. Each comes in an `Envelope`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stagewire.wire.codec import Message, message
from stagewire.wire.errors import ErrorCode
from stagewire.wire.file_orders import FileOrder
from stagewire.wire.request import (
    NO_STATISTICS,
    CacheStatistics,
    FinishReason,
    Restored,
    ReturnOffer,
    SnapshotRequest,
    StageTiming,
    Unrecorded,
    Usage,
)
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import Tensor, TokenIds
from stagewire.wire.timing import Wait


@message(100)
@dataclass(frozen=True, slots=True)
class Repeat(Message):
    """An idle sender's heartbeat: the envelope repeats the last number, so that a lost message shows."""


# --- the feed: broker to head ---


@message(101)
@dataclass(frozen=True, slots=True)
class StartRequest(Message):
    """An admitted request. `sampling.seed` is set; `offer` comes with a client's first in this epoch.

    `admission_s` is what it has waited at the broker.
    """

    request_id: str
    client_id: str
    session_id: str
    sampling: SamplingParams
    max_tokens: int | None
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    offer: ReturnOffer | None
    prompt_token_ids: TokenIds
    snapshot: SnapshotRequest | None = None
    restore: str | None = None
    admission_s: float = 0.0


@message(102)
@dataclass(frozen=True, slots=True)
class CancelRequest(Message):
    """End a request, for the broker or, from the tail, for its client; `stop_after` so many tokens as STOP."""

    request_id: str
    stop_after: int | None = None


# --- the feed: stages to head ---


@dataclass(frozen=True, slots=True)
class SequenceResult:
    """What a step brought one sequence. `finish_reason` is set when the tail has written its ending."""

    seq_id: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    code: ErrorCode | None = None
    usage: Usage | None = None


@message(110)
@dataclass(frozen=True, slots=True)
class StepResult(Message):
    """The tail is through with a step; every step gets one, also one that sampled nothing.

    `restored` has an item for each slice that restores; `kept` are the sequences that all stages have kept
    a copy of, under these ids; `cache` is what all stages' caches did.
    """

    step_id: int
    results: tuple[SequenceResult, ...]
    timings: tuple[StageTiming, ...]
    restored: tuple[Restored, ...] = ()
    kept: tuple[int, ...] = ()
    cache: CacheStatistics = NO_STATISTICS


@message(111)
@dataclass(frozen=True, slots=True)
class Miss(Message):
    """A stage holds only `length` tokens of a sequence whose step begins later; it computed nothing of it.

    It goes straight to the head, past all stages between.
    """

    step_id: int
    seq_id: int
    length: int


@message(112)
@dataclass(frozen=True, slots=True)
class Flow(Message):
    """A request's return window is full (`paused`), or has room again."""

    request_id: str
    paused: bool


# --- the hops ---


class Phase(str, Enum):
    """What a slice is.

    PREFILL: tokens to compute. DECODE: one token to continue from. TRY_RESTORE: a prefix that each stage takes from
    its KV cache as far as it holds it; it has no rows. TRY_RESTORE_DECODE: a prefix that must be held whole, and
    behind it the one token to continue from, whose row is computed. RESUME: all tokens of the snapshot `source`; it
    has no rows, and the tail draws from the logits kept with it.
    """

    PREFILL = "prefill"
    DECODE = "decode"
    TRY_RESTORE = "try_restore"
    TRY_RESTORE_DECODE = "try_restore_decode"
    RESUME = "resume"


RESTORES = frozenset({Phase.TRY_RESTORE, Phase.TRY_RESTORE_DECODE, Phase.RESUME})
"""Slices that begin at position 0 and take what is held already."""


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """Tells the tail about a request, in the step that first carries it; `restore_note` is for its ending.

    Random numbers are drawn with `prompt_digest`, of the prompt as the request gave it, and `choice_index`, which
    counts the answers to it.
    """

    seq_id: int
    request_id: str
    client_id: str
    sampling: SamplingParams
    num_prompt_tokens: int
    prompt_digest: bytes
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    offer: ReturnOffer | None
    admission_s: float = 0.0
    choice_index: int = 0
    restore_note: str = ""
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class Keep:
    """Hold the first `num_tokens` of a sequence under another id, until that is released."""

    seq_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Slice:
    """`num_tokens` consecutive tokens of one sequence from `pos_start`, which is authoritative.

    `sample`: the tail draws the next token from the last row. `missed`: an earlier stage lacked the tokens
    before it; the slice then has no rows and later stages compute nothing of it either.
    `num_restored` belongs to restores: the tokens asked for, less what an earlier stage did not hold.
    `keep` comes after its rows; it is gone when a stage could not. `source` belongs to RESUME.
    """

    seq_id: int
    phase: Phase
    pos_start: int
    num_tokens: int
    sample: bool
    missed: bool = False
    num_restored: int = 0
    keep: Keep | None = None
    source: int | None = None

    @property
    def num_rows(self) -> int:
        """Rows that it has in the step's hidden states."""
        if self.missed:
            return 0
        if self.phase not in RESTORES:
            return self.num_tokens
        return 1 if self.phase is Phase.TRY_RESTORE_DECODE else 0

    @property
    def keeps_end(self) -> bool:
        """What it keeps ends with its last token, so the logits of that belong to it."""
        return self.keep is not None and self.keep.num_tokens == self.pos_start + self.num_tokens

    @property
    def has_logits(self) -> bool:
        """The tail computes the logits of its last row: to draw from, or to keep."""
        return self.num_rows > 0 and (self.sample or self.keeps_end)

    def as_decode(self) -> Slice:
        """What is left of a restore-and-decode once its prefix is there: one token, to be sampled as before."""
        return Slice(self.seq_id, Phase.DECODE, self.pos_start + self.num_tokens - 1, 1, self.sample)


@dataclass(frozen=True, slots=True)
class SequenceFinish:
    """The head ends a sequence, of `stop_after` tokens or all: the tail writes this ending unless one is written."""

    seq_id: int
    finish_reason: FinishReason
    code: ErrorCode | None = None
    detail: str = ""
    stop_after: int | None = None


@message(120)
@dataclass(frozen=True, slots=True)
class Step(Message):
    """One pass of one batch. Stages apply, in this order: releases, restores, the other slices, and at the tail
    starts before slices and finishes after them. A sequence has one slice with rows at most; a TRY_RESTORE may
    come before it.

    `token_ids` are those of all slices, one after the other, also of missed ones. `hidden_states` is float32
    [T, D] with the rows of the slices that were not missed; None on the way into the head. `cache` is what the
    caches of the stages so far did, since the step before. `waits` has an item for each sequence that has slices,
    `restored` one for each slice that restores, `unrecorded` one for each sequence that may end with this step and
    still has something for the caches.
    """

    step_id: int
    releases: tuple[int, ...]
    starts: tuple[SequenceStart, ...]
    slices: tuple[Slice, ...]
    finishes: tuple[SequenceFinish, ...]
    timings: tuple[StageTiming, ...]
    token_ids: TokenIds
    hidden_states: Tensor | None
    cache: CacheStatistics = NO_STATISTICS
    orders: tuple[FileOrder, ...] = ()
    waits: tuple[Wait, ...] = ()
    restored: tuple[Restored, ...] = ()
    unrecorded: tuple[Unrecorded, ...] = ()
