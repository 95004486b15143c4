"""What the client core is told and what it asks for: events in, instructions out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from stagewire.wire.address import Address
from stagewire.wire.answering import Found
from stagewire.wire.codec import Message
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import Generate
from stagewire.wire.note import Note
from stagewire.wire.request import Ending, ReturnOffer
from stagewire.wire.returns import TokenLogprobs

# --- events: from the sockets ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrokerConnected:
    """A connection to a broker stands; nobody has greeted yet."""


@dataclass(frozen=True, slots=True)
class BrokerDisconnected:
    """The connection broke; the socket dials again by itself."""


@dataclass(frozen=True, slots=True)
class BrokerMessage:
    message: Message


@dataclass(frozen=True, slots=True)
class BrokerUnreadable:
    """Bytes from the broker that are no message of this protocol."""

    code: ErrorCode
    detail: str


@dataclass(frozen=True, slots=True)
class BrokerProbed:
    """What answers at the broker's address, as `ProbeBroker` wanted to know."""

    found: Found


@dataclass(frozen=True, slots=True)
class OfferBound:
    """A return socket listens; its nonce was drawn by the loop."""

    offer: ReturnOffer


@dataclass(frozen=True, slots=True)
class OfferFailed:
    """A return socket could not be bound; there is none of this generation."""

    generation: int
    detail: str


@dataclass(frozen=True, slots=True)
class LinkConnected:
    """Somebody has connected to a return socket and has not spoken yet."""

    generation: int


@dataclass(frozen=True, slots=True)
class LinkDisconnected:
    """The peer of a return socket is gone, and with it the socket's one connection."""

    generation: int


@dataclass(frozen=True, slots=True)
class LinkMessage:
    generation: int
    message: Message


@dataclass(frozen=True, slots=True)
class LinkFaulty:
    """A return socket's peer sent bytes that are no message, or does not read."""

    generation: int
    detail: str


# --- events: from the API -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit:
    generate: Generate


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """End a request. `discard`: nobody reads its tokens any more, only its ending."""

    request_id: str
    discard: bool


@dataclass(frozen=True, slots=True)
class StopRequest:
    """The answer is complete with its first `num_tokens`: a stop string ends it. Only the ending is waited for."""

    request_id: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """Ask the tail to pause a request, or to let it go on."""

    request_id: str
    paused: bool


@dataclass(frozen=True, slots=True)
class Consumed:
    """The caller has `num_tokens` of the request by now, and its ending if `ended`."""

    request_id: str
    num_tokens: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the broker, whose reply `questions.py` knows; None waits for its welcome."""

    ticket: int
    message: Message | None
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Close:
    """The client leaves: all that runs is cancelled."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; at least every 50 ms while requests run."""


Event: TypeAlias = (
    BrokerConnected
    | BrokerDisconnected
    | BrokerMessage
    | BrokerUnreadable
    | BrokerProbed
    | OfferBound
    | OfferFailed
    | LinkConnected
    | LinkDisconnected
    | LinkMessage
    | LinkFaulty
    | Submit
    | CancelRequest
    | StopRequest
    | HoldRequest
    | Consumed
    | Ask
    | Close
    | Tick
)

# --- instructions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendBroker:
    """Send to the broker. Losing it is no harm: a timer repeats whatever matters."""

    message: Message


@dataclass(frozen=True, slots=True)
class ProbeBroker:
    """Look what answers at the broker's address; answered by `BrokerProbed`, which may take long or never come."""

    address: Address


@dataclass(frozen=True, slots=True)
class LeaveBroker:
    """Disconnect for good: it has refused this client, and shall not hold a connection for it."""


@dataclass(frozen=True, slots=True)
class BindOffer:
    """Bind a fresh return socket; answered by `OfferBound` or `OfferFailed`."""

    generation: int


@dataclass(frozen=True, slots=True)
class CloseSocket:
    """Throw a return socket away."""

    generation: int


@dataclass(frozen=True, slots=True)
class SendLink:
    generation: int
    message: Message


@dataclass(frozen=True, slots=True)
class DeliverTokens:
    """The next tokens of a request; `logprobs` is empty or as long."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


class Milestone(str, Enum):
    ACCEPTED = "accepted"
    DISPATCHED = "dispatched"


@dataclass(frozen=True, slots=True)
class DeliverMilestone:
    request_id: str
    milestone: Milestone


@dataclass(frozen=True, slots=True)
class DeliverEnding:
    """The one ending of a request. `refused`: it was not accepted, and nothing of it has run."""

    request_id: str
    ending: Ending
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """What the broker says to an `Ask`."""

    ticket: int
    message: Message


@dataclass(frozen=True, slots=True)
class NoReply:
    """Why it says nothing, or will not."""

    ticket: int
    code: ErrorCode
    detail: str


Instruction: TypeAlias = (
    SendBroker
    | ProbeBroker
    | LeaveBroker
    | BindOffer
    | CloseSocket
    | SendLink
    | DeliverTokens
    | DeliverMilestone
    | DeliverEnding
    | Reply
    | NoReply
    | Note
)
