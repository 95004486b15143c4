"""The accepted requests that have not ended: each one's state, the counts that limits are held against, the queue."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from stagewire.broker.events import Asked
from stagewire.wire.control import RunningRequest
from stagewire.wire.epoch import Epoch
from stagewire.wire.machine import Machine
from stagewire.wire.request import ReturnOffer


class RequestState(str, Enum):
    """PUSHED: given to a head, which has not said so yet. CANCELLING: the ring will end it."""

    QUEUED = "queued"
    PUSHED = "pushed"
    ACKNOWLEDGED = "acknowledged"
    CANCELLING = "cancelling"
    ENDED = "ended"


class RequestTrigger(str, Enum):
    """REPORTED: a head says that it holds the request already, since before this broker started."""

    PUSH = "push"
    ACKNOWLEDGE = "acknowledge"
    REPORTED = "reported"
    CANCEL = "cancel"
    END = "end"


TRANSITIONS: dict[tuple[RequestState, RequestTrigger], RequestState] = {
    (RequestState.QUEUED, RequestTrigger.PUSH): RequestState.PUSHED,
    (RequestState.QUEUED, RequestTrigger.REPORTED): RequestState.ACKNOWLEDGED,
    (RequestState.QUEUED, RequestTrigger.END): RequestState.ENDED,
    (RequestState.PUSHED, RequestTrigger.ACKNOWLEDGE): RequestState.ACKNOWLEDGED,
    (RequestState.PUSHED, RequestTrigger.CANCEL): RequestState.CANCELLING,
    (RequestState.PUSHED, RequestTrigger.END): RequestState.ENDED,
    (RequestState.ACKNOWLEDGED, RequestTrigger.CANCEL): RequestState.CANCELLING,
    (RequestState.ACKNOWLEDGED, RequestTrigger.END): RequestState.ENDED,
    (RequestState.CANCELLING, RequestTrigger.END): RequestState.ENDED,
}


@dataclass(slots=True)
class AcceptedRequest:
    """One accepted request.

    Attributes:
        seed: None for one that a head reported; its client knows the seed.
        payload_bytes: what the loop keeps for it, 0 once that was dropped.
        pipeline_stood_at: when a pipeline that could serve it was last seen standing.
        epoch: the pipeline that it was given to, None while QUEUED.
        dispatched: the head has acknowledged it; `offer` went with it.
        makes, restores: names of snapshots.
        stop_after: CANCELLING, because its client has found a stop string in so many tokens.
    """

    request_id: str
    client_id: str
    session_id: str
    model: str | None
    num_prompt_tokens: int
    max_tokens: int | None
    seed: int | None
    payload_bytes: int
    queued_at: float
    pipeline_stood_at: float
    machine: Machine[RequestState, RequestTrigger]
    makes: str | None = None
    restores: str | None = None
    stop_after: int | None = None
    epoch: Epoch | None = None
    offer: ReturnOffer | None = None
    dispatched: bool = False
    pushed_at: float = 0.0
    repeated_at: float = 0.0

    @property
    def state(self) -> RequestState:
        return self.machine.state

    @property
    def offer_generation(self) -> int | None:
        return self.offer.generation if self.offer else None

    @property
    def session(self) -> tuple[str, str]:
        return self.client_id, self.session_id


def queued_request(client_id: str, asked: Asked, now: float) -> AcceptedRequest:
    machine = Machine(f"request {asked.request_id}", RequestState.QUEUED, TRANSITIONS)
    return AcceptedRequest(
        request_id=asked.request_id,
        client_id=client_id,
        session_id=asked.session_id,
        model=asked.model,
        num_prompt_tokens=asked.num_prompt_tokens,
        max_tokens=asked.max_tokens,
        seed=asked.seed,
        payload_bytes=asked.payload_bytes,
        queued_at=now,
        pipeline_stood_at=now,
        machine=machine,
        makes=asked.makes,
        restores=asked.restores,
    )


def running_request(running: RunningRequest, epoch: Epoch, now: float) -> AcceptedRequest:
    """One that a head reports and this broker never saw; what it asked for, only its head knows."""
    machine = Machine(f"request {running.request_id}", RequestState.ACKNOWLEDGED, TRANSITIONS)
    return AcceptedRequest(
        request_id=running.request_id,
        client_id=running.client_id,
        session_id=running.session_id,
        model=None,
        num_prompt_tokens=0,
        max_tokens=None,
        seed=None,
        payload_bytes=0,
        queued_at=now,
        pipeline_stood_at=now,
        machine=machine,
        epoch=epoch,
        dispatched=True,
    )


class RequestTable:
    """Requests by id."""

    def __init__(self) -> None:
        self._by_id: dict[str, AcceptedRequest] = {}
        self._per_client: Counter[str] = Counter()
        self.payload_bytes = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[AcceptedRequest]:
        return iter(list(self._by_id.values()))

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def __getitem__(self, request_id: str) -> AcceptedRequest:
        return self._by_id[request_id]

    def get(self, request_id: str) -> AcceptedRequest | None:
        return self._by_id.get(request_id)

    def add(self, request: AcceptedRequest) -> None:
        self._by_id[request.request_id] = request
        self._per_client[request.client_id] += 1
        self.payload_bytes += request.payload_bytes

    def drop_payload(self, request: AcceptedRequest) -> None:
        self.payload_bytes -= request.payload_bytes
        request.payload_bytes = 0

    def remove(self, request: AcceptedRequest) -> None:
        self.drop_payload(request)
        del self._by_id[request.request_id]
        self._per_client[request.client_id] -= 1
        if not self._per_client[request.client_id]:
            del self._per_client[request.client_id]

    def num_of_client(self, client_id: str) -> int:
        return self._per_client[client_id]

    def of_client(self, client_id: str) -> list[AcceptedRequest]:
        return [request for request in self if request.client_id == client_id]

    def check_invariants(self) -> None:
        assert self._per_client == Counter(request.client_id for request in self)
        assert self.payload_bytes == sum(request.payload_bytes for request in self)
        for request in self:
            assert request.state is not RequestState.ENDED
            assert (request.epoch is None) == (request.state is RequestState.QUEUED)
            assert not (request.dispatched and request.payload_bytes)


class WaitingRequests:
    """Ids of requests that wait for a pipeline: in their order within a client, and clients in turn."""

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
