"""The stage's loop: sockets, time and the forward pass. It decides nothing; `StageCore` does.

One turn: receive what has arrived, tick when it is time, compute at most one step, send what is due. Whatever stands
between two forward passes is paid for every token, so a turn does nothing that can be done at a tick.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable

import zmq

from stagewire.sockets.connection import new_socket
from stagewire.sockets.nonblocking import Outbox, Ready, SendSocket, received, received_frames
from stagewire.stage.compute.operators import Operators
from stagewire.stage.core import StageCore
from stagewire.stage.files.disk_cache import DiskCache
from stagewire.stage.files.worker import FileWorker
from stagewire.stage.heartbeat import HeartbeatThread
from stagewire.stage.instructions import (
    CloseRing,
    ConnectRing,
    Exit,
    Instruction,
    SendControl,
    SendHead,
    SendNext,
    StartJob,
)
from stagewire.stage.links.pair_sockets import LinkFrame, LinkGone, PairSockets
from stagewire.stage.links.ring_sockets import RingSockets
from stagewire.stage.settings import StageSettings
from stagewire.stage.stage_epoch import StageEpoch, TakenStep
from stagewire.stage.tail.link_instructions import CloseLink, Dial, LinkEnd, SendLink
from stagewire.stage.timing.step_times import LoopClock
from stagewire.wire.codec import Frames, compile_all, decode, decode_frame, decode_ring, encode, encode_ring
from stagewire.wire.errors import ProtocolError, StagewireError
from stagewire.wire.note import Note
from stagewire.wire.ring import Step, StepResult

log = logging.getLogger("stagewire.stage")

_TICK_S = 0.05
_FULL_SOCKET_S = 0.001
_OUTBOX_LIMIT = 4096
Socket = zmq.Socket[bytes]


class StageLoop:
    """One stage's sockets. `data` is bound already."""

    def __init__(
        self,
        context: zmq.Context[Socket],
        settings: StageSettings,
        data: Socket,
        core: StageCore,
        operators: Operators,
        heartbeat: HeartbeatThread,
        files: FileWorker,
        disk: DiskCache | None = None,
    ) -> None:
        self._context, self._settings, self._core = context, settings, core
        self._operators, self._heartbeat = operators, heartbeat
        self._files, self._disk, self._measures = files, disk, core.measures
        self._poller = zmq.Poller()
        self._data = data
        self._control = SendSocket(new_socket(context, zmq.DEALER, settings.control_endpoint), Outbox(_OUTBOX_LIMIT))
        self._control.socket.set(zmq.LINGER, 200)
        self._control.socket.connect(settings.control_endpoint)
        self._poller.register(self._data, zmq.POLLIN)
        self._poller.register(self._control.socket, zmq.POLLIN)
        self._poller.register(files.wake, zmq.POLLIN)
        self._ring = RingSockets(context, settings)
        self._pairs = PairSockets(context, self._poller, settings.return_condition)
        self._exit: Exit | None = None
        self._clock = LoopClock()
        self._is_busy = False
        self._tick_at = 0.0

    def run(self, on_ready: Callable[[], None], stop: threading.Event) -> None:
        """Serve until `stop` is set.

        Raises:
            StagewireError: the broker does not want this stage.
        """
        is_ready = False
        log.info("event=registering control=%s", self._settings.control_endpoint)
        compile_all()
        # What has been loaded stays: a collection that walks over it again takes as long as many tokens.
        gc.freeze()
        while not stop.is_set() and self._exit is None:
            self._turn()
            if not is_ready and self._core.is_registered:
                is_ready = True
                on_ready()
                log.info("event=registered stage=%s", self._settings.stage_id)
        if self._exit is not None:
            raise StagewireError(self._exit.detail, self._exit.code)

    def close(self) -> None:
        """Close all sockets, in bounded time."""
        # Whoever leaves in order says so, and nobody waits for its silence to show.
        now = time.monotonic()
        self._perform([SendControl(self._core.bye())], now)
        self._control.flush(now)
        self._pairs.close_all()
        self._close_ring()
        self._control.socket.close()
        self._data.close(linger=0)
        self._files.close()
        if self._disk:
            self._disk.close()

    # --- one turn ---

    def _turn(self) -> None:
        now = time.monotonic()
        self._receive(self._clock.poll(self._poller, now if self._is_busy else self._next_due(now)))
        now = time.monotonic()
        if now >= self._tick_at:
            self._tick(now)
        stage_epoch = self._core.stage_epoch
        has_computed = stage_epoch is not None and self._advance(stage_epoch, now)
        self._is_busy = has_computed or bool(self._files.copying) or (self._disk is not None and self._disk.has_work)
        if self._files.copying:
            self._files.pump()
        if self._disk:
            self._disk.pump()
        self._flush(time.monotonic())

    def _next_due(self, now: float) -> float:
        """When the loop must be awake: to send what simulates a network's delay, or to tick."""
        dues = [link.outbox.next_due() for link in (self._control, *self._ring.links)]
        dues.append(self._pairs.next_due())
        # A due time in the past means a full socket: do not spin on it.
        return min([due if due > now else now + _FULL_SOCKET_S for due in dues if due is not None] + [self._tick_at])

    def _tick(self, now: float) -> None:
        self._tick_at = now + _TICK_S
        self._perform(self._core.tick(now, self._heartbeat.is_unknown()), now)
        self._measures.idle_s = self._clock.idle_s
        self._heartbeat.progress.counters = self._measures.counters(self._core.store, self._core.stage_epoch)

    def _receive(self, ready: Ready) -> None:
        if self._data in ready:
            for frame in received_frames(self._data):
                self._take_ring(frame, time.monotonic())
        if self._control.socket in ready:
            for frames in received(self._control.socket):
                self._take_control(frames, time.monotonic())
        if self._files.wake.fileno() in ready:
            for done in self._files.take_done():
                now = time.monotonic()
                self._perform(self._core.handle_file(done, now), now)
        for event in self._pairs.receive(ready):
            now = time.monotonic()
            if isinstance(event, LinkGone):
                self._perform(self._core.lose_link(*event.key, now), now)
            else:
                self._take_link(event, now)

    def _take_ring(self, frame: bytes, now: float) -> None:
        try:
            envelope, message = decode_ring(frame)
        except ProtocolError as error:
            # A stranger's bytes do no harm; if it was a message of ours, the next number shows the gap.
            log.warning("event=bad_ring_message detail=%r", error.detail)
            return
        read_at = time.monotonic()
        self._measures.received.add(read_at - now, len(frame))
        self._perform(self._core.handle_ring(envelope, message, read_at, self._clock.read_time(read_at - now)), read_at)

    def _take_control(self, frames: Frames, now: float) -> None:
        try:
            message = decode(frames)
        except ProtocolError as error:
            log.warning("event=bad_control_message detail=%r", error.detail)
            return
        self._perform(self._core.handle_control(message, now), now)

    def _take_link(self, event: LinkFrame, now: float) -> None:
        client_id, link = event.key
        try:
            message = decode_frame(event.frame)
        except ProtocolError as error:
            log.warning("event=bad_return_message client=%s detail=%r", client_id, error.detail)
            self._perform(self._core.break_link(client_id, link, now), now)
            return
        self._perform(self._core.handle_link(client_id, link, message, now), now)

    # --- the forward step ---

    def _advance(self, stage_epoch: StageEpoch, now: float) -> bool:
        """Compute the next step; False if there is none."""
        taken = step = None
        try:
            taken = stage_epoch.take(now)
            if taken:
                step = taken.step
                self._compute(stage_epoch, taken, now)
        except Exception as error:
            # Whatever a step raises ends its epoch, loudly, and never this process: another may be assembled.
            log.exception("event=step_failed step=%s", step.step_id if step else "-")
            self._perform(stage_epoch.fail_step(step, f"{type(error).__name__}: {error}", now), now)
        return taken is not None

    def _compute(self, stage_epoch: StageEpoch, taken: TakenStep, begun: float) -> None:
        """One forward step: plan the rows, run the layers, at the tail sample, and hand over."""
        progress = self._heartbeat.progress
        progress.step_begun_at = begun
        try:
            self._perform(stage_epoch.begin(taken.step, begun), begun)
            plan = stage_epoch.executor.plan(taken.step)
            planned = time.monotonic()
            output = plan.compute(self._operators)
            computed = time.monotonic()
            draws = stage_epoch.draw(plan, output)
            sampled = time.monotonic()
            timing = self._clock.timing(stage_epoch.stage_index, begun, planned, computed, sampled)
            self._perform(stage_epoch.finish(taken, plan, output, draws, timing, sampled), sampled)
            self._measures.computed(taken, plan, timing, stage_epoch.is_tail)
        finally:
            progress.step_begun_at = None
            progress.num_steps += 1

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
                self._dial(instruction, now)
            elif isinstance(instruction, CloseLink):
                self._pairs.close(instruction)
            elif isinstance(instruction, ConnectRing):
                self._connect_ring(instruction, now)
            elif isinstance(instruction, CloseRing):
                self._close_ring()
            elif isinstance(instruction, StartJob):
                self._files.submit(instruction.job)
            elif isinstance(instruction, Note):
                instruction.write(log)
            else:
                self._exit = instruction

    def _push(self, send: SendNext | SendHead, now: float) -> None:
        started = time.monotonic()
        frame = encode_ring(send.envelope, send.message)
        written_at = time.monotonic()
        is_step = isinstance(send.message, Step | StepResult)  # its receiver may be at work from here on
        self._measures.sent.add(self._clock.wrote(written_at) if is_step else written_at - started, len(frame))
        if not self._ring.put(type(send), frame, now):
            log.error("event=ring_outbox_full")
            self._perform(self._core.ring_overflowed(), now)

    def _send_control(self, send: SendControl, now: float) -> None:
        if not self._control.put(encode(send.message), now):
            # Only a broker that has been away for long fills this; it will ask for a report when it is back.
            log.warning("event=control_outbox_full dropped=%s", type(send.message).__name__)

    def _send_link(self, send: SendLink, now: float) -> None:
        if not self._pairs.send(send, now):
            log.warning("event=link_overflow client=%s link=%d", send.client_id, send.link)
            self._perform(self._core.break_link(send.client_id, send.link, now), now)

    def _dial(self, dial: Dial, now: float) -> None:
        is_open = self._pairs.dial(dial, now)
        event = "dial" if is_open else "no_room_to_dial"
        log.info("event=%s client=%s link=%d endpoint=%s", event, dial.client_id, dial.link, dial.endpoint)
        if not is_open:
            self._perform(self._core.lose_link(dial.client_id, dial.link, now, LinkEnd.NO_ROOM), now)

    def _connect_ring(self, connect: ConnectRing, now: float) -> None:
        if self._disk:
            self._disk.tier.refresh()  # nobody sends a step before this stage has said that it is assembled
        log.info("event=assembled next=%s feed=%s", connect.next_endpoint or "-", connect.feed_endpoint or "-")
        try:
            self._ring.connect(connect)
        except zmq.ZMQError as error:
            log.warning("event=ring_failed detail=%r", error.strerror)
            self._perform(self._core.ring_failed(error.strerror, now), now)

    def _close_ring(self) -> None:
        log.info("event=ring_closed")
        self._ring.close()

    def _flush(self, now: float) -> None:
        for link in (*self._ring.links, self._control):
            link.flush(now)
        self._pairs.flush(now)
