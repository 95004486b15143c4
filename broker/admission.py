"""Whether a request may enter: what it asks for, which models are known, and whether there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from stagewire.broker.events import Asked
from stagewire.broker.settings import BrokerSettings
from stagewire.wire.control import StageInfo
from stagewire.wire.counted import counted
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import ModelInfo
from stagewire.wire.limits import MAX_NAME_CHARS, MAX_PROMPT_TOKENS

MAX_REQUEST_ID_CHARS = 64
_MAX_MODELS = 64


class Refusal(NamedTuple):
    """A stable code, and a sentence that says what to do."""

    code: ErrorCode
    detail: str


class Occupancy(NamedTuple):
    """How much of each limit is taken."""

    num_queued: int
    payload_bytes: int
    num_of_client: int
    memory_full: bool


class KnownModels:
    """The models that stages brought, also after they left, by name and digest; the last ones registered."""

    def __init__(self) -> None:
        self._models: OrderedDict[tuple[str, str], ModelInfo] = OrderedDict()

    def all(self) -> tuple[ModelInfo, ...]:
        return tuple(self._models.values())

    def saw(self, info: StageInfo) -> None:
        key = info.model_name, info.model_digest
        known = self._models.get(key)
        # Only a first stage knows the card.
        card_digest = info.card_digest or (known.card_digest if known else "")
        self._models[key] = ModelInfo(*key, card_digest, info.context_length, info.vocab_size)
        self._models.move_to_end(key)
        if len(self._models) > _MAX_MODELS:
            self._models.popitem(last=False)

    def named(self, model: str | None) -> list[ModelInfo]:
        """Those that a request for `model` may run on; None takes any."""
        return [known for known in self._models.values() if model in (None, known.name)]

    def names(self) -> str:
        return ", ".join(sorted({known.name for known in self._models.values()}))


def content_refusal(asked: Asked, models: KnownModels) -> Refusal | None:
    """What is wrong with the request itself; with no model known yet, dispatch looks at its length again."""
    if not 1 <= len(asked.request_id) <= MAX_REQUEST_ID_CHARS:
        return Refusal(ErrorCode.INVALID_REQUEST, f"request_id must have 1 to {MAX_REQUEST_ID_CHARS} characters")
    if len(asked.session_id) > MAX_NAME_CHARS:
        return Refusal(ErrorCode.INVALID_REQUEST, f"session_id must have at most {MAX_NAME_CHARS} characters")
    if asked.num_prompt_tokens > MAX_PROMPT_TOKENS:
        detail = f"prompt of {counted(asked.num_prompt_tokens, 'token')}; a message holds {MAX_PROMPT_TOKENS}"
        return Refusal(ErrorCode.CONTEXT_OVERFLOW, detail)
    if asked.num_prompt_tokens == 0 and asked.max_tokens != 0:
        return Refusal(ErrorCode.DECODE_SEED_MISSING, "the prompt is empty: no token to start decoding from")
    return model_refusal(asked.model, models) or context_refusal(
        asked.num_prompt_tokens, asked.max_tokens, models.named(asked.model)
    )


def model_refusal(model: str | None, models: KnownModels) -> Refusal | None:
    if models.all() and not models.named(model):
        detail = f"model {model!r:.80} is not served; served are: {models.names()}"
        return Refusal(ErrorCode.UNKNOWN_MODEL, detail)
    return None


def context_refusal(num_prompt: int, max_tokens: int | None, models: Sequence[ModelInfo]) -> Refusal | None:
    """Refuses what no model's context can hold; one token more than asked for belongs to the sum.

    An omitted `max_tokens` runs to the context's end, so only one new token must fit.
    """
    longest = max((model.context_length for model in models), default=None)
    if longest is None or fits(num_prompt, max_tokens, longest):
        return None
    answer = f", max_tokens {max_tokens}" if max_tokens is not None else ""
    wanted = f"prompt of {counted(num_prompt, 'token')}{answer}"
    detail = f"{wanted}: prompt + max_tokens + 1 must be at most the context of {counted(longest, 'token')}"
    return Refusal(ErrorCode.CONTEXT_OVERFLOW, detail)


def fits(num_prompt: int, max_tokens: int | None, context_length: int) -> bool:
    return num_prompt + (1 if max_tokens is None else max_tokens) + 1 <= context_length


def room_refusal(asked: Asked, taken: Occupancy, settings: BrokerSettings) -> Refusal | None:
    """Which limit the request would exceed; all of these may be tried again later."""
    if taken.num_of_client >= settings.max_requests_per_client:
        has = counted(taken.num_of_client, "request")
        detail = f"this client has {has}; at most {settings.max_requests_per_client}"
        return Refusal(ErrorCode.CLIENT_LIMIT, detail)
    if taken.num_queued >= settings.max_queued:
        detail = f"the queue holds {counted(taken.num_queued, 'request')}; at most {settings.max_queued}"
        return Refusal(ErrorCode.QUEUE_FULL, detail)
    if taken.payload_bytes + asked.payload_bytes > settings.max_queued_bytes:
        detail = f"waiting prompts hold {taken.payload_bytes} bytes; at most {settings.max_queued_bytes}"
        return Refusal(ErrorCode.QUEUE_FULL, detail)
    if taken.memory_full:
        detail = f"{settings.max_finished} requests are running or ended within the last minute"
        return Refusal(ErrorCode.QUEUE_FULL, detail)
    return None
