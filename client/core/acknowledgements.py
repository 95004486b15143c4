"""When a tail is told which of its tokens have reached the caller; it knows no sockets."""

from __future__ import annotations

from collections.abc import Iterator

from stagewire.client.core.requests import Request
from stagewire.client.core.return_links import ReturnLinks
from stagewire.wire.epoch import Epoch
from stagewire.wire.returns import RETURN_WINDOW, Acknowledgement, ReturnAck, ReturnItem

ACKNOWLEDGE_S = 0.05
HALF_WINDOW = RETURN_WINDOW // 2


class Acknowledgements:
    """Collects what is to be acknowledged: cumulative, at most every 50 ms or at half the window."""

    def __init__(self, links: ReturnLinks) -> None:
        self._links = links
        self._requests: dict[str, Request] = {}
        self._strays: dict[Epoch, list[Acknowledgement]] = {}
        self._sent_at = float("-inf")
        self._is_urgent = False

    def note(self, request: Request) -> None:
        """The caller has more of this request than its tail may know."""
        self._requests[request.request_id] = request
        self._is_urgent |= request.num_taken - request.num_acknowledged >= HALF_WINDOW

    def stray(self, epoch: Epoch, item: ReturnItem) -> None:
        """Nobody waits for this item: its tail need not keep it."""
        num_tokens = item.first_sequence + len(item.token_ids)
        ack = Acknowledgement(item.request_id, num_tokens, item.ending is not None)
        self._strays.setdefault(epoch, []).append(ack)

    def flush(self, now: float) -> Iterator[tuple[Epoch, ReturnAck, list[Request]]]:
        """What is due to be sent to each tail that can be reached, and the requests that it confirms.

        What cannot be sent is forgotten: a new link has all its requests noted again.
        """
        if not (self._is_urgent or now - self._sent_at >= ACKNOWLEDGE_S):
            return
        if not self._requests and not self._strays:
            return
        self._sent_at, self._is_urgent = now, False
        requests, self._requests = self._requests, {}
        strays, self._strays = self._strays, {}
        confirmed: dict[Epoch, list[Request]] = {epoch: [] for epoch in strays}
        for request in requests.values():
            if request.epoch is not None:
                confirmed.setdefault(request.epoch, []).append(request)
        for epoch, group in confirmed.items():
            if self._links.path(epoch) is None:
                continue
            items = [*strays.get(epoch, ()), *(request.acknowledgement() for request in group)]
            for request in group:
                request.num_acknowledged = request.num_taken
            yield epoch, ReturnAck(tuple(items)), group
