"""A whole Stagewire in one thread and simulated time: the real cores and codec over a network that misbehaves.

Everything but sockets and arithmetic is the real thing. Links are FIFO and delay at random; messages are lost as they
are lost in reality: with their connection, or one by one on a PUSH link, or with the process that held them.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count

from support.simulated_broker import SimBroker
from support.simulated_client import SimClient
from support.simulated_stage import SimStage

from stagewire.broker.events import Peer
from stagewire.wire.codec import Message

TICK_S = 0.05


class World:
    """Time, randomness, and everybody in it."""

    def __init__(self, seed: int, cuts: list[list[tuple[int, int]]], num_clients: int, num_blocks: int = 40) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._incarnations = count(1)
        self._ports = count(1024)
        self.broker: SimBroker | None = SimBroker(self, next(self._incarnations))
        self.stages = [
            SimStage(self, f"p{p}s{s}", start, end, num_blocks)
            for p, ranges in enumerate(cuts)
            for s, (start, end) in enumerate(ranges)
        ]
        self.clients = [SimClient(self, f"c{i}", "broker" if i % 3 == 2 else "direct") for i in range(num_clients)]
        self._tick()

    def new_endpoint(self) -> str:
        return f"tcp://127.0.0.1:{next(self._ports)}"

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._order), act))

    def _tick(self) -> None:
        for member in (self.broker, *self.stages, *self.clients):
            if member is not None:
                member.tick()
        self.at(self.now + TICK_S, self._tick)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, act = heapq.heappop(self._agenda)
            act()
        self.now = until

    # --- what goes wrong ---

    def kill_broker(self) -> None:
        self.broker = None
        for stage in self.stages:
            stage.broker_gone()
        for client in self.clients:
            client.broker_gone()

    def start_broker(self) -> None:
        if self.broker is None:
            self.broker = SimBroker(self, next(self._incarnations))
            for client in self.clients:
                client.connect()

    def to_broker(self, peer: Peer, message: Message, reply: Callable[[Message], None]) -> None:
        if self.broker is not None:
            self.broker.receive(peer, message, reply)

    def stage_at(self, endpoint: str) -> SimStage | None:
        return next((s for s in self.stages if s.is_alive and s.info.data_endpoint == endpoint), None)
