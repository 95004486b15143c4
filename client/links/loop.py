"""The client's one socket thread: it polls always and never computes; callers post events and are called back.

It decides nothing; `ClientCore` does. Nothing here waits without a bound, and the thread ends with its client.
"""

# Over 300 lines: the callers' side and the thread's share one lock and one end, and are read together.

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from itertools import count

import zmq

from stagewire.client.core import events
from stagewire.client.core.client_core import ClientCore
from stagewire.client.delivery import Deliveries
from stagewire.client.links.broker_socket import CONNECTED, broker_socket
from stagewire.client.links.return_sockets import ReturnSockets
from stagewire.client.settings import ClientSettings
from stagewire.sockets.descriptors import room_for
from stagewire.sockets.nonblocking import received
from stagewire.sockets.probe import probe_aside
from stagewire.sockets.wake_up import WakeUp
from stagewire.wire.codec import Frames, Message, decode, encode
from stagewire.wire.errors import ErrorCode, ProtocolError, RequestRefused, SettingsError, StagewireError
from stagewire.wire.frontend import Generate
from stagewire.wire.note import Note
from stagewire.wire.request import Ending, FinishReason, Usage

log = logging.getLogger("stagewire.client")

_TICK_S, _IDLE_TICK_S = 0.025, 0.25
_EARLY_S = 0.001
_CLOSE_S = 2.0
_DESCRIPTORS = 24
"""Eleven, the broker's connection included; nine more for the first return link; and some for another."""
_MAX_POSTED = 100_000
_CLOSED = StagewireError("this client is closed", ErrorCode.CLIENT_CLOSED)
_ELSEWHERE = "this client was made in another process, and a fork inherits none of its connections; make one here"
_ERRORS: dict[ErrorCode, type[StagewireError]] = {ErrorCode.INVALID_SETTING: SettingsError}
_ERRORS |= dict.fromkeys((ErrorCode.IDENTITY_IN_USE, ErrorCode.PROTOCOL_VERSION), RequestRefused)
Socket = zmq.Socket[bytes]


