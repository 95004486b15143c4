"""The queue: first come, first served within a client, and clients in turn."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator


class WaitingRequests:
    """Ids of requests that wait for a pipeline."""

    def __init__(self) -> None:
        self._by_client: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, client_id: str, request_id: str) -> None:
        self._by_client.setdefault(client_id, OrderedDict())[request_id] = None
        self._length += 1

    def remove(self, client_id: str, request_id: str) -> None:
        own = self._by_client[client_id]
        del own[request_id]
        self._length -= 1
        if not own:
            del self._by_client[client_id]

    def take(self, client_id: str, request_id: str) -> None:
        """Remove it because it is served: its client goes to the end of the line."""
        self._by_client.move_to_end(client_id)
        self.remove(client_id, request_id)

    def in_turn(self) -> Iterator[str]:
        """One id of each client, then the next of each, as the queue is now."""
        lines = deque(iter(list(own)) for own in self._by_client.values())
        while lines:
            line = lines.popleft()
            request_id = next(line, None)
            if request_id is not None:
                yield request_id
                lines.append(line)

    def check_invariants(self) -> None:
        assert self._length == sum(len(own) for own in self._by_client.values())
        assert all(self._by_client.values())
