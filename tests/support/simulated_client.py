"""A client of the simulated world: the real core, and a caller who takes tokens as they come."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from support.simulated_links import Wire, copied

from stagewire.broker.events import Link, Peer
from stagewire.client.core import events as client_events
from stagewire.client.core.client_core import ClientCore
from stagewire.client.settings import ClientSettings
from stagewire.wire.codec import Message
from stagewire.wire.frontend import Generate
from stagewire.wire.note import Note
from stagewire.wire.request import Ending, ReturnOffer, SnapshotRequest
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import TokenIds

if TYPE_CHECKING:
    from support.simulated_stage import SimStage
    from support.world import World


@dataclass
class Seen:
    """What a caller got of one request."""

    prompt: list[int]
    max_tokens: int
    token_ids: list[int] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    is_cancelled: bool = False
    stop_after: int | None = None
    submitted_at: float = 0.0
    ended_at: float = 0.0


class SimClient:
    """A client's core and its caller, who takes tokens as they come."""

    def __init__(self, world: World, name: str, return_path: str) -> None:
        self._world, self.name = world, name
        settings = ClientSettings(client_id=name, return_path=return_path)  # type: ignore[arg-type]
        self.core = ClientCore(settings, name.encode() * 4)
        self.requests: dict[str, Seen] = {}
        self.sockets: dict[int, str] = {}
        self.taken: dict[int, tuple[SimStage, tuple[str, int]]] = {}
        self._connection = 0
        self._to_broker = Wire(world)
        self._ids = count(1)
        self.connect()

    def endpoints(self) -> dict[str, int]:
        return {endpoint: generation for generation, endpoint in self.sockets.items()}

    def handle(self, event: client_events.Event) -> None:
        instructions = self.core.handle(event, self._world.now)
        self.core.check_invariants()
        self.perform(instructions)

    def connect(self) -> None:
        self.handle(client_events.BrokerConnected())

    def broker_gone(self) -> None:
        self._connection += 1
        self._to_broker.is_cut = True
        self._to_broker = Wire(self._world)
        self.handle(client_events.BrokerDisconnected())

    def tick(self) -> None:
        self.handle(client_events.Tick())

    def link_gone(self, generation: int) -> None:
        if generation in self.sockets:
            self._drop_socket(generation)
            self.handle(client_events.LinkDisconnected(generation))

    def generate(
        self, prompt: list[int], max_tokens: int, seed: int | None = None, snapshot: SnapshotRequest | None = None
    ) -> str:
        request_id = f"{self.name}-{next(self._ids)}"
        self.requests[request_id] = Seen(prompt, max_tokens, submitted_at=self._world.now)
        sampling = SamplingParams(temperature=0.0, seed=seed)
        generate = Generate(request_id, "s", None, sampling, max_tokens, (), False, TokenIds.of(prompt), snapshot)
        self.handle(client_events.Submit(generate))
        return request_id

    def cancel(self, request_id: str) -> None:
        self.requests[request_id].is_cancelled = True
        self.handle(client_events.CancelRequest(request_id, discard=False))

    def stop(self, request_id: str) -> None:
        """The caller has found a stop string in the tokens that it has."""
        seen = self.requests[request_id]
        seen.stop_after = len(seen.token_ids)
        self.handle(client_events.StopRequest(request_id, seen.stop_after))

    def perform(self, instructions: list[client_events.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case client_events.SendBroker(message):
                    self._send_broker(message)
                case client_events.BindOffer(generation):
                    self._bind(generation)
                case client_events.CloseSocket(generation):
                    self._drop_socket(generation)
                case client_events.SendLink(generation, message):
                    if generation in self.taken:
                        stage, key = self.taken[generation]
                        stage.from_client(key, message)
                case client_events.DeliverTokens(request_id, token_ids):
                    self._take(request_id, token_ids, None)
                case client_events.DeliverEnding(request_id, ending):
                    self._take(request_id, (), ending)
                case client_events.DeliverMilestone() | Note():
                    pass
                case _:
                    raise AssertionError(instruction)

    def _bind(self, generation: int) -> None:
        endpoint = self._world.new_endpoint()
        self.sockets[generation] = endpoint
        offer = ReturnOffer(endpoint, b"%s-%d" % (self.name.encode(), generation), generation)
        self._world.at(self._world.now + 0.001, lambda: self.handle(client_events.OfferBound(offer)))

    def _drop_socket(self, generation: int) -> None:
        self.sockets.pop(generation, None)
        taken = self.taken.pop(generation, None)
        if taken is not None:
            stage, key = taken
            pair = stage.pairs.get(key)
            if pair is not None:
                pair.to_client.is_cut = True
                pair.to_tail.send(lambda: stage.pair_gone(key))

    def _send_broker(self, message: Message) -> None:
        connection = self._connection
        peer = Peer(Link.FRONTEND, f"{self.name}/{connection}".encode())
        back = self._to_broker

        def reply(answer: Message) -> None:
            back.send(lambda: self._from_broker(connection, answer))

        self._to_broker.send(lambda: self._world.to_broker(peer, copied(message), reply))

    def _from_broker(self, connection: int, message: Message) -> None:
        if connection == self._connection:
            self.handle(client_events.BrokerMessage(message))

    def _take(self, request_id: str, token_ids: tuple[int, ...], ending: Ending | None) -> None:
        seen = self.requests[request_id]
        assert not (seen.endings and token_ids), "a token after the ending"
        seen.token_ids.extend(token_ids)
        if ending is not None:
            seen.endings.append(ending)
            seen.ended_at = self._world.now
        num_tokens, ended = len(seen.token_ids), bool(seen.endings)
        self._world.at(self._world.now, lambda: self.handle(client_events.Consumed(request_id, num_tokens, ended)))
