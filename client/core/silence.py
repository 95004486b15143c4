"""When a client gives a request up by itself: nobody is there any more, or its tail has lost its senses."""

from __future__ import annotations

from stagewire.client.core.broker_link import BrokerLink
from stagewire.client.core.diagnosis import Diagnosis
from stagewire.client.core.requests import ClientRequest, RequestState
from stagewire.client.core.return_ends import RELAY
from stagewire.client.core.return_links import ReturnLinks
from stagewire.client.settings import ClientSettings
from stagewire.wire.counted import counted
from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import Ending

MAX_GAPS = 8
STOP_S = 5.0
"""So long the pipeline's ending is waited for where a stop string has completed the answer."""


def overdue_ending(
    request: ClientRequest,
    broker: BrokerLink,
    links: ReturnLinks,
    diagnosis: Diagnosis,
    settings: ClientSettings,
    now: float,
) -> Ending | None:
    """The ending to write for a live request, or None while there is hope."""
    if request.stopped_at is not None and now - request.stopped_at >= STOP_S:
        return request.stopped()
    if request.num_gaps > MAX_GAPS:
        detail = f"its tokens came with wrong numbers {counted(request.num_gaps, 'time')}"
        return request.failed(ErrorCode.PROTOCOL_ERROR, detail)
    num_waiting = request.num_tokens - request.num_taken
    if num_waiting > settings.max_buffered_tokens:
        detail = f"{num_waiting} tokens came that the caller had no room for"
        return request.failed(ErrorCode.PROTOCOL_ERROR, detail)
    limit_s = settings.connect_timeout_s if broker.heard_at is None else settings.silence_timeout_s
    if now - _silent_since(request, broker, links, now) <= limit_s:
        return None
    why = f": {diagnosis.circumstance}" if diagnosis.circumstance else ""
    detail = f"nothing was heard of the broker at {settings.endpoint} or of the pipeline for {limit_s:g} s{why}"
    return request.failed(ErrorCode.UNREACHABLE, detail)


def _silent_since(request: ClientRequest, broker: BrokerLink, links: ReturnLinks, now: float) -> float:
    """Since when nobody is there who could still end the request.

    A tail that has begun to send keeps looking for a way to its client, so a direct link that stays lost is
    a tail that is gone. Before that the broker answers for the request, and on the relay as well.
    """
    if links.path(request.epoch) not in (None, RELAY):
        return now
    if request.state is RequestState.STREAMING:
        lost_at = links.lost_at(request.epoch)
        if lost_at is not None:
            return lost_at
    elif request.waits_since is not None:
        return request.waits_since
    elif request.asked_at is None:
        return request.submitted_at
    return broker.heard_at if broker.heard_at is not None else request.submitted_at
