"""When snapshots of anonymous clients go: some time after their client has left, since nobody can come back for them.

It orders, and the heads do it. A broker that finds pipelines of another one asks their heads who has left what.
"""

from __future__ import annotations

from collections.abc import Iterable

from stagewire.broker.peers import Clients
from stagewire.wire.client_id import is_anonymous
from stagewire.wire.snapshots import SnapshotAction, SnapshotInfo, SnapshotOrder


class SnapshotExpiry:
    """Anonymous clients that may own snapshots, and since when each is missed (monotonic seconds; None: it is here)."""

    def __init__(self, limit_s: float, clients: Clients) -> None:
        self._limit_s, self._clients = limit_s, clients
        self._missed_since: dict[str, float | None] = {}
        self._must_look = False

    def made(self, client_id: str) -> None:
        """A client has asked for a snapshot."""
        if is_anonymous(client_id):
            self._missed_since.setdefault(client_id, None)

    def adopted(self) -> None:
        """A pipeline of another broker goes on: what its head keeps is not known."""
        self._must_look = True

    def found(self, items: Iterable[SnapshotInfo]) -> None:
        """What heads keep, by their own account."""
        for item in items:
            self.made(item.client_id)

    def due(self, now: float) -> list[SnapshotOrder]:
        """What the heads are to do now. An order is given once; `failed` has it repeated."""
        for client_id, since in self._missed_since.items():
            self._missed_since[client_id] = None if self._clients.get(client_id) else now if since is None else since
        late = [one for one, since in self._missed_since.items() if since is not None and now - since >= self._limit_s]
        for client_id in late:
            del self._missed_since[client_id]
        looks, self._must_look = [SnapshotOrder(SnapshotAction.LIST_ALL)] * self._must_look, False
        return [*looks, *(SnapshotOrder(SnapshotAction.FREE_ALL, owner=client_id) for client_id in late)]

    def failed(self, order: SnapshotOrder) -> None:
        """A head has not answered in time: ask again, or wait anew before it is freed."""
        self._must_look = self._must_look or order.action is SnapshotAction.LIST_ALL
        self.made(order.owner)

    def expires_s(self, client_id: str, now: float) -> float | None:
        """How long the client's snapshots still have; None if it is here, or has a name of its own."""
        since = self._missed_since.get(client_id)
        return None if since is None else max(0.0, self._limit_s - (now - since))
