"""Which pipeline saw a session last, so that its next request finds its cached blocks."""

from __future__ import annotations

from collections import OrderedDict

from stagewire.wire.epoch import Epoch


class Sessions:
    """The most recently used sessions, by client and session id; a forgotten one only costs a prefill."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._epochs: OrderedDict[tuple[str, str], Epoch] = OrderedDict()

    def __len__(self) -> int:
        return len(self._epochs)

    def epoch_of(self, session: tuple[str, str]) -> Epoch | None:
        return self._epochs.get(session)

    def saw(self, session: tuple[str, str], epoch: Epoch) -> None:
        self._epochs[session] = epoch
        self._epochs.move_to_end(session)
        if len(self._epochs) > self._limit:
            self._epochs.popitem(last=False)

    def check_invariants(self) -> None:
        assert len(self._epochs) <= self._limit
