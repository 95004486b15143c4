"""The stage's loop with real sockets: a tail between a head and a broker that the test plays."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import zmq
from numpy.typing import NDArray
from support.stage_info import INFO
from support.toy_operators import ToyOperators

from stagewire.stage.compute.operators import BLOCK_SIZE, Batch
from stagewire.stage.core import StageCore, StageParts
from stagewire.stage.files.runner import FileRunner
from stagewire.stage.files.worker import FileWorker
from stagewire.stage.head.limits import HeadLimits
from stagewire.stage.heartbeat import HeartbeatThread
from stagewire.stage.kv.store import KvStore
from stagewire.stage.loop import StageLoop
from stagewire.stage.settings import StageSettings
from stagewire.stage.stage_epoch import StageEpoch
from stagewire.wire.codec import Message, SenderNumbers, decode, decode_ring, encode, encode_ring
from stagewire.wire.control import Assemble, Assembled, Fault, Heartbeat, Register, Registered
from stagewire.wire.counters import StageCounters, TailCounters
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import StageTiming
from stagewire.wire.ring import Phase, Repeat, SequenceStart, Slice, Step, StepResult
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.tensor import Tensor, TokenIds

pytestmark = pytest.mark.timeout(60)

EPOCH = Epoch(3, 1)
WAIT_MS = 20_000
FORWARD_S = 0.03
Socket = zmq.Socket[bytes]


class SlowOperators(ToyOperators):
    """The toy, taking its time."""

    def forward(self, batch: Batch, hidden_states: NDArray[np.float32] | None) -> NDArray[np.float32]:
        time.sleep(FORWARD_S)
        return super().forward(batch, hidden_states)


class Neighbours:
    """The broker and the head of the tail under test."""

    def __init__(self, context: zmq.Context[Socket]) -> None:
        self.broker, self.feed, self.hop = (
            context.socket(zmq.ROUTER),
            context.socket(zmq.PULL),
            context.socket(zmq.PUSH),
        )
        self.control_endpoint = f"tcp://127.0.0.1:{self.broker.bind_to_random_port('tcp://127.0.0.1')}"
        self.feed_endpoint = f"tcp://127.0.0.1:{self.feed.bind_to_random_port('tcp://127.0.0.1')}"
        self.numbers = SenderNumbers(EPOCH, 0)
        self._peer = b""

    def from_stage(self, kind: type[Message]) -> Message:
        """The next message of a kind on control; heartbeats come on a connection of their own."""
        while self.broker.poll(WAIT_MS):
            peer, *frames = self.broker.recv_multipart()
            message = decode(frames)
            if not isinstance(message, Heartbeat):
                self._peer = peer
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} in time")

    def to_stage(self, message: Message) -> None:
        self.broker.send_multipart([self._peer, *encode(message)])

    def send_step(self, step: Step) -> None:
        self.hop.send(encode_ring(self.numbers.next(time.monotonic()), step))

    def result(self) -> StepResult:
        while self.feed.poll(WAIT_MS):
            _, message = decode_ring(self.feed.recv())
            if not isinstance(message, Repeat):
                assert isinstance(message, StepResult)
                return message
        raise AssertionError("no result in time")

    def close(self) -> None:
        for socket in (self.broker, self.feed, self.hop):
            socket.close(linger=0)


def no_head(_assemble: Assemble) -> HeadLimits:
    raise AssertionError("a tail has no head's limits")


@pytest.fixture
def neighbours() -> Iterator[Neighbours]:
    """A tail that serves layer 1 of 2, assembled, in a thread."""
    context: zmq.Context[Socket] = zmq.Context()
    around = Neighbours(context)
    settings = StageSettings(model="toy", control_endpoint=around.control_endpoint, layer_start=1, stage_id="tail")
    data = context.socket(zmq.PULL)
    around.hop.connect(f"tcp://127.0.0.1:{data.bind_to_random_port('tcp://127.0.0.1')}")
    parts = StageParts(
        store=KvStore(16, BLOCK_SIZE, block_bytes=100),
        hidden_size=2,
        is_row_exact=True,
        head_limits=no_head,
        draw_nonce=lambda: secrets.token_bytes(16),
    )
    core = StageCore(replace(INFO, stage_id="tail", layer_start=1), parts)
    heartbeat = HeartbeatThread(context, around.control_endpoint, "tail", 1)
    operators = SlowOperators(1, 2, 2, 16)
    loop = StageLoop(
        context,
        settings,
        data,
        core,
        operators,
        heartbeat,
        FileWorker(FileRunner(None, None), operators.read_block),
    )
    stop = threading.Event()

    def serve() -> None:
        with heartbeat:
            loop.run(lambda: None, stop)
            loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        around.from_stage(Register)
        around.to_stage(Registered(1, None))
        around.to_stage(Assemble(EPOCH, 1, 2, around.feed_endpoint, None, 16, 16, "n1"))
        around.from_stage(Assembled)
        yield around
    finally:
        stop.set()
        thread.join(10)
        around.close()
        context.destroy(linger=0)
    assert not thread.is_alive()


def step(step_id: int, pos_start: int, token_ids: list[int]) -> Step:
    """A step of one sequence as the head sends it; the first announces the request."""
    params = SamplingParams(temperature=0.0)
    start = SequenceStart(1, "r", "c", params, len(token_ids), 100, (), None)
    rows = np.arange(2 * len(token_ids), dtype=np.float32).reshape(-1, 2)
    phase = Phase.DECODE if pos_start else Phase.PREFILL
    return Step(
        step_id=step_id,
        releases=(),
        starts=() if pos_start else (start,),
        slices=(Slice(1, phase, pos_start, len(token_ids), True),),
        finishes=(),
        timings=(StageTiming(0, 1, 0.5, 0.0, 0.25),),
        token_ids=TokenIds.of(token_ids),
        hidden_states=Tensor.from_numpy(rows),
    )


@pytest.mark.alone
def test_every_step_gets_its_result_and_its_times(neighbours: Neighbours) -> None:
    """`compute_s` is the forward pass alone, so that what is left of a step's time is the engine's own."""
    results, tails = [], []
    for step_id in range(1, 11):
        started = time.monotonic()
        neighbours.send_step(step(step_id, 3 + step_id if step_id > 1 else 0, [5] if step_id > 1 else [1, 2, 3, 4, 5]))
        result = neighbours.result()
        elapsed_s = time.monotonic() - started
        head, tail = result.timings
        assert head == StageTiming(0, 1, 0.5, 0.0, 0.25), "what came with the step goes on unchanged"
        assert (tail.stage_index, tail.steps) == (1, 1)
        assert tail.compute_s >= FORWARD_S
        assert tail.sample_s > 0 and tail.codec_s > 0
        assert tail.compute_s + tail.sample_s + tail.codec_s <= elapsed_s + 0.001, "encoding is told one step later"
        results.append(result)
        tails.append(tail)
    assert [result.step_id for result in results] == [*range(1, 11)]
    assert all(len(item.token_ids) == 1 for result in results for item in result.results)
    assert min(tail.compute_s for tail in tails) < 2 * FORWARD_S


def test_steps_that_wait_together_are_computed_in_order(neighbours: Neighbours) -> None:
    """One turn takes all that has arrived and computes one; the others are not forgotten."""
    for step_id in range(1, 6):
        neighbours.send_step(step(step_id, 3 + step_id if step_id > 1 else 0, [5] if step_id > 1 else [1, 2, 3, 4, 5]))
    assert [neighbours.result().step_id for _ in range(5)] == [1, 2, 3, 4, 5]


def test_a_strangers_bytes_do_not_stop_it(neighbours: Neighbours) -> None:
    """They are dropped; the step behind them is computed."""
    neighbours.hop.send_multipart([b"what", b"is", b"this"])
    neighbours.hop.send(b"")
    neighbours.send_step(step(1, 0, [1, 2, 3, 4, 5]))
    assert neighbours.result().step_id == 1


def test_what_making_a_step_raises_ends_the_epoch_and_not_the_process(
    neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is told, and the stage serves the next epoch as if nothing had been."""
    with monkeypatch.context() as patch:
        patch.setattr(StageEpoch, "take", broken_next_step)
        fault = neighbours.from_stage(Fault)
    assert isinstance(fault, Fault)
    assert (fault.epoch, fault.code) == (EPOCH, ErrorCode.INTERNAL)
    assert fault.detail == "the next step: RuntimeError: no policy"
    again = Epoch(3, 2)
    neighbours.numbers = SenderNumbers(again, 0)
    neighbours.to_stage(Assemble(again, 1, 2, neighbours.feed_endpoint, None, 16, 16, "n1"))
    neighbours.from_stage(Assembled)
    neighbours.send_step(step(1, 0, [1, 2, 3, 4, 5]))
    assert neighbours.result().step_id == 1


