"""Which pipeline saw a session, or a snapshot, last, so that its next request finds its blocks."""

from __future__ import annotations

from collections import OrderedDict

from stagewire.wire.epoch import Epoch

Key = tuple[str, ...]


def snapshot_key(client_id: str, name: str) -> Key:
    """Of a client's snapshot, which is no session's."""
    return client_id, "snapshot", name


class Sessions:
    """The most recently used sessions, by client and session id; a forgotten one only costs a prefill."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._epochs: OrderedDict[Key, Epoch] = OrderedDict()

    def __len__(self) -> int:
        return len(self._epochs)

    def epoch_of(self, session: Key) -> Epoch | None:
        return self._epochs.get(session)

    def saw(self, session: Key, epoch: Epoch) -> None:
        self._epochs[session] = epoch
        self._epochs.move_to_end(session)
        if len(self._epochs) > self._limit:
            self._epochs.popitem(last=False)

    def check_invariants(self) -> None:
        assert len(self._epochs) <= self._limit
