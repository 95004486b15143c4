"""Connections of the simulated world: in order, late, silent once cut, and through the real codec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stagewire.wire.codec import Envelope, Message, decode, encode

if TYPE_CHECKING:
    from support.simulated_client import SimClient
    from support.world import World


def copied(message: Message) -> Message:
    """Through the real codec, as bytes."""
    return decode([bytes(frame) for frame in encode(message)])


class Wire:
    """One direction of one connection: in order, late, and silent once it is cut."""

    def __init__(self, world: World, late_s: float = 0.0) -> None:
        self._world, self._late_s = world, late_s
        self._last = 0.0
        self.is_cut = False

    def send(self, deliver: Callable[[], None]) -> None:
        self._last = max(self._last, self._world.now + self._late_s + self._world.random.expovariate(200))
        self._world.at(self._last, lambda: None if self.is_cut else deliver())


@dataclass
class Pair:
    """A PAIR connection, or a dial that will never be heard."""

    client: SimClient | None
    generation: int
    to_client: Wire
    to_tail: Wire


def deliver_ring(world: World, endpoint: str, envelope: Envelope, message: Message) -> None:
    stage = world.stage_at(endpoint)
    if stage is not None:
        stage.perform(stage.core.handle_ring(envelope, copied(message), world.now))
        stage.poke()
