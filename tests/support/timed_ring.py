"""Stages in simulated time, each with a clock of its own that is far from the others', and what truly happened when.

The cores are the real ones. ReadTime, making ready, computing, drawing and writing take the times that a test gives.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray
from support.in_process import EPOCH, InProcessPipeline, request
from support.toy_operators import VOCAB_SIZE, ToyOperators

from stagewire.stage.executor import Plan
from stagewire.stage.instructions import Instruction, SendControl, SendHead, SendNext
from stagewire.stage.stage_epoch import TakenStep
from stagewire.stage.tail.core import Draw
from stagewire.stage.timing.head_times import ReadTime
from stagewire.wire.codec import BROKER, Envelope, Message, decode_frame, encode_frame
from stagewire.wire.frontend import RelayToClient, RelayToTail
from stagewire.wire.request import Ending, StageTiming
from stagewire.wire.returns import ReturnHello, ReturnTokens, TailHello
from stagewire.wire.ring import Step
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import Blob

GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that things take; `hop_s` on the way to the next stage, `feed_s` back to the head."""

    read_s: float = 1 / 1024
    plan_s: float = 2 / 1024
    compute_s: Callable[[int, Step], float] = lambda _index, _step: 10 / 1024
    sample_s: float = 3 / 1024
    write_s: float = 1 / 2048
    hop_s: float = 5 / 1024
    feed_s: float = 4 / 1024


@dataclass
class Truth:
    """What an observer of the whole ring sees of one request: when a head has read it, and its steps."""

    read_at: float = 0.0
    ended_at: float = 0.0
    steps: list[int] = field(default_factory=list)


@dataclass
class _Stage:
    clock_offset_s: float
    inbox: deque[tuple[Envelope, Message]] = field(default_factory=deque)
    is_busy: bool = False
    polled_at: float | None = None
    written_s: float = 0.0


