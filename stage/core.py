"""A stage as one state machine: messages, lost links and time in; instructions out.

It registers, is assembled and dissolved; what belongs to a pipeline epoch goes to its `StageEpoch`. No sockets,
clocks or threads: the loop owns those and performs what is returned here, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stagewire.stage.executor import StepExecutor
from stagewire.stage.files.jobs import JobDone
from stagewire.stage.files.stage_files import StageFiles
from stagewire.stage.head.core import HeadCore, Sources
from stagewire.stage.head.file_waits import FileLookup, no_files
from stagewire.stage.head.limits import HeadLimits
from stagewire.stage.instructions import ConnectRing, Exit, Instruction, SendControl
from stagewire.stage.kv.store import KvStore
from stagewire.stage.registering import Registering
from stagewire.stage.stage_epoch import StageEpoch
from stagewire.stage.tail.core import TailCore
from stagewire.stage.tail.return_link import CloseLink
from stagewire.stage.timing.head_times import NO_TIME, ReadTime
from stagewire.stage.timing.step_times import StageMeasures
from stagewire.wire.cache_reports import AskCache, CacheReport, DiskCounts, StageCache
from stagewire.wire.codec import Envelope, Message, decode_frame
from stagewire.wire.control import (
    Assemble,
    Assembled,
    Dissolve,
    Dissolved,
    Register,
    Registered,
    RegisterRefused,
    RequestEndedAck,
    StageBye,
    StageInfo,
)
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode, ProtocolError
from stagewire.wire.frontend import BadMessage, Card, GetCard, RelayToTail, WhoAreYou
from stagewire.wire.snapshots import AskHeadSnapshots, report_of_none
from stagewire.wire.tensor import Blob


def _exit(message: RegisterRefused | BadMessage) -> Exit:
    is_unread = isinstance(message, BadMessage)
    detail = f"the broker could not read this stage's message: {message.detail}" if is_unread else message.detail
    return Exit(message.code, detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageParts:
    """What the core needs of its process: its KV store, the sizes of its epochs, and 16 random bytes.

    `card` is what a head gives to the broker; others have none.
    """

    store: KvStore
    hidden_size: int
    is_row_exact: bool
    head_limits: Callable[[Assemble], HeadLimits]
    draw_nonce: Callable[[], bytes]
    disk_counts: Callable[[], DiskCounts | None] = lambda: None
    file_lookup: FileLookup = no_files
    measures: StageMeasures = field(default_factory=StageMeasures)
    card: bytes = b""
    control_endpoint: str = ""


class StageCore:
    """One stage from its registration on; `stage_epoch` is its part in the pipeline that it serves, if any."""

    def __init__(self, info: StageInfo, parts: StageParts) -> None:
        self._info, self._parts = info, parts
        self._incarnation: int | None = None
        self._fence = Epoch(0, 0)
        self.stage_epoch: StageEpoch | None = None
        self._registering = Registering(parts.control_endpoint)
        self.num_dropped = 0

    @property
    def store(self) -> KvStore:
        return self._parts.store

    @property
    def measures(self) -> StageMeasures:
        return self._parts.measures

    @property
    def is_registered(self) -> bool:
        return self._incarnation is not None

    def register(self) -> Register:
        """What this stage holds and serves."""
        is_serving = self.stage_epoch is not None and self.stage_epoch.is_sound
        return Register(self._info, self.stage_epoch.report() if self.stage_epoch and is_serving else None)

    def bye(self) -> StageBye:
        """What to say when leaving in order."""
        return StageBye(self._info.stage_id, self._info.run)

    # --- control ---

    def handle_control(self, message: Message, now: float) -> list[Instruction]:
        """A message of the broker."""
        if isinstance(message, WhoAreYou):
            return [SendControl(self.register())]
        if isinstance(message, Registered):
            return self._welcome(message, now)
        if isinstance(message, Assemble):
            return self._assemble(message)
        if isinstance(message, Dissolve):
            return self._dissolve(message.epoch)
        if isinstance(message, RelayToTail):
            return self._relayed(message, now)
        if isinstance(message, RequestEndedAck):
            return self.stage_epoch.tell_head(message, now) if self.stage_epoch else []
        if isinstance(message, GetCard):
            return [SendControl(Card(message.digest, Blob(self._parts.card)))]
        if isinstance(message, AskCache):
            return [SendControl(CacheReport(message.ticket, self._cache(message.clear)))]
        if isinstance(message, AskHeadSnapshots):
            if self.stage_epoch:
                return self.stage_epoch.ask_snapshots(message, now)
            return [SendControl(report_of_none(message))]
        if isinstance(message, RegisterRefused | BadMessage):
            return [_exit(message)]
        self.num_dropped += 1
        return []

    def _welcome(self, message: Registered, now: float) -> list[Instruction]:
        is_new_broker = message.incarnation != self._incarnation
        self._incarnation = message.incarnation
        if self.stage_epoch and message.keep != self.stage_epoch.epoch:
            return self._close()
        return self.stage_epoch.reset_relays(now) if self.stage_epoch and is_new_broker else []

    def _assemble(self, message: Assemble) -> list[Instruction]:
        if self.stage_epoch and self.stage_epoch.epoch == message.epoch:
            return [SendControl(Assembled(message.epoch))]
        if message.epoch <= self._fence or (self.stage_epoch and message.epoch < self.stage_epoch.epoch):
            return [SendControl(Dissolved(message.epoch))]
        closing = self._close()
        is_first, is_last = message.stage_index == 0, message.stage_index == message.num_stages - 1
        executor = self._make_executor(message)
        head = self._make_head(message, executor) if is_first else None
        tail = TailCore(message.epoch, self._info.vocab_size, self._parts.draw_nonce) if is_last else None
        self.stage_epoch = StageEpoch(message, executor, head, tail)
        connect = ConnectRing(None if is_first else message.feed_endpoint, message.next_endpoint)
        return [*closing, connect, SendControl(Assembled(message.epoch))]

    def _make_head(self, message: Assemble, executor: StepExecutor) -> HeadCore:
        sources = Sources(self._info.model_name, executor.lookup, self._parts.file_lookup)
        return HeadCore(message.epoch, self._parts.head_limits(message), sources, self.measures.head)

    def _make_executor(self, message: Assemble) -> StepExecutor:
        parts = self._parts
        parts.store.begin_epoch(message.numerics, message.num_blocks, message.cache_blocks, parts.is_row_exact)
        files = StageFiles(message.epoch, message.stage_index, message.num_stages, parts.store)
        return StepExecutor(parts.store, parts.hidden_size, message.stage_index, files)

    def _dissolve(self, epoch: Epoch) -> list[Instruction]:
        self._fence = max(self._fence, epoch)
        closing = self._close() if self.stage_epoch and self.stage_epoch.epoch == epoch else []
        return [*closing, SendControl(Dissolved(epoch))]

    def _close(self) -> list[Instruction]:
        stage_epoch, self.stage_epoch = self.stage_epoch, None
        if stage_epoch is None:
            return []
        self._fence = max(self._fence, stage_epoch.epoch)
        return stage_epoch.close()

    def _cache(self, is_clear: bool) -> StageCache:
        store, info = self._parts.store, self._info
        num_cleared = store.clear() if is_clear else 0
        return StageCache(
            stage_id=info.stage_id,
            num_blocks=info.num_blocks,
            num_used_blocks=store.num_used,
            num_cached_blocks=store.num_cached,
            max_cached_blocks=info.cache_blocks,
            block_size=info.block_size,
            block_bytes=store.block_bytes,
            num_cleared=num_cleared,
            statistics=store.statistics,
            disk=self._parts.disk_counts(),
        )

    def _relayed(self, relay: RelayToTail, now: float) -> list[Instruction]:
        if self.stage_epoch is None or self.stage_epoch.epoch != relay.epoch:
            self.num_dropped += 1
            return []
        try:
            message = decode_frame(relay.frame.data)
        except ProtocolError:
            self.num_dropped += 1
            return []
        return self.stage_epoch.handle_link(relay.client_id, None, message, now)

    # --- what belongs to the epoch ---

    def handle_ring(
        self, envelope: Envelope, message: Message, now: float, read_time: ReadTime = NO_TIME
    ) -> list[Instruction]:
        """A message on this stage's PULL socket; without an assembly it is of a dead epoch."""
        if self.stage_epoch is None:
            self.num_dropped += 1
            return []
        return self.stage_epoch.handle_ring(envelope, message, now, read_time)

    def handle_file(self, done: JobDone, now: float) -> list[Instruction]:
        """The file thread is through with a job; that of a dead epoch is of no use."""
        is_ours = self.stage_epoch is not None and self.stage_epoch.epoch == done.job.epoch
        return self.stage_epoch.finish_job(done, now) if self.stage_epoch and is_ours else []

    def handle_link(self, client_id: str, link: int, message: Message, now: float) -> list[Instruction]:
        """A message of a client on a direct link."""
        return self.stage_epoch.handle_link(client_id, link, message, now) if self.stage_epoch else []

    def lose_link(self, client_id: str, link: int, now: float) -> list[Instruction]:
        """A direct link broke, or its dial failed."""
        return self.stage_epoch.lose_link(client_id, link, now) if self.stage_epoch else []

    def break_link(self, client_id: str, link: int, now: float) -> list[Instruction]:
        """A direct link brought nonsense, or takes no more: close it, and go on as if it had broken."""
        links = self.stage_epoch.lose_link(client_id, link, now, is_ours=True) if self.stage_epoch else []
        return links or [CloseLink(client_id, link)]

    def ring_overflowed(self) -> list[Instruction]:
        """The outbox of a ring link is full."""
        return [Exit(ErrorCode.INTERNAL, "the outbox of a ring link is full: credits are not kept")]

    def tick(self, now: float, is_forgotten: bool = False) -> list[Instruction]:
        """Time has passed; call at least every 50 ms. `is_forgotten`: the broker has asked who sends the heartbeats."""
        is_due = self._registering.is_due(self.is_registered, is_forgotten, now)
        registering: list[Instruction] = [SendControl(self.register())] if is_due else []
        return registering + (self.stage_epoch.tick(now) if self.stage_epoch else [])
