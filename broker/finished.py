"""What became of requests that are over, so that a late resend gets its answer again and nothing runs twice."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from stagewire.broker.requests import AcceptedRequest
from stagewire.wire.codec import Message
from stagewire.wire.epoch import Epoch
from stagewire.wire.frontend import Accepted, Dispatched, Ended, Refused
from stagewire.wire.request import Ending

REMEMBERED_S = 60.0
_MAX_REFUSALS = 4096


@dataclass(slots=True)
class Finished:
    """An ended request. `ending` is None when the tail wrote it: then the return link carries it."""

    request_id: str
    client_id: str
    seed: int | None
    dispatched_in: Epoch | None
    offer_generation: int | None
    ending: Ending | None
    ended_at: float

    def answers(self, seed: int | None = None) -> list[Message]:
        """All that its client was told, once more; `seed` where the broker itself knows none."""
        known_seed = self.seed if self.seed is not None else seed
        said: list[Message] = []
        if known_seed is not None:
            said.append(Accepted(self.request_id, known_seed))
        if self.dispatched_in:
            said.append(Dispatched(self.request_id, self.dispatched_in, self.offer_generation))
        if self.ending:
            said.append(Ended(self.request_id, self.ending))
        return said


class FinishedRequests:
    """Endings of the last 60 s, and as many refusals as fit.

    A forgotten ending could let a request run twice, so admission stops while the memory is full; a forgotten
    refusal only lets a resend be judged anew.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ended: OrderedDict[str, Finished] = OrderedDict()
        self._refused: OrderedDict[str, tuple[str, Refused]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ended)

    def get(self, request_id: str) -> Finished | None:
        return self._ended.get(request_id)

    def refusal(self, request_id: str, client_id: str) -> Refused | None:
        owner, refused = self._refused.get(request_id, ("", None))
        return refused if owner == client_id else None

    def add(self, request: AcceptedRequest, ending: Ending | None, now: float) -> None:
        epoch = request.epoch if request.dispatched else None
        self._ended[request.request_id] = Finished(
            request.request_id, request.client_id, request.seed, epoch, request.offer_generation, ending, now
        )
        # Only requests that a head reported after a restart come past admission, and so may be too many.
        if len(self._ended) > self._limit:
            self._ended.popitem(last=False)

    def refuse(self, client_id: str, refused: Refused) -> None:
        self._refused[refused.request_id] = client_id, refused
        if len(self._refused) > _MAX_REFUSALS:
            self._refused.popitem(last=False)

    def is_full(self, num_unfinished: int) -> bool:
        """Whether another request's ending might not fit, with `num_unfinished` still to come."""
        return len(self._ended) + num_unfinished >= self._limit

    def expire(self, now: float) -> None:
        while self._ended and next(iter(self._ended.values())).ended_at <= now - REMEMBERED_S:
            self._ended.popitem(last=False)

    def undelivered_of(self, epoch: Epoch) -> list[Finished]:
        """Those whose ending only the tail of that epoch has written."""
        return [one for one in self._ended.values() if one.dispatched_in == epoch and one.ending is None]

    def check_invariants(self) -> None:
        assert len(self._ended) <= self._limit
        assert len(self._refused) <= _MAX_REFUSALS
        times = [one.ended_at for one in self._ended.values()]
        assert times == sorted(times)
