"""The epoch of a pipeline: which assembly of it a message belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """(broker incarnation, counter); strictly increasing, a new one with every assembly."""

    incarnation: int
    counter: int

    def __str__(self) -> str:
        return f"{self.incarnation:x}.{self.counter}"
