"""What the tail's return links want done: sockets and sending are the loop's, these are only words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stagewire.wire.codec import Message
from stagewire.wire.returns import TailHello
from stagewire.wire.ring import CancelRequest, Flow


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect a fresh PAIR to `endpoint` and send `hello` once it is connected."""

    client_id: str
    link: int
    endpoint: str
    hello: TailHello


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Throw this link's socket away."""

    client_id: str
    link: int


@dataclass(frozen=True, slots=True)
class SendLink:
    """Send on a direct link."""

    client_id: str
    link: int
    message: Message


@dataclass(frozen=True, slots=True)
class SendRelay:
    """Send through the broker."""

    client_id: str
    message: Message


@dataclass(frozen=True, slots=True)
class TellHead:
    """Put a message on the feed."""

    message: Flow | CancelRequest


class LinkEnd(Enum):
    """Why a direct link is over: its connection or dial failed, or it is to be closed, or there was no room to dial."""

    BROKEN = "broken"
    UNWANTED = "unwanted"
    NO_ROOM = "no_room"


LinkInstruction = Dial | CloseLink | SendLink | SendRelay | TellHead
