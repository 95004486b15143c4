"""What a cluster consists of: a broker and pipelines of stages, each with its layers, device and links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from stagewire.cluster.plan import LayerRange, balanced_split, parse_split
from stagewire.sockets.condition import WireCondition
from stagewire.wire.errors import SettingsError

DEFAULT_NUM_STAGES = 2
MAX_REPLICAS = 64
T = TypeVar("T")
Port = int | Literal["off"]
"""0 takes a free one; `off`: no endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLimits:
    """Settings of a stage by the same names, and how much it logs; None leaves the stage's default."""

    kv_tokens: int | None = None
    cache_tokens: int | None = None
    disk_directory: str | None = None
    disk_bytes: int | None = None
    snapshot_directory: str | None = None
    snapshot_bytes: int | None = None
    max_sequences: int | None = None
    chunk_tokens: int | None = None
    chunk_target_s: float | None = None
    step_deadline_s: float | None = None
    dial_timeout_s: float | None = None
    metrics_port: Port | None = None
    log_level: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """One stage process; None leaves the stage's default.

    `hop_condition` is that of the link to the next stage, `feed_condition` of the one back to the head,
    `return_condition` of those to clients.
    """

    layers: LayerRange
    device: str | None = None
    threads: int | None = None
    precision: str | None = None
    hop_condition: WireCondition | None = None
    feed_condition: WireCondition | None = None
    return_condition: WireCondition | None = None
    limits: StageLimits = StageLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSpec:
    """Settings of the broker by the same names; None leaves the broker's default. Ports are free ones."""

    frontend_endpoint: str = "tcp://127.0.0.1:*"
    control_endpoint: str = "tcp://127.0.0.1:*"
    max_queued: int | None = None
    max_requests_per_client: int | None = None
    queue_timeout_s: float | None = None
    no_pipeline_wait_s: float | None = None
    stage_silence_s: float | None = None
    step_hang_s: float | None = None
    grace_s: float | None = None
    client_silence_s: float | None = None
    snapshot_expiry_s: float | None = None
    metrics_port: Port | None = None
    log_level: str | None = None
    feed_condition: WireCondition | None = None

    def first(self) -> BrokerSpec:
        """As it is first started: no stage can know a port that was free, so that there is none to wait for."""
        is_known = not self.control_endpoint.endswith(":*")
        return self if is_known or self.grace_s is not None else replace(self, grace_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """`pipelines` are chains of stages, head first; several are replicas, or different cuts of the model."""

    model: str
    pipelines: tuple[tuple[StageSpec, ...], ...]
    broker: BrokerSpec = BrokerSpec()


def plan_pipelines(
    num_layers: int,
    *,
    stages: int | None = None,
    split: str | Sequence[str] | None = None,
    replicas: int = 1,
    device: str | Sequence[str] | None = None,
    threads: int | Sequence[int] | None = None,
    precision: str | None = None,
    conditions: Mapping[str, WireCondition] | None = None,
    limits: StageLimits = StageLimits(),
    last_extra: float = 0.0,
) -> tuple[tuple[StageSpec, ...], ...]:
    """Spreads a model over stages.

    Args:
        num_layers: of the model.
        stages: so many parts that take about equal time; without `stages` and `split`, two.
        split: the parts by name, as in `0:12,12:30`; several splits make pipelines of different cuts.
        replicas: how many of each pipeline.
        device: one for all stages, or one for each stage of a pipeline.
        threads: likewise.
        precision: of all stages.
        conditions: simulate a network: `hop` between neighbours, or `hop.1` only out of stage 1, `feed` into
            the head, `return` to clients. Every link draws from a seed of its own.
        limits: of all stages.
        last_extra: what the last stage computes besides its layers, in layers (`plan.projection_layers`).

    Raises:
        SettingsError: INVALID_LAYER_RANGE, or INVALID_SETTING, naming what is wrong.
    """
    if not 1 <= replicas <= MAX_REPLICAS:
        raise SettingsError(f"replicas={replicas}: must be between 1 and {MAX_REPLICAS}")
    cuts = _cuts(num_layers, stages, split, last_extra)
    _check_links(conditions or {}, max(len(cut) for cut in cuts))
    devices: list[str | None] = [device] if device is None or isinstance(device, str) else list(device)
    thread_counts: list[int | None] = [threads] if threads is None or isinstance(threads, int) else list(threads)

    def pipeline(cut: Sequence[LayerRange]) -> tuple[StageSpec, ...]:
        placed = zip(cut, _each("device", devices, cut), _each("threads", thread_counts, cut), strict=True)
        return tuple(
            StageSpec(
                layers=layers,
                device=stage_device,
                threads=stage_threads,
                precision=precision,
                hop_condition=_condition(conditions, "hop", index),
                feed_condition=_condition(conditions, "feed", index),
                return_condition=_condition(conditions, "return", index),
                limits=limits,
            )
            for index, (layers, stage_device, stage_threads) in enumerate(placed)
        )

    return tuple(pipeline(cut) for cut in cuts) * replicas


def _cuts(
    num_layers: int, stages: int | None, split: str | Sequence[str] | None, last_extra: float
) -> list[tuple[LayerRange, ...]]:
    if stages is not None and split is not None:
        raise SettingsError("stages and split: give one of them")
    if split is None:
        return [balanced_split(num_layers, DEFAULT_NUM_STAGES if stages is None else stages, last_extra)]
    splits = [split] if isinstance(split, str) else list(split)
    if not splits:
        raise SettingsError("split=[]: name at least one, as in 0:12,12:30")
    return [parse_split(text, num_layers) for text in splits]


def _each(name: str, values: list[T], cut: Sequence[LayerRange]) -> list[T]:
    if len(values) not in (1, len(cut)):
        raise SettingsError(f"{name}={','.join(map(str, values))}: give one, or {len(cut)}, one for each stage")
    return values * len(cut) if len(values) == 1 else values


def _check_links(conditions: Mapping[str, WireCondition], num_stages: int) -> None:
    known = ["hop", "feed", "return", *(f"hop.{index}" for index in range(num_stages - 1))]
    for link in conditions:
        if link not in known:
            raise SettingsError(f"wire condition of {link!r}: the links are {', '.join(known)}")


def _condition(conditions: Mapping[str, WireCondition] | None, link: str, index: int) -> WireCondition | None:
    conditions = conditions or {}
    condition = conditions.get(f"{link}.{index}", conditions.get(link))
    # Equal draws on every link would let all links stall at once.
    return None if condition is None else replace(condition, seed=condition.seed + index)
