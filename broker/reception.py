"""What clients say besides `Generate`: hello, offers, cancels, pings, leaving, relayed frames; how they are missed."""

from __future__ import annotations

from stagewire.broker.endings import Endings, cancellation, failure
from stagewire.broker.events import ForgetPeer, Peer
from stagewire.broker.peers import ClientRecord, StageRecord
from stagewire.broker.pipeline import Pipeline, PipelineState
from stagewire.broker.state import BrokerState
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import (
    BrokerPong,
    BrokerWelcome,
    ClientHello,
    HelloRefused,
    RelayToClient,
    RelayToTail,
)
from stagewire.wire.limits import MAX_NAME_CHARS
from stagewire.wire.request import Ending


class Reception:
    """Owns who is a client."""

    def __init__(self, state: BrokerState, endings: Endings) -> None:
        self._state, self._endings = state, endings

    def hello(self, peer: Peer, message: ClientHello, now: float) -> None:
        client = self._state.clients.get(message.client_id)
        refusal = self._refusal(peer, message, client)
        if refusal:
            self._state.answer(peer, HelloRefused(*refusal))
            self._state.note("client_refused", client=repr(message.client_id[:64]), code=refusal[0].value)
            return
        client = client or self._state.clients.add(message.client_id, None, now)
        client.nonce, client.heard_at = message.client_nonce, now
        client.offers(message.offer)
        if client.peer != peer:
            self._move(client, peer)
        self._state.answer(peer, BrokerWelcome(self._state.incarnation, self._state.models.all()))

    def _refusal(self, peer: Peer, message: ClientHello, known: ClientRecord | None) -> tuple[ErrorCode, str] | None:
        sender = self._state.clients.by_peer(peer)
        if not 1 <= len(message.client_id) <= MAX_NAME_CHARS:
            return ErrorCode.INVALID_REQUEST, f"client_id must have 1 to {MAX_NAME_CHARS} characters"
        if sender and sender is not known:
            return ErrorCode.INVALID_REQUEST, f"this connection is client {sender.client_id!r:.80}"
        if known and known.nonce not in (None, message.client_nonce):
            silence_s = self._state.settings.client_silence_s
            detail = f"another client named {known.client_id!r:.80} was heard within {silence_s:g} s"
            return ErrorCode.IDENTITY_IN_USE, detail
        if known is None and len(self._state.clients) >= self._state.settings.max_clients:
            return ErrorCode.CLIENT_LIMIT, f"the broker has {len(self._state.clients)} clients already"
        return None

    def _move(self, client: ClientRecord, peer: Peer) -> None:
        if client.peer:
            self._state.out.append(ForgetPeer(client.peer))
        self._state.clients.connect(client, peer)
        self._state.note("client_connected", client=client.client_id, peer=peer)

    def ping(self, client: ClientRecord) -> None:
        self._state.to_client(client.client_id, BrokerPong(self._state.incarnation))

    def cancel(self, client: ClientRecord, request_id: str, now: float) -> None:
        request = self._state.requests.get(request_id)
        if request and request.client_id == client.client_id:
            self._endings.cancel(request, cancellation(request.num_prompt_tokens), now)

    def bye(self, client: ClientRecord, now: float) -> None:
        self._leave(client, cancellation(), "bye", now)

    def overflowed(self, client: ClientRecord, now: float) -> None:
        ending = failure(ErrorCode.CLIENT_GONE, "the client does not read what it is sent")
        self._leave(client, ending, "overflow", now)

    def check_silence(self, now: float) -> None:
        limit_s = self._state.settings.client_silence_s
        ending = failure(ErrorCode.CLIENT_GONE, f"the client was silent for {limit_s:g} s")
        for client in self._state.clients:
            if now - client.heard_at > limit_s:
                self._leave(client, ending, "silent", now)

    def _leave(self, client: ClientRecord, queued_ending: Ending, reason: str, now: float) -> None:
        """Its requests end: here those that no head has, through the ring the others."""
        if client.peer:
            self._state.out.append(ForgetPeer(client.peer))
        self._state.clients.remove(client)
        self._endings.cancel_all(client.client_id, queued_ending, now)
        for pipeline in self._state.pipelines.values():
            pipeline.introduced.discard(client.client_id)
        self._state.note("client_gone", client=client.client_id, reason=reason)


class Relay:
    """Return-link messages that go through the broker, because the client cannot be dialled or asked for it.

    Passes frames on unread, between a client and the tail of a living epoch, and keeps nothing.
    What cannot be passed on is counted: both ends of a return link repeat what was not acknowledged.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def to_tail(self, client: ClientRecord, message: RelayToTail) -> None:
        tail = self._tail_of(message.epoch)
        passed_on = RelayToTail(client.client_id, message.epoch, message.frame)
        if tail:
            self._state.to_stage(tail, passed_on)
        else:
            self._state.undelivered(passed_on, f"epoch={message.epoch}")

    def to_client(self, stage: StageRecord, message: RelayToClient) -> None:
        if self._tail_of(message.epoch) is stage:
            self._state.to_client(message.client_id, message)
        else:
            self._state.undelivered(message, f"epoch={message.epoch}")

    def _tail_of(self, epoch: Epoch) -> StageRecord | None:
        pipeline = self._state.pipelines.get(epoch)
        if pipeline is None or not _is_live(pipeline) or pipeline.tail is None:
            return None
        return self._state.pool.member(pipeline.tail.stage_id, epoch)


def _is_live(pipeline: Pipeline) -> bool:
    return pipeline.state in (PipelineState.SERVING, PipelineState.REPORTED)
