"""The endings that a client writes itself, where nobody else can."""

from __future__ import annotations

from stagewire.client.core.events import DeliverEnding
from stagewire.client.core.requests import Request
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import Generate
from stagewire.wire.request import Ending, FinishReason, Usage


def failed(request: Request, code: ErrorCode, detail: str) -> Ending:
    return Ending(FinishReason.FAILED, request.num_tokens, _usage(request), (), code, detail)


def cancelled(request: Request) -> Ending:
    return Ending(FinishReason.CANCELLED, request.num_tokens, _usage(request))


def refusal(generate: Generate, code: ErrorCode, detail: str) -> DeliverEnding:
    """The ending of a request that was never admitted."""
    usage = Usage(len(generate.prompt_token_ids), 0)
    ending = Ending(FinishReason.FAILED, 0, usage, (), code, detail)
    return DeliverEnding(generate.request_id, ending, refused=True)


def _usage(request: Request) -> Usage:
    return Usage(len(request.generate.prompt_token_ids), request.num_tokens)
