"""Who is connected: clients and stages by name and by connection, and when each was last heard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from stagewire.broker.events import Peer
from stagewire.wire.control import Register, StageInfo
from stagewire.wire.counters import StageCounters
from stagewire.wire.epoch import Epoch
from stagewire.wire.request import ReturnOffer


class _Record(Protocol):
    """What both tables know of whom they hold; `peer` is None while its connection is broken."""

    peer: Peer | None

    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=_Record)


class PeerTable(Generic[R]):
    """Records by name and by connection."""

    def __init__(self) -> None:
        self._by_name: dict[str, R] = {}
        self._by_peer: dict[Peer, str] = {}

    def __iter__(self) -> Iterator[R]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> R | None:
        return self._by_name.get(name)

    def by_peer(self, peer: Peer) -> R | None:
        return self._by_name.get(self._by_peer.get(peer, ""))

    def connect(self, record: R, peer: Peer) -> None:
        """It speaks on this connection from now on."""
        self.disconnect(record)
        record.peer = peer
        self._by_peer[peer] = record.name

    def disconnect(self, record: R) -> None:
        if record.peer is not None:
            del self._by_peer[record.peer]
            record.peer = None

    def remove(self, record: R) -> None:
        self.disconnect(record)
        del self._by_name[record.name]

    def check_invariants(self) -> None:
        for peer, name in self._by_peer.items():
            assert self._by_name[name].peer == peer
        assert sum(record.peer is not None for record in self) == len(self._by_peer)


# --- clients ---


@dataclass(slots=True)
class ClientRecord:
    """One client. `peer` is None after a restart, too, until its hello.

    `nonce` is None for a client that only a head has reported: whoever says hello first is it.
    """

    client_id: str
    nonce: bytes | None
    peer: Peer | None
    heard_at: float
    offer: ReturnOffer | None = None
    spent_generation: int = -1

    @property
    def name(self) -> str:
        return self.client_id

    def offers(self, offer: ReturnOffer | None) -> None:
        """Take the client's newest offer; one that was given away already is not good again."""
        if offer is None:
            self.offer = None
        elif offer.generation > self.spent_generation:
            self.offer = offer

    def take_offer(self) -> ReturnOffer | None:
        offer, self.offer = self.offer, None
        if offer:
            self.spent_generation = offer.generation
        return offer

    def give_back(self, offer: ReturnOffer) -> None:
        """The offer reached nobody."""
        if self.offer is None and offer.generation == self.spent_generation:
            self.offer, self.spent_generation = offer, offer.generation - 1


class Clients(PeerTable[ClientRecord]):
    """The clients that have said hello, or whose requests a head has reported."""

    def add(self, client_id: str, nonce: bytes | None, now: float) -> ClientRecord:
        client = self._by_name[client_id] = ClientRecord(client_id, nonce, None, now)
        return client


# --- stages ---


@dataclass(slots=True)
class Challenger:
    """A newcomer under the name of a stage that may be dead: the next heartbeat, or its absence, decides."""

    peer: Peer
    message: Register


@dataclass(slots=True)
class StageRecord:
    """One registered stage: `epoch` is the pipeline that it serves in, None while it is free."""

    info: StageInfo
    peer: Peer | None
    heard_at: float
    epoch: Epoch | None = None
    step_age_s: float | None = None
    counters: StageCounters | None = None
    challenger: Challenger | None = None

    @property
    def name(self) -> str:
        return self.info.stage_id


class Pool(PeerTable[StageRecord]):
    """The registered stages."""

    def member(self, stage_id: str, epoch: Epoch) -> StageRecord | None:
        """The stage of that name if it serves that epoch; a restarted one does not."""
        stage = self.get(stage_id)
        return stage if stage and stage.epoch == epoch else None

    def add(self, peer: Peer, info: StageInfo, now: float) -> StageRecord:
        stage = self._by_name[info.stage_id] = StageRecord(info, None, now)
        self.connect(stage, peer)
        return stage

    def free(self) -> list[StageInfo]:
        return [stage.info for stage in self if stage.epoch is None and stage.peer]
