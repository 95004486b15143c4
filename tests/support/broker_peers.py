"""Simulated peers of a broker: what each knows, and the two queues of its connection."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from stagewire.broker.events import Asked, Link, Peer, PushCancel, PushStart
from stagewire.wire.codec import Message
from stagewire.wire.control import RequestEnded, StageInfo
from stagewire.wire.epoch import Epoch


class Connection:
    """Two queues between the broker and one peer; a new one has a new routing id and knows nothing."""

    def __init__(self, link: Link, name: str) -> None:
        self.peer = Peer(link, name.encode())
        self.up: deque[Message | Asked] = deque()
        self.down: deque[Message] = deque()


@dataclass
class SimRequest:
    """What a client knows of one request. `endings` counts those that it took: at most one."""

    session_id: str
    answered: bool = False
    dispatched_in: Epoch | None = None
    streams: bool = False
    ending: str | None = None
    sent_at: float = 0.0
    unheard_since: float | None = None


@dataclass
class SimClient:
    name: str
    connection: Connection
    incarnation: int = 0
    generation: int = 1
    pinged_at: float = 0.0
    greeted_at: float = -9.0
    requests: dict[str, SimRequest] = field(default_factory=dict)


@dataclass
class SimStage:
    """One stage process. `running` and `ended` are a head's."""

    info: StageInfo
    connection: Connection
    alive: bool = True
    registered: bool = False
    said_at: float = -9.0
    epoch: Epoch | None = None
    stage_index: int = 0
    num_stages: int = 0
    running: dict[str, tuple[str, str]] = field(default_factory=dict)
    ended: dict[str, RequestEnded] = field(default_factory=dict)
    tombstones: set[str] = field(default_factory=set)
    broken: bool = False
    broker_run: int = 0

    @property
    def is_head(self) -> bool:
        return self.epoch is not None and self.stage_index == 0

    def leave(self) -> None:
        self.epoch, self.broken = None, False
        self.running.clear()
        self.ended.clear()
        self.tombstones.clear()


@dataclass
class SimFeed:
    """The broker's end; `lost` makes the next message that arrives show the gap."""

    endpoint: str
    run: int
    messages: deque[PushStart | PushCancel] = field(default_factory=deque)
    lost: bool = False
