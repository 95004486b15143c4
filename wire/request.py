"""The records that describe one request: how it ended, what it used, where its time went."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stagewire.wire.errors import ErrorCode


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

    `steps` is their number; `compute_s` forward passes; `sample_s` sampling (tail only); `codec_s` turning
    messages into frames and back.
    """

    stage_index: int
    steps: int
    compute_s: float
    sample_s: float
    codec_s: float

    def at(self, stage_index: int) -> StageTiming:
        """The same, of another stage."""
        return StageTiming(stage_index, self.steps, self.compute_s, self.sample_s, self.codec_s)


@dataclass(frozen=True, slots=True)
class Ending:
    """The one ending of a request.

    `num_tokens` is the total that was sent, so that a client knows whether it holds them all; it is None
    where the writer cannot know it (the broker, after a stage was lost). `code` and `detail` belong to FAILED.
    """

    finish_reason: FinishReason
    num_tokens: int | None
    usage: Usage
    timings: tuple[StageTiming, ...] = ()
    code: ErrorCode | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReturnOffer:
    """A bound PAIR endpoint of a client that nobody has used yet.

    `nonce` proves to whoever answers there that the dialler was told of it; of two offers the higher
    `generation` is the newer.
    """

    endpoint: str
    nonce: bytes
    generation: int
