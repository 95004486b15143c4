"""One stage's part in one pipeline epoch: its cores, its links' numbers, its queue of steps.

Messages of the epoch, finished steps and time come in; instructions go out. It ends with its epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stagewire.stage.executor import Plan, StepExecutor
from stagewire.stage.files.jobs import JobDone, ReadManifest, WriteManifest
from stagewire.stage.head.core import HeadCore, HeadInput, HeadOutput
from stagewire.stage.instructions import CloseRing, Instruction, SendControl, SendHead, SendNext, StartJob
from stagewire.stage.tail.core import Draw, TailCore
from stagewire.stage.tail.return_link import CloseLink, LinkInstruction, SendRelay, TellHead
from stagewire.stage.timing.head_times import NO_TIME, ReadTime
from stagewire.wire.codec import Arrival, Envelope, Message, ReceiverNumbers, SenderNumbers, encode_frame
from stagewire.wire.control import Assemble, AssemblyReport, Fault
from stagewire.wire.errors import ErrorCode
from stagewire.wire.file_orders import FileDone
from stagewire.wire.frontend import RelayToClient
from stagewire.wire.limits import MAX_DETAIL_CHARS
from stagewire.wire.note import Note
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import CancelRequest, Flow, Miss, Phase, Repeat, StartRequest, Step, StepResult
from stagewire.wire.snapshots import AskHeadSnapshots, report_of_none
from stagewire.wire.tensor import Blob

_FAULT_AGAIN_S = 1.0
_MAX_QUEUED_STEPS = 64
_FOR_HEAD = (StartRequest, CancelRequest, StepResult, Miss, Flow, FileDone)


@dataclass(frozen=True, slots=True)
class TakenStep:
    """A step to compute now. It has waited here for `queue_s`, after it was read as `read_time` says."""

    step: Step
    queue_s: float = 0.0
    read_time: ReadTime = NO_TIME


def timing_of(taken: TakenStep, stage_index: int, timing: StageTiming) -> StageTiming:
    """`timing` with what is known of the step from before it was begun."""
    codec_s, unread_s = timing.codec_s + taken.read_time.read_s, taken.read_time.unread_s
    spent = (timing.steps, timing.compute_s, timing.sample_s, codec_s, taken.queue_s, timing.plan_s)
    return StageTiming(stage_index, *spent, unread_s, timing.written_s)


class StageEpoch:
    """`head` is there at the first stage, `tail` at the last; where both are one, the ring closes inside.

    After a fault nothing is taken or sent any more, until the broker dissolves the epoch.
    """

    def __init__(self, message: Assemble, executor: StepExecutor, head: HeadCore | None, tail: TailCore | None) -> None:
        self.epoch, self.stage_index, self.num_stages = message.epoch, message.stage_index, message.num_stages
        self.executor = executor
        self.head, self.tail = head, tail
        self._received = ReceiverNumbers(self.epoch)
        self._to_next = None if tail else SenderNumbers(self.epoch, self.stage_index)
        self._to_head = None if head else SenderNumbers(self.epoch, self.stage_index)
        self._steps: deque[tuple[float, ReadTime, Step]] = deque()
        self._fault: Fault | None = None
        self._fault_told_at = 0.0
        self.num_dropped = 0

    @property
    def is_sound(self) -> bool:
        """No fault has ended it yet."""
        return self._fault is None

    @property
    def is_tail(self) -> bool:
        return self.tail is not None

    @property
    def num_queued_steps(self) -> int:
        """Steps that have come and wait for this stage."""
        return len(self._steps)

    def report(self) -> AssemblyReport:
        """For the broker that wants to adopt it."""
        requests = self.head.requests if self.head else ()
        return AssemblyReport(self.epoch, self.stage_index, self.num_stages, requests)

    # --- the ring ---

    def handle_ring(
        self, envelope: Envelope, message: Message, now: float, read_time: ReadTime = NO_TIME
    ) -> list[Instruction]:
        """A message on this stage's PULL socket."""
        if not self.is_sound:
            return []
        arrival = self._received.arrive(envelope, isinstance(message, Repeat))
        if arrival is Arrival.GAP:
            return self.fail(ErrorCode.STAGE_LOST, f"a message from sender {envelope.sender} is missing", now)
        if arrival is Arrival.DROP:
            self.num_dropped += not isinstance(message, Repeat)
            return []
        if self.head and isinstance(message, _FOR_HEAD):
            return self.tell_head(message, now, read_time)
        if self.head is None and isinstance(message, Step) and len(self._steps) < _MAX_QUEUED_STEPS:
            self._steps.append((now, read_time, message))
            return []
        return self.fail(ErrorCode.PROTOCOL_ERROR, f"{type(message).__name__} does not belong here", now)

    def tell_head(self, message: HeadInput, now: float, read_time: ReadTime = NO_TIME) -> list[Instruction]:
        """Over the feed, or without a socket where this stage is the head."""
        if self.head:
            return self._from_head(self.head.handle(message, now, read_time), now)
        if self._to_head and not isinstance(message, StartRequest):
            return [SendHead(self._to_head.next(now), message)]
        return []

    def _from_head(self, messages: Iterable[HeadOutput], now: float) -> list[Instruction]:
        out: list[Instruction] = []
        for message in messages:
            if isinstance(message, Fault):
                return [*out, *self.fail(message.code, message.detail, now)]
            out.append(message if isinstance(message, StartJob) else SendControl(message))
        return out

    def fail(self, code: ErrorCode, detail: str, now: float) -> list[Instruction]:
        """The epoch cannot go on; told once, and then every second until it is dissolved."""
        if self._fault:
            return []
        self._fault, self._fault_told_at = Fault(self.epoch, code, detail[:MAX_DETAIL_CHARS]), now
        self._steps.clear()
        return [SendControl(self._fault)]

    # --- steps ---

    def take(self, now: float) -> TakenStep | None:
        """The step to compute now, or None."""
        if self._fault:
            return None
        if self.head:
            self.executor.begin(self.head.next_step_id, self.head.releases)
            step = self.head.next_step(now)
            return TakenStep(step) if step else None
        if not self._steps:
            return None
        arrived_at, read_time, step = self._steps.popleft()
        return TakenStep(step, now - arrived_at, read_time)

    def begin(self, step: Step, now: float) -> list[Instruction]:
        """At the tail, take note of new requests before the pass, so that their links are dialled meanwhile."""
        return self._perform_links(self.tail.begin(step, now), now) if self.tail else []

    def draw(self, plan: Plan, logits: npt.NDArray[np.float32] | None) -> list[Draw]:
        """At the tail, sample; elsewhere nothing."""
        return self.tail.draw(plan.step, logits) if self.tail else []

    def finish(
        self,
        taken: TakenStep,
        plan: Plan,
        output: npt.NDArray[np.float32] | None,
        draws: list[Draw],
        timing: StageTiming,
        now: float,
    ) -> list[Instruction]:
        """The pass is done: tell the head of misses, pass the step on or, at the tail, return tokens."""
        timing = timing_of(taken, self.stage_index, timing)
        out = [i for miss in plan.misses for i in self.tell_head(miss, now)]
        out += [StartJob(job) for job in plan.jobs]
        if self._to_next:
            return [*out, SendNext(self._to_next.next(now), StepExecutor.forward(plan, output, timing))]
        assert self.tail is not None
        result, links = self.tail.record(plan.step, draws, (*plan.step.timings, timing), now)
        # The head first: every sequence waits for its next step, and a client's token only for this one send.
        return [*out, *self.tell_head(result, now), *self._perform_links(links, now)]

    # --- files ---

    def finish_job(self, done: JobDone, now: float) -> list[Instruction]:
        """The file thread is through with a job of this epoch."""
        if not self.is_sound:
            return []
        if isinstance(done.job, ReadManifest | WriteManifest):
            return self._from_head(self.head.finish_manifest(done, now), now) if self.head else []
        return self.tell_head(self.executor.files.finish(done), now)

    def ask_snapshots(self, asked: AskHeadSnapshots, now: float) -> list[Instruction]:
        """The broker's question, for the head."""
        if self.head is None or not self.is_sound:
            return [SendControl(report_of_none(asked))]
        return self._from_head(self.head.snapshots.answer(asked, now), now)

    def fail_step(self, step: Step | None, detail: str, now: float) -> list[Instruction]:
        """A step raised, or (None) making the next one: the epoch ends, and its requests with it."""
        if step is None:
            return self.fail(ErrorCode.INTERNAL, f"the next step: {detail}", now)
        is_prefill = any(span.phase is Phase.PREFILL for span in step.slices)
        code = ErrorCode.PREFILL_FAILED if is_prefill else ErrorCode.DECODE_FAILED
        return self.fail(code, f"step {step.step_id}: {detail}", now)

    # --- return links ---

    def handle_link(self, client_id: str, link: int | None, message: Message, now: float) -> list[Instruction]:
        """A message of a client on a direct link, or (None) through the broker."""
        return self._perform_links(self.tail.receive(client_id, link, message, now), now) if self.tail else []

    def lose_link(self, client_id: str, link: int, now: float, is_ours: bool = False) -> list[Instruction]:
        """A direct link broke, or its dial failed; or (`is_ours`) it is to be closed."""
        return self._perform_links(self.tail.lose(client_id, link, now, is_ours), now) if self.tail else []

    def reset_relays(self, now: float) -> list[Instruction]:
        """The broker is another one: greet again the clients that are reached through it."""
        return self._perform_links(self.tail.reset_relays(now), now) if self.tail else []

    def _perform_links(self, links: Iterable[LinkInstruction | Note], now: float) -> list[Instruction]:
        out: list[Instruction] = []
        for link in links:
            if isinstance(link, TellHead):
                out += self.tell_head(link.message, now)
            elif isinstance(link, SendRelay):
                frame = Blob(encode_frame(link.message))
                out.append(SendControl(RelayToClient(link.client_id, self.epoch, frame)))
            else:
                out.append(link)
        return out

    # --- time ---

    def tick(self, now: float) -> list[Instruction]:
        """Time has passed."""
        if self._fault:
            return self._repeat_fault(self._fault, now)
        out: list[Instruction] = []
        if self._to_next and (envelope := self._to_next.repeat(now)):
            out.append(SendNext(envelope, Repeat()))
        if self._to_head and (envelope := self._to_head.repeat(now)):
            out.append(SendHead(envelope, Repeat()))
        if self.tail:
            out += self._perform_links(self.tail.tick(now), now)
        if self.head:
            out += self._from_head(self.head.tick(now), now)
        return out

    def _repeat_fault(self, fault: Fault, now: float) -> list[Instruction]:
        if now - self._fault_told_at < _FAULT_AGAIN_S:
            return []
        self._fault_told_at = now
        return [SendControl(fault)]

    def close(self) -> list[Instruction]:
        """The epoch has ended: nothing of it is ever sent or taken again, but who waits for files is told."""
        told = self.head.snapshots.close() if self.head else []
        links = self.tail.close() if self.tail else []
        closed = [link for link in links if isinstance(link, CloseLink)]
        return [*(SendControl(report) for report in told), *closed, CloseRing()]
