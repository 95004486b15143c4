"""The stage's loop: sockets, time and the forward pass. It decides nothing; `StageCore` does.

One turn: receive what has arrived, tick, compute at most one step, send what is due.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

import zmq

from stagewire.stage.assembly import Assembly
from stagewire.stage.core import StageCore
from stagewire.stage.disk_cache import DiskCache
from stagewire.stage.heartbeat import HeartbeatThread
from stagewire.stage.instructions import (
    CloseRing,
    ConnectRing,
    Exit,
    Instruction,
    SendControl,
    SendHead,
    SendNext,
)
from stagewire.stage.operators import Operators
from stagewire.stage.pair_sockets import LinkFrames, LinkGone, PairSockets
from stagewire.stage.return_link import CloseLink, Dial, SendLink
from stagewire.stage.settings import StageSettings
from stagewire.wire.codec import Frame, Frames, decode, decode_ring, encode, encode_ring
from stagewire.wire.errors import ErrorCode, ProtocolError, StagewireError
from stagewire.wire.frontend import Card, GetCard
from stagewire.wire.outbox import Outbox
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import Step
from stagewire.wire.tensor import Blob

log = logging.getLogger("stagewire.stage")

_TICK_MS = 50
_REGISTER_AGAIN_S = 1.0
_MAX_RECEIVES = 256
_OUTBOX_LIMIT = 4096
HIGH_WATER_MARK = 1000
Socket = zmq.Socket[bytes]


class StageLoop:
    """One stage's sockets. `data` is bound already; `card` is what a head gives to the broker, if it is one."""

    def __init__(
        self,
        context: zmq.Context[Socket],
        settings: StageSettings,
        data: Socket,
        core: StageCore,
        operators: Operators,
        heartbeat: HeartbeatThread,
        card: bytes,
        disk: DiskCache | None = None,
    ) -> None:
        self._context, self._settings, self._core = context, settings, core
        self._operators, self._heartbeat, self._card = operators, heartbeat, card
        self._disk = disk
        self._poller = zmq.Poller()
        self._data = data
        self._control = context.socket(zmq.DEALER)
        self._control.set(zmq.LINGER, 200)
        self._control.connect(settings.control_endpoint)
        self._poller.register(self._data, zmq.POLLIN)
        self._poller.register(self._control, zmq.POLLIN)
        self._control_outbox = Outbox(_OUTBOX_LIMIT)
        self._pushes: dict[type[SendNext] | type[SendHead], tuple[Socket, Outbox]] = {}
        self._pairs = PairSockets(context, self._poller, settings.return_condition)
        self._exit: Exit | None = None
        self._codec_s = 0.0
        self._is_busy = False

    def run(self, on_ready: Callable[[], None], stop: threading.Event) -> None:
        """Serve until `stop` is set.

        Raises:
            StagewireError: the broker does not want this stage.
        """
        is_ready, register_at = False, 0.0
        log.info("event=registering control=%s", self._settings.control_endpoint)
        while not stop.is_set() and self._exit is None:
            now = time.monotonic()
            if self._heartbeat.is_unknown() or (not self._core.is_registered and now >= register_at):
                self._perform([SendControl(self._core.register())], now)
                register_at = now + _REGISTER_AGAIN_S
            self._turn()
            if self._core.is_registered and not is_ready:
                is_ready = True
                log.info("event=registered stage=%s", self._settings.stage_id)
                on_ready()
        if self._exit is not None:
            raise StagewireError(self._exit.detail, self._exit.code)

    def close(self) -> None:
        """Close all sockets, in bounded time."""
        # Whoever leaves in order says so, and nobody waits for its silence to show.
        now = time.monotonic()
        self._perform([SendControl(self._core.bye())], now)
        self._control_outbox.flush(lambda due: _try_send(self._control, due), now)
        self._pairs.close_all()
        self._close_ring()
        self._control.close()
        self._data.close(linger=0)
        if self._disk:
            self._disk.close()

    # --- one turn ---

    def _turn(self) -> None:
        timeout_ms = 0 if self._is_busy else self._timeout_ms(time.monotonic())
        self._receive(dict(self._poller.poll(timeout_ms)))
        now = time.monotonic()
        self._perform(self._core.tick(now), now)
        assembly = self._core.assembly
        step = assembly.next_step(now) if assembly else None
        self._is_busy = step is not None or (self._disk is not None and self._disk.has_work)
        if assembly and step:
            self._compute(assembly, step)
        if self._disk:
            self._disk.pump()
        self._flush(time.monotonic())

    def _timeout_ms(self, now: float) -> int:
        dues = [box.next_due() for box in (self._control_outbox, *(box for _, box in self._pushes.values()))]
        dues.append(self._pairs.next_due())
        waits = [max(0.0, due - now) for due in dues if due is not None]
        # A due time in the past means a full socket: do not spin on it. The last millisecond before one is spun,
        # since poll counts in milliseconds and a simulated network is to be exact.
        return min([int(1000 * wait) if wait else 1 for wait in waits] + [_TICK_MS])

    def _receive(self, ready: dict[Socket, int]) -> None:
        if self._data in ready:
            self._drain(self._data, self._take_ring)
        if self._control in ready:
            self._drain(self._control, self._take_control)
        for event in self._pairs.receive(ready):
            now = time.monotonic()
            if isinstance(event, LinkGone):
                self._perform(self._core.lose_link(*event.key, now), now)
            else:
                self._take_link(event, now)

    def _drain(self, socket: Socket, take: Callable[[list[memoryview], float], None]) -> None:
        for _ in range(_MAX_RECEIVES):
            try:
                frames = socket.recv_multipart(flags=zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            take([frame.buffer for frame in frames], time.monotonic())

    def _take_ring(self, frames: Frames, now: float) -> None:
        try:
            envelope, message = decode_ring(frames)
        except ProtocolError as error:
            # A stranger's bytes do no harm; if it was a message of ours, the next number shows the gap.
            log.warning("event=bad_ring_message detail=%r", error.detail)
            return
        self._codec_s += time.monotonic() - now
        self._perform(self._core.handle_ring(envelope, message, now), now)

    def _take_control(self, frames: Frames, now: float) -> None:
        try:
            message = decode(frames)
        except ProtocolError as error:
            log.warning("event=bad_control_message detail=%r", error.detail)
            return
        if isinstance(message, GetCard):
            self._perform([SendControl(Card(message.digest, Blob(self._card)))], now)
            return
        self._perform(self._core.handle_control(message, now), now)

    def _take_link(self, event: LinkFrames, now: float) -> None:
        client_id, link = event.key
        try:
            message = decode([frame.buffer for frame in event.frames])
        except ProtocolError as error:
            log.warning("event=bad_return_message client=%s detail=%r", client_id, error.detail)
            self._pairs.close(CloseLink(client_id, link))
            self._perform(self._core.lose_link(client_id, link, now), now)
            return
        self._perform(self._core.handle_link(client_id, link, message, now), now)

    # --- the forward step ---

    def _compute(self, assembly: Assembly, step: Step) -> None:
        """One forward step: plan the rows, run the layers, at the tail sample, and hand over."""
        started = time.monotonic()
        self._heartbeat.progress.begin(started)
        try:
            self._perform(assembly.begin_step(step, started), started)
            plan = assembly.executor.plan(step)
            output = plan.compute(self._operators)
            computed = time.monotonic()
            draws = assembly.draw(plan, output)
            drawn = time.monotonic()
            timing = StageTiming(0, 1, computed - started, drawn - computed, self._codec_s)
            self._codec_s = 0.0
            self._perform(assembly.finish_step(plan, output, draws, timing, drawn), drawn)
        except Exception as error:
            # Whatever a step raises ends its epoch, loudly, and never this process: another may be assembled.
            log.exception("event=step_failed step=%d", step.step_id)
            now = time.monotonic()
            self._perform(assembly.fail_step(step, f"{type(error).__name__}: {error}", now), now)
        finally:
            self._heartbeat.progress.end()

    # --- instructions ---

    def _perform(self, instructions: Iterable[Instruction], now: float) -> None:
        for instruction in instructions:
            if isinstance(instruction, SendNext | SendHead):
                self._push(instruction, now)
            elif isinstance(instruction, SendControl):
                self._send_control(instruction, now)
            elif isinstance(instruction, SendLink):
                self._send_link(instruction, now)
            elif isinstance(instruction, Dial):
                log.info("event=dial client=%s link=%d endpoint=%s", *_dial_words(instruction))
                self._pairs.dial(instruction, now)
            elif isinstance(instruction, CloseLink):
                self._pairs.close(instruction)
            elif isinstance(instruction, ConnectRing):
                self._connect_ring(instruction)
            elif isinstance(instruction, CloseRing):
                self._close_ring()
            else:
                self._exit = instruction

    def _push(self, send: SendNext | SendHead, now: float) -> None:
        socket, outbox = self._pushes[type(send)]
        started = time.monotonic()
        frames = encode_ring(send.envelope, send.message)
        self._codec_s += time.monotonic() - started
        if not outbox.put(frames, now):
            log.error("event=ring_outbox_full")
            self._exit = Exit(ErrorCode.INTERNAL, "the outbox of a ring link is full: credits are not kept")
        outbox.flush(lambda due: _try_send(socket, due), now)

    def _send_control(self, send: SendControl, now: float) -> None:
        if not self._control_outbox.put(encode(send.message), now):
            # Only a broker that has been away for long fills this; it will ask for a report when it is back.
            log.warning("event=control_outbox_full dropped=%s", type(send.message).__name__)
        self._control_outbox.flush(lambda due: _try_send(self._control, due), now)

    def _send_link(self, send: SendLink, now: float) -> None:
        if not self._pairs.send(send, now):
            log.warning("event=link_overflow client=%s link=%d", send.client_id, send.link)
            self._pairs.close(CloseLink(send.client_id, send.link))
            self._perform(self._core.lose_link(send.client_id, send.link, now), now)

    def _connect_ring(self, connect: ConnectRing) -> None:
        if self._disk:
            self._disk.load()  # nobody sends a step before this stage has said that it is assembled
        log.info("event=assembled next=%s feed=%s", connect.next_endpoint or "-", connect.feed_endpoint or "-")
        targets = (
            (SendNext, connect.next_endpoint, self._settings.hop_condition),
            (SendHead, connect.feed_endpoint, self._settings.feed_condition),
        )
        for kind, endpoint, condition in targets:
            if endpoint is not None:
                socket = self._context.socket(zmq.PUSH)
                socket.set(zmq.SNDHWM, HIGH_WATER_MARK)
                socket.set(zmq.LINGER, 0)
                socket.connect(endpoint)
                self._pushes[kind] = (socket, Outbox(_OUTBOX_LIMIT, condition))

    def _close_ring(self) -> None:
        log.info("event=ring_closed")
        for socket, _ in self._pushes.values():
            socket.close(linger=0)
        self._pushes.clear()

    def _flush(self, now: float) -> None:
        for socket, outbox in self._pushes.values():
            outbox.flush(lambda due, socket=socket: _try_send(socket, due), now)  # type: ignore[misc]
        self._control_outbox.flush(lambda due: _try_send(self._control, due), now)
        self._pairs.flush(now)


def _dial_words(dial: Dial) -> tuple[str, int, str]:
    return dial.client_id, dial.link, dial.endpoint


def _try_send(socket: Socket, frames: list[Frame]) -> bool:
    try:
        socket.send_multipart(frames, flags=zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return False
    return True