class ClientLoop:
    """Runs the core in a daemon thread until `close`."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._process_id = os.getpid()
        self._core = ClientCore(settings, secrets.token_bytes(16))
        self._posted: deque[events.Event] = deque()
        self._consumed: dict[str, int] = {}
        self._deliveries: dict[str, Deliveries] = {}
        self._replies: dict[int, Future[Message]] = {}
        self._tickets = count(1)
        # Reentrant: a garbage collector's finalizer may post while this very thread holds it.
        self._lock = threading.RLock()
        self._is_awake = self.is_closing = self._has_broker = False
        self._ticked_at = 0.0
        self._num_dropped = 0
        self._why_closed = _CLOSED
        with room_for(_DESCRIPTORS, "a client"):
            self._open()
        self._thread = threading.Thread(target=self._run, name="stagewire-client", daemon=True)
        self._thread.start()

    # --- callers' side, any thread ---

    def submit(self, generate: Generate, deliveries: Deliveries) -> None:
        """Start a request.

        Raises:
            StagewireError: CLIENT_LIMIT, too much waits for the client's thread.
            RequestRefused: INVALID_REQUEST, the request cannot be put into a message; CLIENT_CLOSED; OTHER_PROCESS.
                Nothing was sent.
        """
        self.check_process()
        try:
            encode(generate)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            # Here, in the caller's thread: in the socket thread it would end everybody's requests.
            raise RequestRefused(f"the request cannot be sent: {error}") from error
        with self._lock:
            self._check_open()
            self._deliveries[generate.request_id] = deliveries
        self.post(events.Submit(generate))

    def ask(self, message: Message | None, timeout_s: float) -> Future[Message]:
        """Ask the broker; None waits for its welcome. The future fails with a `StagewireError`.

        Raises:
            StagewireError: as `submit`.
        """
        self.check_process()
        future: Future[Message] = Future()
        with self._lock:
            self._check_open()
            ticket = next(self._tickets)
            self._replies[ticket] = future
        self.post(events.Ask(ticket, message, timeout_s))
        return future

    def post(self, event: events.Event) -> None:
        """Hand an event to the socket thread; after `close`, or in another process, it is of no consequence."""
        if not self.is_here:
            return
        with self._lock:
            if self.is_closing:
                return
            self._posted.append(event)
            self._wake()

    def consumed(self, request_id: str, num_tokens: int) -> None:
        """The caller has so many tokens by now. Looked at with the next tick: no event and no wake-up for each one."""
        self._consumed[request_id] = num_tokens

    def close(self) -> None:
        """Cancel what runs, say goodbye, end the thread; two seconds at most. Nothing in a forked process."""
        if not self.is_here:
            return
        with self._lock:
            if not self.is_closing:
                self._posted.append(events.Close())
                self.is_closing = True
                self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=_CLOSE_S)

    def describe(self) -> str:
        """For people: what there is to say of a client that cannot be used."""
        return ", of another process" if not self.is_here else ", closed" if self.is_closing else ""

    @property
    def is_here(self) -> bool:
        """Whether this is the process that the thread runs in. A forked one has neither it nor, maybe, a free lock."""
        return os.getpid() == self._process_id

    def check_process(self) -> None:
        """Nobody would ever answer in a process that inherited this client.

        Raises:
            RequestRefused: OTHER_PROCESS.
        """
        if not self.is_here:
            raise RequestRefused(_ELSEWHERE, ErrorCode.OTHER_PROCESS)

    def _check_open(self) -> None:
        if self.is_closing:
            raise RequestRefused(self._why_closed.detail, self._why_closed.code)
        if len(self._posted) >= _MAX_POSTED:
            raise StagewireError(f"{_MAX_POSTED} events wait for the client's thread", ErrorCode.CLIENT_LIMIT)

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._wake_up.call()

    # --- the socket thread ---

    def _open(self) -> None:
        self._poller = zmq.Poller()
        self._wake_up = WakeUp()
        self._context: zmq.Context[Socket] = zmq.Context()
        try:
            self._context.set(zmq.MAX_SOCKETS, 8192)
            self._broker = broker_socket(self._context, self._poller, self._settings.endpoint)
            self._pairs = ReturnSockets(self._context, self._poller, self._settings.return_host)
            self._poller.register(self._wake_up.receiver, zmq.POLLIN)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            self._wake_up.close()
            raise SettingsError(f"endpoint={self._settings.endpoint}: cannot connect: {error.strerror}") from error

    def _run(self) -> None:
        try:
            while not self._core.is_closed:
                self._turn()
            self._flush(time.monotonic())
        except Exception as error:
            log.exception("event=client_thread_failed")
            detail = f"the client's thread failed: {error!r}"
            self._why_closed = StagewireError(detail, ErrorCode.INTERNAL)
        finally:
            self._shut()

    def _turn(self) -> None:
        wait_s = _TICK_S if self._core.is_busy else _IDLE_TICK_S
        is_full = bool(self._broker.sending.outbox) or self._pairs.has_pending
        ready = dict(self._poller.poll(1 if is_full else int(1000 * wait_s)))
        if self._is_awake:
            for event in self._take_posted():
                self._handle(event)
        if self._broker.monitor in ready:
            self._watch()
        if self._broker.socket in ready:
            self._read_broker()
        for event in self._pairs.receive(ready):
            self._handle(event)
        now = time.monotonic()
        if now - self._ticked_at >= wait_s - _EARLY_S:
            self._ticked_at = now
            self._tick()
        if is_full:
            self._flush(now)

    def _tick(self) -> None:
        while self._consumed:
            # One by one: callers put in at the same time.
            self._handle(events.Consumed(*self._consumed.popitem(), ended=False))
        self._handle(events.Tick())

    def _take_posted(self) -> list[events.Event]:
        with self._lock:
            posted, self._posted = self._posted, deque()
            if self._is_awake:
                self._is_awake = False
                self._wake_up.clear()
            return [*posted]

    def _watch(self) -> None:
        for event, _ in self._broker.news():
            self._has_broker = event == CONNECTED
            self._broker.sending.outbox.clear()
            self._handle(events.BrokerConnected() if self._has_broker else events.BrokerDisconnected())

    def _read_broker(self) -> None:
        for frames in received(self._broker.socket):
            self._handle(_event_of(frames))

    def _handle(self, event: events.Event) -> None:
        self._perform(self._core.handle(event, time.monotonic()))

    def _perform(self, instructions: list[events.Instruction]) -> None:
        pending = deque(instructions)
        while pending:
            following = self._do(pending.popleft())
            if following is not None:
                # At once: an offer that is bound must be with the broker before the request that it is for.
                pending.extendleft(reversed(self._core.handle(following, time.monotonic())))

    def _do(self, instruction: events.Instruction) -> events.Event | None:
        match instruction:
            case events.DeliverTokens() | events.DeliverMilestone() | events.DeliverEnding():
                self._deliver(instruction)
            case events.SendBroker(message):
                self._send_broker(message)
            case events.ProbeBroker(address):
                probe_aside(address, lambda found: self.post(events.BrokerProbed(found)))
            case events.LeaveBroker():
                with suppress(zmq.ZMQError):  # it may have left by itself
                    self._broker.socket.disconnect(self._settings.endpoint)
            case events.BindOffer(generation):
                return self._pairs.bind(generation)
            case events.CloseSocket(generation):
                self._pairs.close(generation)
            case events.SendLink(generation, message):
                return self._pairs.send(generation, message, time.monotonic())
            case events.Reply() | events.NoReply():
                self._reply(instruction)
            case Note():
                instruction.write(log)
        return None

    def _send_broker(self, message: Message) -> None:
        """Losing it is no harm: whatever matters is repeated by a timer, and after every welcome."""
        if self._has_broker and not self._broker.sending.put(encode(message), time.monotonic()):
            self._num_dropped += 1
            log.warning("event=outbox_full dropped=%s message=%s", self._num_dropped, type(message).__name__)

    def _deliver(self, instruction: events.DeliverTokens | events.DeliverMilestone | events.DeliverEnding) -> None:
        deliveries = self._deliveries.get(instruction.request_id)
        if deliveries is None:
            return
        match instruction:
            case events.DeliverTokens():
                deliveries.tokens(instruction)
            case events.DeliverMilestone(_, milestone):
                deliveries.milestone(milestone)
            case events.DeliverEnding(request_id):
                del self._deliveries[request_id]
                deliveries.ending(instruction)

    def _reply(self, reply: events.Reply | events.NoReply) -> None:
        future = self._replies.pop(reply.ticket, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if isinstance(reply, events.Reply):
            future.set_result(reply.message)
        else:
            future.set_exception(_ERRORS.get(reply.code, StagewireError)(reply.detail, reply.code))

    def _flush(self, now: float) -> None:
        self._broker.sending.flush(now)
        self._pairs.flush(now)

    def _shut(self) -> None:
        """Whatever ended the thread: nobody is left waiting, and no socket stays."""
        with self._lock:
            self.is_closing = True
            unended, self._deliveries = self._deliveries, {}
            unanswered, self._replies = [*self._replies.values()], {}
        ending = self._last_words()
        for request_id, deliveries in unended.items():
            deliveries.ending(events.DeliverEnding(request_id, ending))
        for future in unanswered:
            if future.set_running_or_notify_cancel():
                future.set_exception(RequestRefused(self._why_closed.detail, self._why_closed.code))
        self._pairs.close_all()
        self._broker.close(linger_ms=200)
        self._wake_up.close()
        self._context.term()

    def _last_words(self) -> Ending:
        """The ending of what has none when the thread ends."""
        if self._why_closed is _CLOSED:
            return Ending(FinishReason.CANCELLED, None, Usage(0, 0), (), None, _CLOSED.detail)
        return Ending(FinishReason.FAILED, None, Usage(0, 0), (), self._why_closed.code, self._why_closed.detail)


def _event_of(frames: Frames) -> events.Event:
    try:
        return events.BrokerMessage(decode(frames))
    except ProtocolError as error:
        return events.BrokerUnreadable(error.code, error.detail)
