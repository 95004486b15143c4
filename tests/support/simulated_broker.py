"""A broker of the simulated world: the real core, with its feeds and kept payloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from support.simulated_links import Wire, copied, deliver_ring

from stagewire.broker import events as broker_events
from stagewire.broker.core import BrokerCore
from stagewire.broker.events import Peer
from stagewire.broker.settings import BrokerSettings
from stagewire.wire.codec import BROKER, Envelope, Message, SenderNumbers
from stagewire.wire.epoch import Epoch
from stagewire.wire.frontend import Generate
from stagewire.wire.ring import CancelRequest, Repeat, StartRequest

if TYPE_CHECKING:
    from support.world import World


class SimBroker:
    """The broker's core with its feeds and kept payloads."""

    def __init__(self, world: World, incarnation: int) -> None:
        self._world = world
        self.core = BrokerCore(BrokerSettings(), incarnation, world.now)
        self._payloads: dict[str, Generate] = {}
        self._feeds: dict[Epoch, tuple[str, SenderNumbers, Wire]] = {}
        self._peers: dict[Peer, Callable[[Message], None]] = {}

    def receive(self, peer: Peer, message: Message, reply: Callable[[Message], None]) -> None:
        self._peers[peer] = reply
        if not isinstance(message, Generate):
            self._handle(broker_events.Received(peer, message))
            return
        seed = message.sampling.seed
        asked = broker_events.Asked(
            peer,
            message.request_id,
            message.session_id,
            message.model,
            len(message.prompt_token_ids),
            message.max_tokens,
            100,
            self._world.random.getrandbits(63) if seed is None else seed,
            payload=message,
        )
        self._handle(asked)

    def tick(self) -> None:
        self._handle(broker_events.Tick())
        for endpoint, numbers, wire in self._feeds.values():
            if envelope := numbers.repeat(self._world.now):
                self._push(endpoint, envelope, Repeat(), wire)

    def _handle(self, event: broker_events.Event) -> None:
        instructions = self.core.handle(event, self._world.now)
        self.core.check_invariants()
        for instruction in instructions:
            self._perform(instruction)

    def _perform(self, instruction: broker_events.Instruction) -> None:
        match instruction:
            case broker_events.Send(peer, message):
                self._peers[peer](copied(message))
            case broker_events.KeepPayload(request_id, payload):
                assert isinstance(payload, Generate)
                self._payloads[request_id] = payload
            case broker_events.DropPayload(request_id):
                del self._payloads[request_id]
            case broker_events.OpenFeed(epoch, endpoint, run):
                self._feeds[epoch] = (endpoint, SenderNumbers(epoch, BROKER, run), Wire(self._world))
            case broker_events.CloseFeed(epoch):
                self._feeds.pop(epoch)[2].is_cut = True
            case broker_events.PushStart(epoch, request_id):
                self._feed(epoch, _start(self._payloads[request_id], instruction))
            case broker_events.PushCancel(epoch, request_id, stop_after):
                self._feed(epoch, CancelRequest(request_id, stop_after))

    def _feed(self, epoch: Epoch, message: Message) -> None:
        endpoint, numbers, wire = self._feeds[epoch]
        self._push(endpoint, numbers.next(self._world.now), message, wire)

    def _push(self, endpoint: str, envelope: Envelope, message: Message, wire: Wire) -> None:
        wire.send(lambda: deliver_ring(self._world, endpoint, envelope, message))


def _start(generate: Generate, push: broker_events.PushStart) -> StartRequest:
    return StartRequest(
        push.request_id,
        push.client_id,
        push.session_id,
        replace(generate.sampling, seed=push.seed),
        generate.max_tokens,
        generate.stop_token_ids,
        generate.ignore_eos,
        push.offer,
        generate.prompt_token_ids,
        generate.snapshot,
        generate.restore,
        push.admission_s,
    )
