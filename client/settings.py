"""What one client is told at its start, and the limits of each value."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stagewire.wire.address import DEFAULT_FRONTEND, ENDPOINT_VARIABLE, dialled
from stagewire.wire.client_id import draw_client_id
from stagewire.wire.errors import SettingsError

_MAX_CLIENT_ID_CHARS = 64
_LIMITS: dict[str, tuple[float, float]] = {
    "connect_timeout_s": (0.01, 3600),
    "silence_timeout_s": (0.1, 3600),
    "max_requests": (1, 65_536),
    "max_buffered_tokens": (512, 1 << 20),
}


def default_endpoint() -> str:
    """The broker that the environment variable STAGEWIRE_ENDPOINT names, else port 7070 of this machine.

    Raises:
        SettingsError: the variable holds something else than an address.
    """
    named = os.environ.get(ENDPOINT_VARIABLE)
    return dialled(named, ENDPOINT_VARIABLE).endpoint if named else DEFAULT_FRONTEND


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Where the broker is, how tokens come back, and limits; times in seconds.

    Attributes:
        endpoint: the broker's frontend, as `7070`, `host:7070` or `tcp://host:7070`; `default_endpoint` when not given.
        client_id: the client's name; two clients of one name at the same time are refused. Without one it is
            anonymous: its snapshots are freed when it has been gone for a while (`snapshot_expiry_s` of the broker).
        return_path: `direct`, tokens straight from the last stage (through the broker where that cannot dial
            this machine), or `broker`, always through the broker.
        return_host: the address of this machine at which stages can reach it.
        connect_timeout_s: how long a broker that was never reached is waited for.
        silence_timeout_s: how long a request outlives the silence of broker and link alike.
        max_requests: how many may run at the same time.
        max_buffered_tokens: of one request, received and not yet taken; twice the protocol's window at least.
        cache_folder: where model cards are kept; None is the user's cache folder.

    Raises:
        SettingsError: on construction, naming field, value and limit.
    """

    endpoint: str = field(default_factory=default_endpoint)
    client_id: str = field(default_factory=draw_client_id)
    return_path: Literal["direct", "broker"] = "direct"
    return_host: str = "127.0.0.1"
    connect_timeout_s: float = 10.0
    silence_timeout_s: float = 30.0
    max_requests: int = 4096
    max_buffered_tokens: int = 4096
    cache_folder: Path | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _LIMITS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise SettingsError(f"{name}={value}: must be between {low} and {high}")
        object.__setattr__(self, "endpoint", dialled(self.endpoint, "endpoint").endpoint)
        if not 1 <= len(self.client_id) <= _MAX_CLIENT_ID_CHARS:
            raise SettingsError(f"client_id={self.client_id!r:.80}: must have 1 to {_MAX_CLIENT_ID_CHARS} characters")
        if self.return_path not in ("direct", "broker"):
            raise SettingsError(f"return_path={self.return_path!r:.80}: must be direct or broker")
        if not _is_address(self.return_host):
            raise SettingsError(f"return_host={self.return_host!r:.80}: must be an IP address that stages can dial")


def _is_address(host: str) -> bool:
    """Whether `host` is one machine's address; a name or a wildcard tells a stage nothing it can dial."""
    try:
        return not ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
