"""The broker's loop: sockets, time and payloads around `BrokerCore`; it decides nothing."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import zmq

from stagewire.broker.core import BrokerCore
from stagewire.broker.events import (
    Asked,
    CloseFeed,
    DropPayload,
    Event,
    FeedOverflowed,
    ForgetPeer,
    Instruction,
    KeepPayload,
    Link,
    OpenFeed,
    Peer,
    PushCancel,
    PushStart,
    Received,
    Send,
    Stop,
    Tick,
    Unreadable,
)
from stagewire.broker.settings import BrokerSettings
from stagewire.broker.sockets import Feed, Router
from stagewire.broker.watch import watch
from stagewire.monitoring.endpoint import MetricsEndpoint
from stagewire.sockets import descriptors
from stagewire.sockets.open_files import open_file_limit
from stagewire.wire.codec import Message, decode
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode, ProtocolError
from stagewire.wire.frontend import Generate
from stagewire.wire.note import Note
from stagewire.wire.ring import CancelRequest, StartRequest

log = logging.getLogger("stagewire.broker")

TICK_S = 0.1
_PENDING_POLL_S = 0.005
_RECEIVES_PER_TURN = 256
_MAX_MESSAGE_BYTES = 24 * 1024 * 1024
_LINGER_S = 0.5
_MIN_DESCRIPTORS = 48
"""Its own twenty, and what it keeps back; the rest is for a stage and a few clients."""


@dataclass(frozen=True, slots=True)
class BrokerEndpoints:
    """Where the broker is bound, with the ports that it got."""

    frontend: str
    control: str
    metrics: str = ""
    """`host:port` of `/metrics` and `/sd`; empty when switched off."""


def run_broker(settings: BrokerSettings, on_ready: Callable[[BrokerEndpoints], None], stop: threading.Event) -> None:
    """Serve until `stop` is set; then end what waits, leave what runs to the ring, and close.

    Raises:
        SettingsError: an endpoint cannot be bound (PORT_IN_USE: another process has it), or too few files may be
            opened (DESCRIPTOR_LIMIT); nothing is left open.
    """
    descriptors.require(_MIN_DESCRIPTORS, "a broker")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        loop = BrokerLoop(settings, context)
        try:
            endpoints = loop.endpoints
            words = (endpoints.frontend, endpoints.control, endpoints.metrics or "-")
            on_ready(endpoints)  # who reads the line may send a signal at once
            log.info("event=ready frontend=%s control=%s metrics=%s", *words)
            while not stop.is_set():
                loop.turn()
            loop.finish()
        finally:
            loop.close()
    finally:
        context.term()


class BrokerLoop:
    """One turn: wait, receive, tick, send. All of it on one thread."""

    def __init__(self, settings: BrokerSettings, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._settings, self._context = settings, context
        self._routers: dict[Link, Router] = {}
        self._feeds: dict[Epoch, Feed] = {}
        self._payloads: dict[str, Generate] = {}
        self._events: deque[Event] = deque()
        self._poller = zmq.Poller()
        self._tick_at = time.monotonic()
        self._watch: MetricsEndpoint | None = None
        self._bind()

    def _bind(self) -> None:
        try:
            self._routers[Link.FRONTEND] = Router(self._context, Link.FRONTEND, self._settings.frontend_endpoint)
            self._routers[Link.CONTROL] = Router(self._context, Link.CONTROL, self._settings.control_endpoint)
            # With the ports that it got: whoever comes to the wrong one is told the right one.
            here = replace(
                self._settings,
                frontend_endpoint=self._routers[Link.FRONTEND].endpoint,
                control_endpoint=self._routers[Link.CONTROL].endpoint,
            )
            # What strangers, metrics and pipelines need is kept back; for many clients, more of them.
            kept_back = max(descriptors.RESERVE, open_file_limit() // 16)
            max_connections = max(1, descriptors.num_free() - kept_back)
            if max_connections < here.max_clients:
                words = (open_file_limit(), max_connections, here.max_clients)
                log.warning("event=few_descriptors limit=%d max_clients=%d wanted=%d", *words)
            self._core = BrokerCore(here, time.time_ns(), self._tick_at, max_connections)
            if self._settings.metrics_port is not None:
                self._watch = watch(self._core.state, self._settings.metrics_port)
        except BaseException:
            self.close()
            raise
        for router in self._routers.values():
            self._poller.register(router.socket, zmq.POLLIN)

    @property
    def endpoints(self) -> BrokerEndpoints:
        metrics = self._watch.address if self._watch else ""
        return BrokerEndpoints(self._routers[Link.FRONTEND].endpoint, self._routers[Link.CONTROL].endpoint, metrics)

    # --- the turn ---

    def turn(self) -> None:
        """At most `TICK_S` long while nothing comes, and bounded when much does."""
        self._poller.poll(math.ceil(self._wait_s() * 1000))
        for router in self._routers.values():
            for peer, frames in router.receive(_RECEIVES_PER_TURN):
                self._receive(peer, frames)
        # After receiving, so that nobody is missed whose heartbeat was only waiting to be read.
        if time.monotonic() >= self._tick_at:
            self._tick_at = time.monotonic() + TICK_S
            self._handle(Tick())
        self._flush()

    def _senders(self) -> list[Router | Feed]:
        return [*self._routers.values(), *self._feeds.values()]

    def _wait_s(self) -> float:
        pending = any(sender.has_pending for sender in self._senders())
        until_tick = max(0.0, self._tick_at - time.monotonic())
        return min(until_tick, _PENDING_POLL_S) if pending else until_tick

    def _flush(self) -> None:
        now = time.monotonic()
        for feed in self._feeds.values():
            feed.flush(now)
        for router in self._routers.values():
            for event in router.flush(now):
                self._handle(event)

    # --- bytes to events ---

    def _receive(self, peer: Peer, frames: Sequence[bytes]) -> None:
        try:
            self._handle_message(peer, decode(frames), sum(len(frame) for frame in frames))
        except ProtocolError as error:
            self._handle(Unreadable(peer, error.code, error.detail, error.request_id))

    def _handle_message(self, peer: Peer, message: Message, num_bytes: int) -> None:
        if isinstance(message, Generate) and peer.link is Link.FRONTEND:
            self._handle(_asked(peer, message, num_bytes))
        elif num_bytes > _MAX_MESSAGE_BYTES:
            detail = f"message of {num_bytes} bytes; at most {_MAX_MESSAGE_BYTES}"
            raise ProtocolError(detail, ErrorCode.MESSAGE_TOO_LARGE)
        else:
            self._handle(Received(peer, message))

    # --- instructions to deeds ---

    def _handle(self, event: Event) -> None:
        """Carry out what the core wants; a deed that fails is the next event."""
        self._events.append(event)
        while self._events:
            for instruction in self._core.handle(self._events.popleft(), time.monotonic()):
                failure = self._execute(instruction)
                if failure:
                    self._events.append(failure)

    def _execute(self, instruction: Instruction) -> Event | None:
        match instruction:
            case Send(peer, message):
                return self._routers[peer.link].send(peer, message, time.monotonic())
            case ForgetPeer(peer):
                self._routers[peer.link].forget(peer)
            case KeepPayload(request_id, payload):
                assert isinstance(payload, Generate)
                self._payloads[request_id] = payload
            case DropPayload(request_id):
                del self._payloads[request_id]
            case OpenFeed(epoch, endpoint, run):
                return self._open_feed(epoch, endpoint, run)
            case CloseFeed(epoch):
                if epoch in self._feeds:
                    self._feeds.pop(epoch).close(0)
            case PushStart(epoch, request_id):
                return self._push(epoch, _start_request(self._payloads[request_id], instruction))
            case PushCancel(epoch, request_id, stop_after):
                return self._push(epoch, CancelRequest(request_id, stop_after))
            case Note():
                instruction.write(log)
        return None

    def _open_feed(self, epoch: Epoch, endpoint: str, run: int) -> Event | None:
        try:
            self._feeds[epoch] = Feed(self._context, epoch, endpoint, run, self._settings.feed_condition)
        except zmq.ZMQError as error:  # no descriptor is left: the pipeline cannot be fed, and others go on
            log.error("event=feed_failed epoch=%s detail=%r", epoch, error.strerror)
            return FeedOverflowed(epoch, f"the broker cannot connect to the head: {error.strerror}")
        return None

    def _push(self, epoch: Epoch, message: Message) -> Event | None:
        feed = self._feeds.get(epoch)
        return None if feed and feed.send(message, time.monotonic()) else FeedOverflowed(epoch)

    # --- the end ---

    def finish(self) -> None:
        """Tell the clients whose requests wait that they will not be served."""
        self._handle(Stop())
        self._flush()

    def close(self) -> None:
        if self._watch:
            self._watch.close()
        for sender in self._senders():
            sender.close(_LINGER_S)


def _asked(peer: Peer, generate: Generate, num_bytes: int) -> Asked:
    seed = generate.sampling.seed
    return Asked(
        peer=peer,
        request_id=generate.request_id,
        session_id=generate.session_id,
        model=generate.model,
        num_prompt_tokens=len(generate.prompt_token_ids),
        max_tokens=generate.max_tokens,
        payload_bytes=num_bytes,
        seed=secrets.randbits(63) if seed is None else seed,
        makes=generate.snapshot.name if generate.snapshot else None,
        restores=generate.restore,
        payload=generate,
    )


def _start_request(generate: Generate, push: PushStart) -> StartRequest:
    return StartRequest(
        request_id=push.request_id,
        client_id=push.client_id,
        session_id=push.session_id,
        sampling=replace(generate.sampling, seed=push.seed),
        max_tokens=generate.max_tokens,
        stop_token_ids=generate.stop_token_ids,
        ignore_eos=generate.ignore_eos,
        offer=push.offer,
        prompt_token_ids=generate.prompt_token_ids,
        snapshot=generate.snapshot,
        restore=generate.restore,
        admission_s=push.admission_s,
    )
