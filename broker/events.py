"""What the core is told and what it asks for: events in, instructions out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from stagewire.wire.codec import Message
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.note import Note
from stagewire.wire.request import ReturnOffer


class Link(str, Enum):
    """The broker's two ROUTER sockets."""

    FRONTEND = "frontend"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Peer:
    """One connection: the socket that it came in on, and its routing id there."""

    link: Link
    routing_id: bytes

    def __str__(self) -> str:
        return f"{self.link.value}:{self.routing_id.hex()}"


# --- events ---


@dataclass(frozen=True, slots=True)
class Received:
    """A message without a payload of tokens."""

    peer: Peer
    message: Message


@dataclass(frozen=True, slots=True)
class Asked:
    """A `Generate`: what the core may know of it, and `payload`, the message itself, which it never looks into.

    `seed` is the client's, or was drawn by the loop; `payload_bytes` is the size of the whole message. `makes` and
    `restores` are names of snapshots.
    """

    peer: Peer
    request_id: str
    session_id: str
    model: str | None
    num_prompt_tokens: int
    max_tokens: int | None
    payload_bytes: int
    seed: int
    makes: str | None = None
    restores: str | None = None
    payload: object = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Bytes that are no message; `request_id` is the request that they spoke of, if that much was clear."""

    peer: Peer
    code: ErrorCode
    detail: str
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The socket knows no such connection any more; its owner may come back on another."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Overflowed:
    """The peer does not read what it is sent: it counts as gone."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class FeedOverflowed:
    """The head does not read its feed, or it cannot be opened."""

    epoch: Epoch
    detail: str = "the head does not read its feed"


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; at least every 0.1 s."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The broker is about to leave: what still waits is ended, what runs is left to the ring."""


Event: TypeAlias = Received | Asked | Unreadable | Unreachable | Overflowed | FeedOverflowed | Tick | Stop

# --- instructions ---


@dataclass(frozen=True, slots=True)
class Send:
    peer: Peer
    message: Message


@dataclass(frozen=True, slots=True)
class ForgetPeer:
    """Drop what still waits to be sent to this connection."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class KeepPayload:
    """Keep what came with `Asked` until `DropPayload`."""

    request_id: str
    payload: object = None


@dataclass(frozen=True, slots=True)
class DropPayload:
    request_id: str


@dataclass(frozen=True, slots=True)
class OpenFeed:
    """Connect to a head; number its messages from 1 under `run`."""

    epoch: Epoch
    endpoint: str
    run: int


@dataclass(frozen=True, slots=True)
class CloseFeed:
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class PushStart:
    """Send `StartRequest`, made of these and the kept payload, to the head."""

    epoch: Epoch
    request_id: str
    client_id: str
    session_id: str
    seed: int
    offer: ReturnOffer | None
    admission_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PushCancel:
    epoch: Epoch
    request_id: str
    stop_after: int | None = None


Instruction: TypeAlias = (
    Send | ForgetPeer | KeepPayload | DropPayload | OpenFeed | CloseFeed | PushStart | PushCancel | Note
)
