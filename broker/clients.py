"""The connected clients: identity, connection, return offer, and when each was last heard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stagewire.broker.events import Peer
from stagewire.wire.request import ReturnOffer


@dataclass(slots=True)
class ClientRecord:
    """One client. `peer` is None while its connection is broken, and after a restart until its hello.

    `nonce` is None for a client that only a head has reported: whoever says hello first is it.
    """

    client_id: str
    nonce: bytes | None
    peer: Peer | None
    heard_at: float
    offer: ReturnOffer | None = None
    spent_generation: int = -1

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


class Clients:
    """Clients by name and by connection."""

    def __init__(self) -> None:
        self._by_id: dict[str, ClientRecord] = {}
        self._by_peer: dict[Peer, str] = {}

    def __iter__(self) -> Iterator[ClientRecord]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, client_id: str) -> ClientRecord | None:
        return self._by_id.get(client_id)

    def by_peer(self, peer: Peer) -> ClientRecord | None:
        return self._by_id.get(self._by_peer.get(peer, ""))

    def add(self, client_id: str, nonce: bytes | None, now: float) -> ClientRecord:
        client = self._by_id[client_id] = ClientRecord(client_id, nonce, None, now)
        return client

    def connect(self, client: ClientRecord, peer: Peer) -> None:
        """The client speaks on this connection from now on."""
        self.disconnect(client)
        client.peer = peer
        self._by_peer[peer] = client.client_id

    def disconnect(self, client: ClientRecord) -> None:
        if client.peer is not None:
            del self._by_peer[client.peer]
            client.peer = None

    def remove(self, client: ClientRecord) -> None:
        self.disconnect(client)
        del self._by_id[client.client_id]

    def check_invariants(self) -> None:
        for peer, client_id in self._by_peer.items():
            assert self._by_id[client_id].peer == peer
        assert sum(client.peer is not None for client in self) == len(self._by_peer)
