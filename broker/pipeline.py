"""One pipeline: its stages, its state, whose answer it waits for, and the requests that were given to it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from stagewire.broker.credit import FeedCredit
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
