"""One pipeline: its stages, state and requests, what its head may still be sent, and whose sessions it saw last."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from stagewire.wire.control import StageInfo
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.machine import Machine


class PipelineState(str, Enum):
    """REPORTED: a starting broker collects its members. DISSOLVING: until no member can send any more."""

    REPORTED = "reported"
    ASSEMBLING = "assembling"
    SERVING = "serving"
    DISSOLVING = "dissolving"
    GONE = "gone"


class PipelineTrigger(str, Enum):
    WHOLE = "whole"
    BROKEN = "broken"
    FENCED = "fenced"


TRANSITIONS: dict[tuple[PipelineState, PipelineTrigger], PipelineState] = {
    (PipelineState.REPORTED, PipelineTrigger.WHOLE): PipelineState.SERVING,
    (PipelineState.REPORTED, PipelineTrigger.BROKEN): PipelineState.DISSOLVING,
    (PipelineState.ASSEMBLING, PipelineTrigger.WHOLE): PipelineState.SERVING,
    (PipelineState.ASSEMBLING, PipelineTrigger.BROKEN): PipelineState.DISSOLVING,
    (PipelineState.SERVING, PipelineTrigger.BROKEN): PipelineState.DISSOLVING,
    (PipelineState.DISSOLVING, PipelineTrigger.FENCED): PipelineState.GONE,
}

SEQUENCES_AHEAD = 4
"""A head is given this many times the sequences that it runs at once: enough that the next one starts in the
very step after another ends, few enough that a second pipeline still finds work in the broker's queue."""


def kv_numerics(infos: Sequence[StageInfo]) -> str:
    """What the keys of the last of these stages' KV blocks hold besides tokens; `infos` goes from the head to it.

    Each stage reads its own tensors only; what they are together is put together here.
    """
    digest = hashlib.sha256(b"stagewire-kv-1\n")
    for info in infos:
        digest.update(f"{info.tensors_digest} {info.fingerprint} {info.block_size}\n".encode())
    return digest.hexdigest()


class FeedCredit:
    """How many feed messages a head has not answered yet, so that its socket never fills.

    Counted by what answers them: starts until `GenerateAck`, cancels until `RequestEnded`.
    """

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


@dataclass(slots=True)
class Pipeline:
    """A chain of stages under one epoch.

    Attributes:
        members: stages by index; complete except while REPORTED, and for what remained of that.
        waiting: names of the members whose `Assembled` or `Dissolved` is still to come.
        requests: ids given to this pipeline and not ended, oldest first.
        cancels: ids whose cancel has still to be pushed.
        introduced: clients whose offer went with an earlier request, so that later ones carry none.
        deadline: when waiting ends; `resend_at`: when `Dissolve` is due again.
    """

    epoch: Epoch
    num_stages: int
    machine: Machine[PipelineState, PipelineTrigger]
    credit: FeedCredit
    members: dict[int, StageInfo] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    requests: dict[str, None] = field(default_factory=dict)
    cancels: dict[str, None] = field(default_factory=dict)
    introduced: set[str] = field(default_factory=set)
    deadline: float = 0.0
    resend_at: float = 0.0
    code: ErrorCode = ErrorCode.STAGE_LOST
    detail: str = ""

    @classmethod
    def begin(cls, epoch: Epoch, num_stages: int, state: PipelineState, feed_credit: int) -> Pipeline:
        machine = Machine(f"pipeline {epoch}", state, TRANSITIONS)
        return cls(epoch, num_stages, machine, FeedCredit(feed_credit))

    @property
    def state(self) -> PipelineState:
        return self.machine.state

    @property
    def is_serving(self) -> bool:
        return self.state is PipelineState.SERVING

    @property
    def head(self) -> StageInfo:
        return self.members[0]

    @property
    def tail(self) -> StageInfo | None:
        """None while a REPORTED pipeline still lacks it."""
        return self.members.get(self.num_stages - 1)

    @property
    def stage_ids(self) -> tuple[str, ...]:
        return tuple(self.members[index].stage_id for index in sorted(self.members))

    @property
    def capacity(self) -> int:
        return SEQUENCES_AHEAD * self.head.max_sequences if 0 in self.members else 0

    @property
    def num_blocks(self) -> int:
        """The smallest KV pool: the head accounts against it."""
        return min(info.num_blocks for info in self.members.values())

    @property
    def cache_blocks(self) -> int:
        """The smallest KV cache: then all stages keep the same blocks."""
        return min(info.cache_blocks for info in self.members.values())

    def has_room(self) -> bool:
        return self.is_serving and len(self.requests) < self.capacity and self.credit.may_start()

    def forget(self, request_id: str) -> None:
        """The request has ended: nothing of it is owed any more."""
        self.requests.pop(request_id, None)
        self.cancels.pop(request_id, None)
        self.credit.ended(request_id)

    def check_invariants(self) -> None:
        self.credit.check_invariants()
        assert set(self.cancels) <= set(self.requests)
        assert self.waiting <= set(self.stage_ids)
        assert self.state is not PipelineState.GONE
        if self.state in (PipelineState.SERVING, PipelineState.ASSEMBLING):
            assert sorted(self.members) == list(range(self.num_stages))
        assert bool(self.waiting) or self.state not in (PipelineState.ASSEMBLING, PipelineState.DISSOLVING)


Key = tuple[str, ...]


def snapshot_key(client_id: str, name: str) -> Key:
    """Of a client's snapshot, which is no session's."""
    return client_id, "snapshot", name


class Sessions:
    """Which pipeline saw a session, or a snapshot, last, so that its next request finds its blocks.

    The most recently used ones, by client and session id; a forgotten one only costs a prefill.
    """

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
