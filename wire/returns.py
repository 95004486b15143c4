"""Messages of the return link, between a pipeline's tail and a client, direct on PAIR or relayed by the broker."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stagewire.wire.codec import Message, message
from stagewire.wire.epoch import Epoch
from stagewire.wire.request import Ending, ReturnOffer

RETURN_WINDOW = 256
"""Unacknowledged tokens at which the tail pauses a request."""


@message(140)
@dataclass(frozen=True, slots=True)
class TailHello(Message):
    """The tail's first message on a link; it sends nothing more before the reply.

    `offer_nonce` is that of the offer it dialled (empty on the relay). `link` counts the tail's links to this
    client in this epoch: the client keeps the highest.
    """

    epoch: Epoch
    client_id: str
    link: int
    offer_nonce: bytes
    tail_nonce: bytes


@message(141)
@dataclass(frozen=True, slots=True)
class ReturnHello(Message):
    """The client's reply, echoing `tail_nonce`. `next_offer` is where to dial when this link breaks."""

    link: int
    tail_nonce: bytes
    next_offer: ReturnOffer | None


@message(142)
@dataclass(frozen=True, slots=True)
class ReturnNext(Message):
    """The client's next endpoint has changed (a stranger had taken it, say)."""

    next_offer: ReturnOffer


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log probabilities: of the chosen token, and of the most likely ones."""

    chosen: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class ReturnItem:
    """Tokens of one request; the first has number `first_sequence`, counted from 0 in the request.

    `logprobs` is empty or as long as `token_ids`. `ending` closes the request.
    """

    request_id: str
    first_sequence: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    ending: Ending | None


@message(143)
@dataclass(frozen=True, slots=True)
class ReturnTokens(Message):
    """All that one step brought one client, or what a new link must send again."""

    items: tuple[ReturnItem, ...]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """`num_tokens` of the request were handed to the caller; `ended`: so was its ending."""

    request_id: str
    num_tokens: int
    ended: bool


@message(144)
@dataclass(frozen=True, slots=True)
class ReturnAck(Message):
    """Cumulative, at most every 50 ms or at half the window."""

    items: tuple[Acknowledgement, ...]


class ReturnAction(str, Enum):
    """What a client may ask of the tail for one request."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"


@message(145)
@dataclass(frozen=True, slots=True)
class ReturnControl(Message):
    """Cancel, pause or resume one request; unknown ids are ignored.

    With `stop_after` a cancel says that the answer is complete: the client has found a stop string in its first
    `stop_after` tokens.
    """

    request_id: str
    action: ReturnAction
    stop_after: int | None = None