class TimedRing:
    """`endings` and `truths` by request; `launched_at` and `drawn_at` by step."""

    def __init__(self, num_stages: int, costs: Costs, chunk_tokens: int = 256, num_blocks: int = 64) -> None:
        layers = [ToyOperators(index, index + 1, num_stages, num_blocks) for index in range(num_stages)]
        self._pipeline = InProcessPipeline(layers, 2, VOCAB_SIZE, chunk_tokens=chunk_tokens)
        self._costs, self._last = costs, num_stages - 1
        self._stages = [_Stage((-1) ** index * 1000.0 * (index + 1)) for index in range(num_stages)]
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._numbers = count(), count(1)
        self.now = 0.0
        self.endings: dict[str, Ending] = {}
        self.truths: dict[str, Truth] = {}
        self.launched_at: dict[int, float] = {}
        self.drawn_at: dict[int, float] = {}
        self._request_of: dict[int, str] = {}

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._order), act))

    def start(self, when: float, request_id: str, prompt: Sequence[int], max_tokens: int) -> None:
        """The request reaches the head's socket at `when`."""
        self.truths[request_id] = Truth()
        message = request(request_id, prompt, max_tokens, GREEDY)
        self.at(when, lambda: self._arrive(0, Envelope(EPOCH, BROKER, 1, next(self._numbers)), message))

    def run(self) -> None:
        """Until nothing is left to do."""
        while self._agenda:
            self.now, _, act = heapq.heappop(self._agenda)
            act()

    # --- one stage ---

    def _arrive(self, index: int, envelope: Envelope, message: Message) -> None:
        self._stages[index].inbox.append((envelope, message))
        if not self._stages[index].is_busy:
            self._turn(index)

    def _turn(self, index: int) -> None:
        """As the loop: read what is there, then compute one step; nothing is read meanwhile."""
        stage, costs, now = self._stages[index], self._costs, self.now
        unread_s = 0.0 if stage.polled_at is None else now - stage.polled_at
        stage.polled_at, stage.is_busy = now, True
        while stage.inbox:
            envelope, message = stage.inbox.popleft()
            now += costs.read_s
            self._note_read(message, now)
            core, read_time = self._pipeline.cores[index], ReadTime(costs.read_s, unread_s)
            self._perform(index, core.handle_ring(envelope, message, now + stage.clock_offset_s, read_time), now)
        self.at(now, lambda: self._compute(index))

    def _note_read(self, message: Message, now: float) -> None:
        request_id = getattr(message, "request_id", None)
        if request_id is not None:
            self.truths[request_id].read_at = now

    def _compute(self, index: int) -> None:
        stage, costs, begun = self._stages[index], self._costs, self.now
        stage_epoch = self._pipeline.cores[index].stage_epoch
        assert stage_epoch is not None
        taken = stage_epoch.take(begun + stage.clock_offset_s)
        if taken is None:
            stage.is_busy, stage.polled_at = False, None
            if stage.inbox:
                self._turn(index)
            return
        step = taken.step
        if index == 0:
            self._note_launch(step)
        self._perform(index, stage_epoch.begin(taken.step, begun + stage.clock_offset_s), begun)
        plan = stage_epoch.executor.plan(step)
        output = plan.compute(self._pipeline.operators[index])
        draws = stage_epoch.draw(plan, output)
        compute_s = costs.compute_s(index, step)
        sample_s = costs.sample_s if index == self._last else 0.0
        written_s, stage.written_s = stage.written_s, 0.0
        timing = StageTiming(0, 1, compute_s, sample_s, written_s, plan_s=costs.plan_s, written_s=written_s)
        drawn = begun + costs.plan_s + compute_s + sample_s

        def finish() -> None:
            self._finish(index, taken, plan, output, draws, timing)

        self.at(drawn, finish)

    def _note_launch(self, step: Step) -> None:
        self.launched_at[step.step_id] = self.now
        self._request_of.update({start.seq_id: start.request_id for start in step.starts})
        for seq_id in dict.fromkeys(span.seq_id for span in step.slices):
            self.truths[self._request_of[seq_id]].steps.append(step.step_id)

    def _finish(
        self,
        index: int,
        taken: TakenStep,
        plan: Plan,
        output: NDArray[np.float32] | None,
        draws: list[Draw],
        timing: StageTiming,
    ) -> None:
        stage_epoch, stage = self._pipeline.cores[index].stage_epoch, self._stages[index]
        assert stage_epoch is not None
        if index == self._last:
            self.drawn_at[plan.step.step_id] = self.now
        instructions = stage_epoch.finish(taken, plan, output, draws, timing, self.now + stage.clock_offset_s)
        written_at = self._perform(index, instructions, self.now)
        self.at(written_at, lambda: self._turn(index))

    def _perform(self, index: int, instructions: Sequence[Instruction], now: float) -> float:
        """Returns when all is written."""
        for instruction in instructions:
            match instruction:
                case SendNext(envelope, message) | SendHead(envelope, message):
                    now += self._costs.write_s
                    self._stages[index].written_s = self._costs.write_s
                    self._send(index, envelope, message, now)
                case SendControl(RelayToClient() as relay):
                    self._to_client(decode_frame(relay.frame.data))
                case _:
                    pass
        return now

    def _send(self, index: int, envelope: Envelope, message: Message, now: float) -> None:
        target, way_s = (0, self._costs.feed_s) if index == self._last else (index + 1, self._costs.hop_s)
        self.at(now + way_s, lambda: self._arrive(target, envelope, message))

    def _to_client(self, message: Message) -> None:
        if isinstance(message, TailHello):
            reply = Blob(encode_frame(ReturnHello(message.link, message.tail_nonce, None)))
            tail = self._pipeline.cores[self._last]
            now = self.now + self._stages[self._last].clock_offset_s
            self._perform(self._last, tail.handle_control(RelayToTail("client", EPOCH, reply), now), self.now)
        for item in message.items if isinstance(message, ReturnTokens) else ():
            if item.ending is not None:
                self.endings[item.request_id] = item.ending
                self.truths[item.request_id].ended_at = self.now
