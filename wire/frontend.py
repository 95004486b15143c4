"""Messages of the frontend, between a client (DEALER) and the broker (ROUTER)."""

from __future__ import annotations

from dataclasses import dataclass

from stagewire.wire.codec import Message, message
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import Ending, ReturnOffer, SnapshotRequest
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import Blob, TokenIds

# --- client to broker ---


@message(1)
@dataclass(frozen=True, slots=True)
class ClientHello(Message):
    """First message of a connection, and again whenever the broker asks `WhoAreYou`.

    `client_nonce` is drawn once per client object: the same identity with another nonce is a second client
    and is refused. `offer` is None when the client wants its tokens through the broker.
    """

    client_id: str
    client_nonce: bytes
    offer: ReturnOffer | None


@message(2)
@dataclass(frozen=True, slots=True)
class OfferReturn(Message):
    """The client's new unassigned return endpoint, for a request, or after the last one was spoiled."""

    offer: ReturnOffer


@message(3)
@dataclass(frozen=True, slots=True)
class Generate(Message):
    """One generation. Sent again until `Accepted` or `Refused`; the broker knows it by `request_id`.

    `max_tokens` None runs to the context's end. `stop_token_ids` end it beside the model's own end tokens,
    unless `ignore_eos` switches those off. `model` None takes whatever is served. `restore` names a snapshot that must
    be there.
    """

    request_id: str
    session_id: str
    model: str | None
    sampling: SamplingParams
    max_tokens: int | None
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    prompt_token_ids: TokenIds
    snapshot: SnapshotRequest | None = None
    restore: str | None = None


@message(4)
@dataclass(frozen=True, slots=True)
class Cancel(Message):
    """End a request; the tokens that it has delivered stay valid. Unknown ids are ignored.

    `stop_after` as in `ReturnControl`: a stop string ends it.
    """

    request_id: str
    stop_after: int | None = None


@message(5)
@dataclass(frozen=True, slots=True)
class ClientPing(Message):
    """Once a second: the client lives. Answered by `BrokerPong`."""


@message(6)
@dataclass(frozen=True, slots=True)
class ClientBye(Message):
    """The client closes; what it still runs is cancelled."""


@message(7)
@dataclass(frozen=True, slots=True)
class GetCard(Message):
    """Ask for a model card by digest. Also sent by the broker to a head, on control."""

    digest: str


@message(8)
@dataclass(frozen=True, slots=True)
class GetStatus(Message):
    """Ask for `Status`; needs no hello."""


@message(9)
@dataclass(frozen=True, slots=True)
class RelayToTail(Message):
    """A return-link message of a client that takes the path through the broker. Broker to tail: the same.

    `client_id` is filled in by the broker, which trusts only its own table.
    """

    client_id: str
    epoch: Epoch
    frame: Blob


# --- broker to client ---


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a client must know of a served model before it fetches the card."""

    name: str
    digest: str
    card_digest: str
    context_length: int
    vocab_size: int

    def __repr__(self) -> str:
        sizes = f"context_length={self.context_length}, vocab_size={self.vocab_size}"
        return f"ModelInfo({self.name!r}, {sizes}, digest={self.digest[:12]})"


@message(20)
@dataclass(frozen=True, slots=True)
class BrokerWelcome(Message):
    """Answer to a good hello. Another `incarnation` than before: the broker has restarted."""

    incarnation: int
    models: tuple[ModelInfo, ...]


@message(21)
@dataclass(frozen=True, slots=True)
class HelloRefused(Message):
    """The hello was not accepted; nothing else on this connection will be."""

    code: ErrorCode
    detail: str


@message(22)
@dataclass(frozen=True, slots=True)
class Accepted(Message):
    """The request is admitted, with its seed fixed from now on."""

    request_id: str
    seed: int


@message(23)
@dataclass(frozen=True, slots=True)
class Refused(Message):
    """The request was not admitted and nothing of it has run."""

    request_id: str
    code: ErrorCode
    detail: str


@message(24)
@dataclass(frozen=True, slots=True)
class Dispatched(Message):
    """The request was given to a pipeline. `offer_generation` names the offer that it consumed, if any."""

    request_id: str
    epoch: Epoch
    offer_generation: int | None


@message(25)
@dataclass(frozen=True, slots=True)
class Ended(Message):
    """An ending that the broker writes: the request never started, or its epoch is fenced."""

    request_id: str
    ending: Ending


@message(26)
@dataclass(frozen=True, slots=True)
class WhoAreYou(Message):
    """The broker does not know the sender (it restarted, say); say hello or register again."""


@message(27)
@dataclass(frozen=True, slots=True)
class BrokerPong(Message):
    """Answer to `ClientPing`."""

    incarnation: int


@message(28)
@dataclass(frozen=True, slots=True)
class Card(Message):
    """A model card; empty `data` means that nobody has it now. Also sent by a head to the broker."""

    digest: str
    data: Blob


@message(29)
@dataclass(frozen=True, slots=True)
class RelayToClient(Message):
    """A return-link message that comes through the broker. Tail to broker: the same."""

    client_id: str
    epoch: Epoch
    frame: Blob


@message(30)
@dataclass(frozen=True, slots=True)
class BadMessage(Message):
    """The sender's last message could not be read; it was counted and nothing else happened."""

    code: ErrorCode
    detail: str
