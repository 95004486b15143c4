"""What one stage process is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from secrets import token_hex

from stagewire.sockets.condition import WireCondition
from stagewire.wire.address import bound, dialled
from stagewire.wire.errors import ErrorCode, SettingsError

_LIMITS: dict[str, tuple[float, float]] = {
    "threads": (1, 1024),
    "kv_tokens": (64, 1 << 26),
    "cache_tokens": (0, 1 << 26),
    "disk_bytes": (1 << 20, 1 << 50),
    "max_sequences": (1, 4096),
    "chunk_tokens": (1, 8192),
    "chunk_target_s": (0.001, 60),
    "step_deadline_s": (0.1, 3600),
    "dial_timeout_s": (0.1, 60),
    "metrics_port": (0, 65_535),
}

PRECISIONS = ("auto", "stored", "int8", "int4", "bf16", "f32")
"""Of weights: as the file stores them, 8 or 4 bits at most (on the native kernels); floats (on PyTorch)."""
KV_PRECISIONS = ("auto", "f16", "f32")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """A stage holds layers `[layer_start, layer_end)` of `model`; `layer_end` None means the last.

    `kv_tokens` is the capacity of the KV pool, of which the prefix cache keeps at most `cache_tokens` that no request
    uses (None: all that is free; 0: no cache). What the cache keeps is also written to `disk_directory`, if there is
    one, up to `disk_bytes` in all, and read when a prompt wants it. Exported snapshots lie in `snapshot_directory`,
    up to `snapshot_bytes`. `chunk_tokens` bounds a step's prefill chunks; within it, they are cut so that the slowest
    stage takes about `chunk_target_s` for them, and beside decodes no longer than for those. A client that has not
    answered a dial within `dial_timeout_s` gets its tokens through the broker. `metrics_port` serves
    `/metrics` on loopback (0: any free port; None: nothing). The conditions simulate a network.

    Raises:
        SettingsError: a value is outside its limits; the message names field, value and limit.
    """

    model: str
    control_endpoint: str
    layer_start: int = 0
    layer_end: int | None = None
    stage_id: str = field(default_factory=lambda: f"stage-{token_hex(4)}")
    bind: str = "tcp://127.0.0.1:*"
    precision: str = "auto"
    kv_precision: str = "auto"
    device: str = "cpu"
    threads: int = 1
    kv_tokens: int = 32_768
    cache_tokens: int | None = None
    disk_directory: str | None = None
    disk_bytes: int = 4 << 30
    snapshot_directory: str | None = None
    snapshot_bytes: int = 16 << 30
    max_sequences: int = 64
    chunk_tokens: int = 256
    chunk_target_s: float = 0.25
    step_deadline_s: float = 60.0
    dial_timeout_s: float = 4.0
    metrics_port: int | None = 0
    hop_condition: WireCondition | None = None
    feed_condition: WireCondition | None = None
    return_condition: WireCondition | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _LIMITS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise SettingsError(f"{name}={value}: must be between {low} and {high}")
        for name, choices in (("precision", PRECISIONS), ("kv_precision", KV_PRECISIONS)):
            if getattr(self, name) not in choices:
                raise SettingsError(f"{name}={getattr(self, name)!r}: must be one of {', '.join(choices)}")
        object.__setattr__(self, "control_endpoint", dialled(self.control_endpoint, "control_endpoint").endpoint)
        listens_at = bound(self.bind, "bind")
        if not listens_at.is_loopback:
            raise SettingsError(f"bind={self.bind}: only loopback addresses are served without keys")
        object.__setattr__(self, "bind", listens_at.endpoint)
        if not 0 < len(self.stage_id) <= 64:
            raise SettingsError(f"stage_id={self.stage_id!r}: must have 1 to 64 characters")
        if self.layer_start < 0 or (self.layer_end is not None and self.layer_end <= self.layer_start):
            raise SettingsError(
                f"layers {self.layer_start}:{self.layer_end}: a stage needs at least one layer",
                ErrorCode.INVALID_LAYER_RANGE,
            )
