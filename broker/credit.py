"""How many feed messages a head has not answered yet, so that its socket never fills."""

from __future__ import annotations


class FeedCredit:
    """Counts messages by what answers them: starts until `GenerateAck`, cancels until `RequestEnded`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._starts: dict[str, int] = {}
        self._cancels: set[str] = set()
        self._num_starts = 0

    @property
    def in_use(self) -> int:
        return self._num_starts + len(self._cancels)

    def may_start(self) -> bool:
        """New requests may take half: the rest is for repetitions and cancels, which must get through."""
        return self.in_use < self._limit // 2

    def may_send(self) -> bool:
        return self.in_use < self._limit

    def take_start(self, request_id: str) -> None:
        self._starts[request_id] = self._starts.get(request_id, 0) + 1
        self._num_starts += 1

    def take_cancel(self, request_id: str) -> None:
        self._cancels.add(request_id)

    def start_answered(self, request_id: str) -> None:
        self._num_starts -= self._starts.pop(request_id, 0)

    def ended(self, request_id: str) -> None:
        self.start_answered(request_id)
        self._cancels.discard(request_id)

    def check_invariants(self) -> None:
        assert self._num_starts == sum(self._starts.values())
        assert self.in_use <= self._limit