def broken_next_step(stage_epoch: StageEpoch, now: float) -> Step | None:
    """As the scheduler behind it might be."""
    if stage_epoch.is_sound:
        raise RuntimeError("no policy")
    return None


def test_heartbeats_tell_what_the_stage_has_done(neighbours: Neighbours) -> None:
    """Forward passes by phase, tokens, blocks, and idle time: together no more than the time that has passed."""
    for step_id in range(1, 6):
        neighbours.send_step(step(step_id, 3 + step_id if step_id > 1 else 0, [5] if step_id > 1 else [1, 2, 3, 4, 5]))
        neighbours.result()
    time.sleep(0.2)
    counters = latest_counters(neighbours)
    assert (counters.num_steps, counters.num_prefill_tokens, counters.num_decode_tokens) == (5, 5, 4)
    assert counters.prefill_s >= FORWARD_S and counters.decode_s >= 4 * FORWARD_S
    assert counters.plan_s > 0 and counters.sample_s > 0 and counters.codec_s > 0
    assert counters.idle_s >= 0.15
    spent_s = counters.idle_s + counters.prefill_s + counters.decode_s + counters.plan_s + counters.sample_s
    assert spent_s + counters.codec_s <= counters.uptime_s
    assert (counters.num_used_blocks, counters.num_queued_steps) == (1, 0)
    assert counters.tail == TailCounters(num_prompt_tokens=5, num_cached_tokens=0, num_generated_tokens=5)
    assert counters.head is None, "that is another stage's"


def latest_counters(neighbours: Neighbours) -> StageCounters:
    """Of the first heartbeat that knows all steps."""
    for _ in range(20):
        beat = neighbours.from_stage(Heartbeat)
        assert isinstance(beat, Heartbeat)
        if beat.counters and beat.counters.num_steps == 5:
            return beat.counters
    raise AssertionError("the heartbeats do not tell of the steps")


@pytest.mark.alone
def test_what_lay_unread_while_the_stage_computed_is_told_with_the_step(neighbours: Neighbours) -> None:
    """Of two that come together, the first finds the stage idle; the other may have waited for its pass."""
    neighbours.send_step(step(1, 0, [1, 2, 3, 4, 5]))
    time.sleep(FORWARD_S / 3)
    neighbours.send_step(step(2, 5, [5]))
    first, second = [neighbours.result().timings[-1] for _ in range(2)]
    assert first.unread_s < FORWARD_S / 2
    assert FORWARD_S <= second.unread_s < 1.0
    assert second.queue_s < FORWARD_S, "it was read when the stage was free"
