"""The condition of a simulated network link: when a message that is sent now would arrive."""

from __future__ import annotations

import random
from dataclasses import dataclass

from stagewire.wire.errors import SettingsError

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "kbit": 125.0, "mbit": 125e3, "gbit": 125e6}


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCondition:
    """Delay, bandwidth, jitter (exponential, mean `jitter_s`) and random stalls of a link; FIFO; seeded.

    Raises:
        SettingsError: a value is negative, or a probability is not in [0, 1].
    """

    delay_s: float = 0.0
    bandwidth_bytes_per_s: float | None = None
    jitter_s: float = 0.0
    stall_s: float = 0.0
    stall_probability: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("delay_s", "jitter_s", "stall_s"):
            if not 0 <= getattr(self, name) <= 3600:
                raise SettingsError(f"{name}={getattr(self, name)}: must be between 0 and 3600 seconds")
        if self.bandwidth_bytes_per_s is not None and not self.bandwidth_bytes_per_s > 0:
            raise SettingsError(f"bandwidth_bytes_per_s={self.bandwidth_bytes_per_s}: must be above 0")
        if not 0 <= self.stall_probability <= 1:
            raise SettingsError(f"stall_probability={self.stall_probability}: must be between 0 and 1")

    @classmethod
    def parse(cls, text: str) -> WireCondition:
        """From `delay=10ms,bandwidth=100mbit,jitter=1ms,stall=200ms,stall_probability=0.01,seed=7`.

        Raises:
            SettingsError: a part is unknown or its value cannot be read.
        """
        return cls(**dict(_parse_part(part) for part in text.split(",") if part))  # type: ignore[arg-type]

    def __str__(self) -> str:
        """The form that `parse` reads."""
        parts = [f"delay={self.delay_s}s", f"jitter={self.jitter_s}s", f"stall={self.stall_s}s"]
        parts += [f"stall_probability={self.stall_probability}", f"seed={self.seed}"]
        if self.bandwidth_bytes_per_s is not None:
            parts.append(f"bandwidth={self.bandwidth_bytes_per_s / _UNITS['kbit']}kbit")
        return ",".join(parts)


_FIELDS = {"delay": "delay_s", "jitter": "jitter_s", "stall": "stall_s", "bandwidth": "bandwidth_bytes_per_s"}


def _parse_part(part: str) -> tuple[str, float | int]:
    name, _, value = part.partition("=")
    try:
        if name == "seed":
            return name, int(value)
        if name == "stall_probability":
            return name, float(value)
        if name in _FIELDS:
            return _FIELDS[name], _parse_quantity(value)
    except ValueError:
        raise SettingsError(f"wire condition {part!r}: a number, and a unit of {', '.join(_UNITS)}") from None
    known = ", ".join([*_FIELDS, "stall_probability", "seed"])
    raise SettingsError(f"wire condition {part!r}: expected one of {known}, as in delay=10ms")


def _parse_quantity(text: str) -> float:
    for unit in sorted(_UNITS, key=len, reverse=True):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * _UNITS[unit]
    raise ValueError(text)


class ConditionedLink:
    """One direction of a link under a `WireCondition`; remembers when the wire is free again."""

    def __init__(self, condition: WireCondition) -> None:
        self._condition = condition
        self._random = random.Random(condition.seed)
        self._wire_free_at = 0.0
        self._last_arrival = 0.0

    def arrival(self, now: float, num_bytes: int) -> float:
        """When `num_bytes` sent at `now` (monotonic seconds) arrive; never before an earlier message."""
        condition = self._condition
        start = max(now, self._wire_free_at)
        if condition.stall_probability and self._random.random() < condition.stall_probability:
            start += condition.stall_s
        transfer_s = num_bytes / condition.bandwidth_bytes_per_s if condition.bandwidth_bytes_per_s else 0.0
        self._wire_free_at = start + transfer_s
        jitter_s = self._random.expovariate(1 / condition.jitter_s) if condition.jitter_s else 0.0
        self._last_arrival = max(self._last_arrival, self._wire_free_at + condition.delay_s + jitter_s)
        return self._last_arrival
