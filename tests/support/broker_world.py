"""What the broker's core tests share: descriptions of stages and clients, and a core that checks itself."""

from __future__ import annotations

from dataclasses import replace

from stagewire.broker.core import BrokerCore
from stagewire.broker.events import Asked, Event, Instruction, Link, Peer, Received, Send, Tick
from stagewire.broker.settings import BrokerSettings
from stagewire.wire.codec import Message
from stagewire.wire.control import Assemble, Assembled, AssemblyReport, GenerateAck, Heartbeat, Register, StageInfo
from stagewire.wire.epoch import Epoch
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import ClientHello
from stagewire.wire.note import Note
from stagewire.wire.request import Ending, FinishReason, ReturnOffer, Usage
from stagewire.wire.snapshots import AskHeadSnapshots, SnapshotAction, SnapshotOrder

TICK_S = 0.125
"""A power of two, so that the times of a test are exact."""
STAGE = StageInfo(
    stage_id="s0",
    run=1,
    data_endpoint="tcp://127.0.0.1:9000",
    model_name="tiny",
    model_digest="d1",
    card_digest="",
    num_layers=30,
    layer_start=0,
    layer_end=30,
    context_length=100,
    vocab_size=1000,
    precision="f32",
    kernel="toy",
    is_row_exact=True,
    fingerprint="fp",
    device="cpu",
    threads=1,
    num_blocks=64,
    block_size=16,
    max_sequences=4,
    file_bytes=10,
    weight_bytes=20,
    tensors_digest="t1",
    cache_blocks=48,
)
FIRST = replace(STAGE, layer_end=15)
LAST = replace(STAGE, stage_id="s1", layer_start=15, data_endpoint="tcp://127.0.0.1:9001", num_blocks=32)


def stage_peer(name: str) -> Peer:
    return Peer(Link.CONTROL, name.encode())


def client_peer(name: str) -> Peer:
    return Peer(Link.FRONTEND, name.encode())


WHO_LEFT_WHAT = Send(stage_peer("s0"), AskHeadSnapshots(1, "", SnapshotOrder(SnapshotAction.LIST_ALL)))
"""What a broker asks the head of a pipeline that it has found, first of all."""


def offer(generation: int) -> ReturnOffer:
    return ReturnOffer(f"tcp://127.0.0.1:{5000 + generation}", b"nonce", generation)


def failed(code: str, detail: str, num_prompt_tokens: int = 3) -> Ending:
    """An ending as the broker writes it."""
    return Ending(FinishReason.FAILED, None, Usage(num_prompt_tokens, 0), (), ErrorCode(code), detail)


class CheckedCore:
    """A `BrokerCore` with a clock that the test moves; validates the whole state after every event."""

    def __init__(
        self, settings: BrokerSettings | None = None, incarnation: int = 7, max_connections: int | None = None
    ) -> None:
        self.now = 0.0
        self.core = BrokerCore(settings or BrokerSettings(), incarnation, self.now, max_connections)

    def handle(self, event: Event) -> list[Instruction]:
        """The instructions without the log lines."""
        instructions = self.core.handle(event, self.now)
        self.core.check_invariants()
        return [instruction for instruction in instructions if not isinstance(instruction, Note)]

    def from_stage(self, name: str, message: Message) -> list[Instruction]:
        return self.handle(Received(stage_peer(name), message))

    def from_client(self, name: str, message: Message) -> list[Instruction]:
        return self.handle(Received(client_peer(name), message))

    def pass_time(self, seconds: float, alive: tuple[StageInfo, ...] = ()) -> list[Instruction]:
        """Tick every `TICK_S` while the stages of `alive` send heartbeats; all instructions together."""
        instructions: list[Instruction] = []
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            for info in alive:
                instructions += self.handle(
                    Received(stage_peer(info.stage_id), Heartbeat(info.stage_id, info.run, 0, None))
                )
            instructions += self.handle(Tick())
        return instructions

    # --- what most tests begin with ---

    def settle(self) -> None:
        """Let the grace period of the start pass."""
        self.pass_time(3.0)

    def register(self, *infos: StageInfo, report: AssemblyReport | None = None) -> list[Instruction]:
        """Each registers on a connection named like the stage."""
        instructions: list[Instruction] = []
        for info in infos:
            instructions += self.from_stage(info.stage_id, Register(info, report))
        return instructions

    def serve(self, *infos: StageInfo) -> Epoch:
        """Register these, assemble them, and return the epoch that now serves."""
        self.register(*infos)
        assembling = self.pass_time(TICK_S)
        sent = [instruction.message for instruction in assembling if isinstance(instruction, Send)]
        epochs = {message.epoch for message in sent if isinstance(message, Assemble)}
        (epoch,) = epochs
        for info in infos:
            self.from_stage(info.stage_id, Assembled(epoch))
        return epoch

    def hello(self, name: str, generation: int | None = None, nonce: bytes = b"n") -> list[Instruction]:
        wanted = None if generation is None else offer(generation)
        return self.from_client(name, ClientHello(name, nonce, wanted))

    def ask(self, name: str, request_id: str, **changes: object) -> list[Instruction]:
        """A request of 3 prompt tokens, 5 new ones and seed 42, but for the changes."""
        asked = Asked(client_peer(name), request_id, "session", None, 3, 5, 100, 42, payload=f"tokens of {request_id}")
        return self.handle(replace(asked, **changes))  # type: ignore[arg-type]

    def acknowledge(self, request_id: str, epoch: Epoch) -> list[Instruction]:
        return self.from_stage("s0", GenerateAck(request_id, epoch, None, ""))
