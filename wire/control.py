"""Messages of control, between every stage (DEALER) and the broker (ROUTER)."""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.wire.codec import Message, message
from stagewire.wire.counters import StageCounters
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import FinishReason, Usage

# --- stage to broker ---


@dataclass(frozen=True, slots=True)
class StageInfo:
    """What a stage holds and where its one PULL socket is bound.

    `run` is drawn at process start: the same `stage_id` with another `run` is a restarted stage. Stages chain
    only where `model_digest`, `precision` and `fingerprint` are equal. `file_bytes` of its own tensors were
    read, `weight_bytes` of memory hold them; `tensors_digest` identifies them exactly. `kernel` names what computes;
    equal fingerprints compute equal bits whatever it is, and where `is_row_exact` they do not depend on the batch.
    `card_digest` is empty but for a first stage. At most `cache_blocks` of the KV pool rest in the prefix cache.
    `metrics_address` is the `host:port` that serves `/metrics`, or empty.
    """

    stage_id: str
    run: int
    data_endpoint: str
    model_name: str
    model_digest: str
    card_digest: str
    num_layers: int
    layer_start: int
    layer_end: int
    context_length: int
    vocab_size: int
    precision: str
    kernel: str
    fingerprint: str
    is_row_exact: bool
    device: str
    threads: int
    num_blocks: int
    block_size: int
    max_sequences: int
    file_bytes: int
    weight_bytes: int
    tensors_digest: str
    cache_blocks: int
    metrics_address: str = ""


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request that a head holds, waiting or running."""

    request_id: str
    client_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class AssemblyReport:
    """The assembly that a stage serves when it registers; `requests` comes from the head only."""

    epoch: Epoch
    stage_index: int
    num_stages: int
    requests: tuple[RunningRequest, ...]


@message(60)
@dataclass(frozen=True, slots=True)
class Register(Message):
    """A stage has loaded its layers and is ready, or the broker asked `WhoAreYou`."""

    info: StageInfo
    assembly: AssemblyReport | None


@message(61)
@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """Every 0.5 s from a thread of its own, on a connection of its own.

    `progress` grows with every finished step; `step_age_s` is how long the current one has been computed, or
    None between steps: a long chunk is not taken for death, nor a hang for life. `counters` are not older than the
    current step.
    """

    stage_id: str
    run: int
    progress: int
    step_age_s: float | None
    counters: StageCounters | None = None


@message(62)
@dataclass(frozen=True, slots=True)
class Assembled(Message):
    """The stage holds the links of this epoch and will take its messages."""

    epoch: Epoch


@message(63)
@dataclass(frozen=True, slots=True)
class Dissolved(Message):
    """The stage has fenced this epoch: it will never again send or take a message of it."""

    epoch: Epoch


@message(64)
@dataclass(frozen=True, slots=True)
class GenerateAck(Message):
    """The head holds the request (`code` None), or cannot take it and nothing of it has run."""

    request_id: str
    epoch: Epoch
    code: ErrorCode | None
    detail: str


@message(65)
@dataclass(frozen=True, slots=True)
class RequestEnded(Message):
    """The tail has ended a request. The head sends it again until `RequestEndedAck`."""

    request_id: str
    epoch: Epoch
    finish_reason: FinishReason
    code: ErrorCode | None
    usage: Usage


@message(66)
@dataclass(frozen=True, slots=True)
class Fault(Message):
    """The epoch cannot go on: a gap in a link, an overdue step, a failed forward pass."""

    epoch: Epoch
    code: ErrorCode
    detail: str


@message(67)
@dataclass(frozen=True, slots=True)
class StageBye(Message):
    """The stage leaves by itself."""

    stage_id: str
    run: int


# --- broker to stage ---


@message(80)
@dataclass(frozen=True, slots=True)
class Registered(Message):
    """Welcome. `keep` is the reported assembly if it stands; the stage dissolves any other by itself."""

    incarnation: int
    keep: Epoch | None


@message(81)
@dataclass(frozen=True, slots=True)
class RegisterRefused(Message):
    """The stage cannot join; it exits and says why."""

    code: ErrorCode
    detail: str


@message(82)
@dataclass(frozen=True, slots=True)
class Assemble(Message):
    """Serve as `stage_index` of `num_stages` in this epoch.

    `next_endpoint` is None for the last stage. `num_blocks` is the smallest KV pool of the pipeline, in
    blocks, which the head accounts against; `cache_blocks` the smallest cache. `numerics` is a digest of all that
    this stage's KV depends on besides the tokens: tensors and fingerprints of this and all earlier stages.
    """

    epoch: Epoch
    stage_index: int
    num_stages: int
    feed_endpoint: str
    next_endpoint: str | None
    num_blocks: int
    cache_blocks: int
    numerics: str


@message(83)
@dataclass(frozen=True, slots=True)
class Dissolve(Message):
    """End this epoch: drop its requests and links, answer `Dissolved`. Sent again until answered."""

    epoch: Epoch


@message(84)
@dataclass(frozen=True, slots=True)
class RequestEndedAck(Message):
    """The broker has noted the ending."""

    request_id: str
