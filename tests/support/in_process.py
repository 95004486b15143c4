"""A pipeline of stages in one process: real cores, real layers, every message through the real codec, no sockets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from stagewire.stage.compute.operators import BLOCK_SIZE, Operators
from stagewire.stage.core import StageCore, StageParts
from stagewire.stage.executor import StepExecutor
from stagewire.stage.files.disk_cache import DiskCache
from stagewire.stage.files.disk_tier import DiskTier
from stagewire.stage.files.jobs import FileJob, WritePart
from stagewire.stage.files.runner import FileRunner
from stagewire.stage.files.snapshot_directory import SnapshotDirectory
from stagewire.stage.files.stage_files import StageFiles
from stagewire.stage.head.file_waits import no_files
from stagewire.stage.head.limits import HeadLimits
from stagewire.stage.instructions import Instruction, SendControl, SendHead, SendNext, StartJob
from stagewire.stage.kv.store import KvStore
from stagewire.stage.schedule.limits import SchedulerLimits
from stagewire.wire.codec import BROKER, Envelope, Message, decode_frame, encode_frame
from stagewire.wire.control import Assemble, GenerateAck, StageInfo
from stagewire.wire.epoch import Epoch
from stagewire.wire.frontend import RelayToClient, RelayToTail
from stagewire.wire.request import Ending, StageTiming
from stagewire.wire.returns import ReturnHello, ReturnTokens, TailHello
from stagewire.wire.ring import CancelRequest, StartRequest
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.snapshots import AskHeadSnapshots, SnapshotOrder, SnapshotReport
from stagewire.wire.tensor import Blob, TokenIds

EPOCH = Epoch(1, 1)


def request(request_id: str, prompt: Sequence[int], max_tokens: int, sampling: SamplingParams) -> StartRequest:
    """As the broker would push it, without an offer and with no end token."""
    return StartRequest(request_id, "client", "s", sampling, max_tokens, (), True, None, TokenIds.of(prompt))


def executor_of(store: KvStore, stage_index: int, hidden_size: int = 2) -> StepExecutor:
    """Of the first or the second of two stages."""
    return StepExecutor(store, hidden_size, stage_index, StageFiles(EPOCH, stage_index, 2, store))


@dataclass
class Output:
    """What the client got of one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ending: Ending | None = None


