"""What one broker process is told at its start, and the limits of each value."""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.sockets.condition import WireCondition
from stagewire.wire.address import DEFAULT_CONTROL, DEFAULT_FRONTEND, bound
from stagewire.wire.errors import SettingsError

_LIMITS: dict[str, tuple[float, float]] = {
    "max_queued": (1, 65_536),
    "max_queued_bytes": (1024, 1 << 36),
    "max_clients": (1, 65_536),
    "max_requests_per_client": (1, 65_536),
    "max_stages": (1, 4096),
    "max_sessions": (1, 1 << 22),
    "max_finished": (1024, 1 << 22),
    "feed_credit": (2, 512),
    "queue_timeout_s": (0.1, 3600),
    "no_pipeline_wait_s": (0, 3600),
    "stage_silence_s": (0.5, 3600),
    "step_hang_s": (0.5, 3600),
    "client_silence_s": (1, 3600),
    "takeover_s": (0.1, 60),
    "grace_s": (0, 60),
    "answer_s": (0.5, 600),
    "snapshot_expiry_s": (0.1, 31_536_000),
    "metrics_port": (0, 65_535),
}


def is_loopback(endpoint: str) -> bool:
    """Whether a peer's endpoint is TCP on one of this machine's own addresses."""
    try:
        return endpoint.startswith("tcp://") and bound(endpoint, "endpoint").is_loopback
    except SettingsError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Endpoints (in any form of `address.bound`; port `*` takes a free one), limits, and times in seconds.

    Attributes:
        max_queued: requests that wait for a pipeline; 1,000 of one client fit.
        max_queued_bytes: prompts held for requests that no head has acknowledged yet.
        max_requests_per_client: accepted and not ended.
        max_finished: ended requests remembered for 60 s, so that a late resend never runs one again; when
            this many ended within 60 s, new ones are refused.
        feed_credit: messages sent to a head that it has not answered.
        no_pipeline_wait_s: how long a request waits while no pipeline stands for it.
        stage_silence_s: a stage unheard for longer is lost; one whose step is older than `step_hang_s` too.
        takeover_s: a restarted stage replaces its predecessor once that has been silent for this long.
        grace_s: how long a starting broker only collects what stands.
        answer_s: how long a stage may take to answer an assembly, or the end of one.
        snapshot_expiry_s: how long snapshots outlive a client that has no name of its own; those of others stay.
        metrics_port: serves `/metrics` and `/sd` on loopback; 0 takes a free port, None serves nothing.
        feed_condition: simulates the network between broker and heads.

    Raises:
        SettingsError: a value is outside its limits, or an endpoint is not on loopback.
    """

    frontend_endpoint: str = DEFAULT_FRONTEND
    control_endpoint: str = DEFAULT_CONTROL
    max_queued: int = 2048
    max_queued_bytes: int = 256 * 1024 * 1024
    max_clients: int = 1024
    max_requests_per_client: int = 2048
    max_stages: int = 256
    max_sessions: int = 16_384
    max_finished: int = 65_536
    feed_credit: int = 256
    queue_timeout_s: float = 60.0
    no_pipeline_wait_s: float = 10.0
    stage_silence_s: float = 2.5
    step_hang_s: float = 60.0
    client_silence_s: float = 10.0
    takeover_s: float = 1.0
    grace_s: float = 3.0
    answer_s: float = 5.0
    snapshot_expiry_s: float = 300.0
    metrics_port: int | None = 0
    feed_condition: WireCondition | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _LIMITS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise SettingsError(f"{name}={value}: must be between {low} and {high}")
        for name in ("frontend_endpoint", "control_endpoint"):
            address = bound(getattr(self, name), name)
            if not address.is_loopback:
                raise SettingsError(
                    f"{name}={getattr(self, name)}: must be tcp://127.0.0.1:PORT or tcp://[::1]:PORT; "
                    "without keys the broker serves this machine only"
                )
            object.__setattr__(self, name, address.endpoint)  # as it was meant, whatever the form
