"""The records that describe one request: how it ended, what it used, where its time went."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stagewire.wire.errors import ErrorCode
from stagewire.wire.timing import RequestTiming


class FinishReason(str, Enum):
    """Why a request ended. STOP: an end token or stop sequence; LENGTH: its budget or the context ran out."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. `cached_tokens` of the prompt were not computed but found in the KV cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StageTiming:
    """What one stage spent on steps that held the request, whole steps also where others shared them.

    `steps` is their number; `plan_s` making the step and its rows ready; `compute_s` forward passes; `sample_s`
    sampling (tail only); `codec_s` turning a step into frames and back; `queue_s` waiting for the stage to be free. It
    may have waited `unread_s` longer, at most: so long the stage was computing before it read the step. `written_s` of
    `codec_s` is of the step before, whose frames were made after its times were told.
    """

    stage_index: int
    steps: int
    compute_s: float
    sample_s: float
    codec_s: float
    queue_s: float = 0.0
    plan_s: float = 0.0
    unread_s: float = 0.0
    written_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What the KV caches of stages did; those of several stages or steps add up with `plus`.

    A lookup is a hit where a stage holds all that it is asked for, else a miss, of which it may still restore
    a part. Of the restored tokens `fetched_tokens` came from files. `errors` are keys whose tokens were others.
    `hit_stages` and `miss_stages` have bit `i` set for stage `i`.
    """

    lookups: int = 0
    hits: int = 0
    misses: int = 0
    errors: int = 0
    restored_tokens: int = 0
    restored_bytes: int = 0
    fetched_tokens: int = 0
    recorded_tokens: int = 0
    recorded_bytes: int = 0
    evicted_blocks: int = 0
    hit_stages: int = 0
    miss_stages: int = 0

    def plus(self, other: CacheStatistics) -> CacheStatistics:
        """Counts add, masks join."""
        return CacheStatistics(
            self.lookups + other.lookups,
            self.hits + other.hits,
            self.misses + other.misses,
            self.errors + other.errors,
            self.restored_tokens + other.restored_tokens,
            self.restored_bytes + other.restored_bytes,
            self.fetched_tokens + other.fetched_tokens,
            self.recorded_tokens + other.recorded_tokens,
            self.recorded_bytes + other.recorded_bytes,
            self.evicted_blocks + other.evicted_blocks,
            self.hit_stages | other.hit_stages,
            self.miss_stages | other.miss_stages,
        )


NO_STATISTICS = CacheStatistics()
"""Nothing has happened yet."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore of `num_asked` tokens found: the `num_tokens` that all stages so far hold.

    `num_bytes` are their keys and values, of all these stages; the most that one has read from files for it are
    `num_fetched` tokens. `missed_at` is the stage that first held less than it was asked for.
    """

    seq_id: int
    num_tokens: int
    num_asked: int = 0
    num_bytes: int = 0
    num_fetched: int = 0
    missed_at: int | None = None


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """What goes into the prefix caches when a sequence is released: tokens, and bytes, of all stages so far."""

    seq_id: int
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Keep the first `num_tokens` of the prompt, or all of it, under this name until it is freed.

    A snapshot of the same client and name is replaced once this one is complete. With a `file`, the prompt is empty,
    and its tokens and blocks are those that were exported there.
    """

    name: str
    num_tokens: int | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """The one ending of a request.

    `num_tokens` is the total that was sent, so that a client knows whether it holds them all; it is None
    where the writer cannot know it (the broker, after a stage was lost). `code` and `detail` belong to FAILED.
    `timings` and `cache` are of all steps that held the request, with what others did in them, and `cache` has what
    the request's release inserts after them; `timing` is where its own time went, from the tail only. `kept_tokens` is
    the length of the snapshot that all stages keep of its prompt. `restore_note` says why the snapshot that it named
    could not be used as a whole; empty if it could, or named none.
    """

    finish_reason: FinishReason
    num_tokens: int | None
    usage: Usage
    timings: tuple[StageTiming, ...] = ()
    code: ErrorCode | None = None
    detail: str = ""
    cache: CacheStatistics = NO_STATISTICS
    kept_tokens: int = 0
    timing: RequestTiming | None = None
    restore_note: str = ""


@dataclass(frozen=True, slots=True)
class ReturnOffer:
    """A bound PAIR endpoint of a client that nobody has used yet.

    `nonce` proves to whoever answers there that the dialler was told of it; of two offers the higher
    `generation` is the newer.
    """

    endpoint: str
    nonce: bytes
    generation: int