class InProcessPipeline:
    """Stages with these operators, assembled; `hops` and `fed` are what crossed the ring, with the sender's index."""

    def __init__(
        self,
        operators: Sequence[Operators],
        hidden_size: int,
        vocab_size: int,
        context_length: int = 2048,
        chunk_tokens: int = 256,
        max_sequences: int = 64,
        cache_blocks: int | None = None,
        weights: int = 0,
        tiers: Sequence[DiskTier] = (),
        directory: Path | None = None,
    ) -> None:
        """`tiers` are the stages' disks, if any; `directory` is where snapshots are exported to."""
        self.operators = operators
        self.hop_bytes = 0
        self.outputs: dict[str, Output] = {}
        self.acks: list[GenerateAck] = []
        self._sequence, self._tickets = count(1), count(1)
        self.hops: list[tuple[int, Message]] = []
        self.fed: list[tuple[int, Message]] = []
        num_blocks = min(o.num_blocks for o in operators)
        self.stores = [KvStore(o.num_blocks, BLOCK_SIZE, o.block_bytes) for o in operators]
        self.disks = [DiskCache(*parts) for parts in zip(self.stores, operators, tiers, strict=False)]
        snapshots = SnapshotDirectory(directory, 1 << 30) if directory else None
        self.runners = [FileRunner(snapshots, tiers[index] if tiers else None) for index in range(len(operators))]
        self.jobs: list[tuple[int, FileJob]] = []
        self.reports: list[SnapshotReport] = []

        def limits(assemble: Assemble) -> HeadLimits:
            scheduler = SchedulerLimits(
                num_stages=assemble.num_stages,
                num_blocks=num_blocks,
                block_size=BLOCK_SIZE,
                max_sequences=max_sequences,
                chunk_tokens=chunk_tokens,
                chunk_target_s=60.0,
            )
            return HeadLimits(
                scheduler=scheduler,
                context_length=context_length,
                vocab_size=vocab_size,
                end_token_ids=(),
                step_deadline_s=1e9,
            )

        self.cores = []
        for index in range(len(operators)):
            parts = StageParts(
                store=self.stores[index],
                hidden_size=hidden_size,
                is_row_exact=operators[index].is_row_exact,
                head_limits=limits,
                draw_nonce=lambda: b"nonce",
                file_lookup=self.disks[index].file_lookup if self.disks else no_files,
            )
            core = StageCore(stage_info(vocab_size), parts)
            following = None if index == len(operators) - 1 else "tcp://next"
            cached = num_blocks if cache_blocks is None else cache_blocks
            message = Assemble(
                EPOCH, index, len(operators), "tcp://feed", following, num_blocks, cached, f"w{weights} stage {index}"
            )
            core.handle_control(message, 0.0)
            self.cores.append(core)

    def ask_snapshots(self, order: SnapshotOrder, client_id: str = "client") -> SnapshotReport:
        """The head's answer, once its files are written."""
        ticket = next(self._tickets)
        self.perform_control(0, AskHeadSnapshots(ticket, client_id, order))
        self.run()
        return next(report for report in self.reports if report.ticket == ticket)

    def perform_control(self, index: int, message: Message) -> None:
        """A message of the broker to one stage."""
        self._perform(index, self.cores[index].handle_control(message, 0.0))

    def start(self, *requests: StartRequest) -> None:
        for one in requests:
            self.outputs[one.request_id] = Output()
            self._feed(one)

    def cancel(self, request_id: str) -> None:
        self._feed(CancelRequest(request_id))

    def _feed(self, message: Message) -> None:
        envelope = Envelope(EPOCH, BROKER, 1, next(self._sequence))
        self._perform(0, self.cores[0].handle_ring(envelope, self._copied(message), 0.0))

    def run(self, max_rounds: int = 10_000) -> dict[str, Output]:
        """Until nothing is left to do; returns all outputs so far."""
        for _ in range(max_rounds):
            num_busy = sum(self.turn(index) for index in range(len(self.cores))) + self.do_job()
            if not num_busy:
                return self.outputs
        raise AssertionError("the ring does not come to rest")

    def tick(self, now: float) -> None:
        for index, core in enumerate(self.cores):
            self._perform(index, core.tick(now))

    def do_job(self) -> bool:
        """The oldest thing that a stage's file thread has to do, if there is one."""
        if not self.jobs:
            return False
        index, job = self.jobs.pop(0)
        blocks = job.blocks if isinstance(job, WritePart) else ()
        done = self.runners[index].run(job, [self.operators[index].read_block(block) for block in blocks])
        self._perform(index, self.cores[index].handle_file(done, 0.0))
        return True

    def turn(self, index: int) -> bool:
        """One step of one stage, if it has one."""
        stage_epoch = self.cores[index].stage_epoch
        assert stage_epoch is not None
        assert stage_epoch.is_sound, stage_epoch.tick(1e9)
        taken = stage_epoch.take(0.0)
        if taken is None:
            return False
        self._perform(index, stage_epoch.begin(taken.step, 0.0))
        plan = stage_epoch.executor.plan(taken.step)
        output = plan.compute(self.operators[index])
        for disk in self.disks[index : index + 1]:
            disk.pump()
        draws = stage_epoch.draw(plan, output)
        timing = StageTiming(0, 1, 0.0, 0.0, 0.0)
        self._perform(index, stage_epoch.finish(taken, plan, output, draws, timing, 0.0))
        self.cores[index].measures.computed(taken, plan, timing, stage_epoch.is_tail)
        return True

    def _perform(self, index: int, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case SendNext(envelope, message):
                    received = self._copied(message)
                    self.hops.append((index, received))
                    self._perform(index + 1, self.cores[index + 1].handle_ring(envelope, received, 0.0))
                case SendHead(envelope, message):
                    received = self._copied(message)
                    self.fed.append((index, received))
                    self._perform(0, self.cores[0].handle_ring(envelope, received, 0.0))
                case SendControl(RelayToClient() as relay):
                    self._to_client(decode_frame(relay.frame.data))
                case SendControl(GenerateAck() as ack):
                    self.acks.append(ack)
                case SendControl(SnapshotReport() as report):
                    self.reports.append(report)
                case StartJob(job):
                    self.jobs.append((index, job))
                case _:
                    pass

    def _to_client(self, message: Message) -> None:
        if isinstance(message, TailHello):
            reply = Blob(encode_frame(ReturnHello(message.link, message.tail_nonce, None)))
            last = len(self.cores) - 1
            self._perform(last, self.cores[last].handle_control(RelayToTail("client", EPOCH, reply), 0.0))
        elif isinstance(message, ReturnTokens):
            for item in message.items:
                output = self.outputs[item.request_id]
                fresh = len(output.token_ids) - item.first_sequence
                assert fresh >= 0
                output.token_ids.extend(item.token_ids[fresh:])
                output.logprobs.extend(logprob.chosen for logprob in item.logprobs[fresh:])
                output.ending = output.ending or item.ending

    def _copied(self, message: Message) -> Message:
        frame = encode_frame(message)
        self.hop_bytes += len(frame)
        return decode_frame(frame)


def stage_info(vocab_size: int) -> StageInfo:
    return StageInfo(
        stage_id="s",
        run=1,
        data_endpoint="tcp://127.0.0.1:1",
        model_name="m",
        model_digest="m",
        card_digest="",
        num_layers=1,
        layer_start=0,
        layer_end=1,
        context_length=1,
        vocab_size=vocab_size,
        precision="p",
        kernel="toy",
        is_row_exact=True,
        fingerprint="f",
        device="cpu",
        threads=1,
        num_blocks=1,
        block_size=16,
        max_sequences=1,
        file_bytes=0,
        weight_bytes=0,
        tensors_digest="t",
        cache_blocks=1,
    )
