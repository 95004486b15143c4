"""All that the broker knows, in one place, and the instructions of the event that is being handled."""

from __future__ import annotations

from dataclasses import dataclass, field

from stagewire.broker.admission import KnownModels
from stagewire.broker.chain import missing_layers
from stagewire.broker.events import Instruction, Peer, Send
from stagewire.broker.finished import FinishedRequests
from stagewire.broker.measures import BrokerMeasures
from stagewire.broker.peers import Clients, Pool, StageRecord
from stagewire.broker.pipeline import Pipeline, PipelineState, Sessions
from stagewire.broker.requests import RequestState, RequestTable, WaitingRequests
from stagewire.broker.settings import BrokerSettings
from stagewire.broker.snapshot_expiry import SnapshotExpiry
from stagewire.wire.codec import Message
from stagewire.wire.epoch import Epoch
from stagewire.wire.note import Note

_CONNECTIONS_OF_STAGE = 4
"""Messages, heartbeats, and the socket and connection of a head's feed."""


@dataclass(slots=True)
class BrokerState:
    """Shared by the parts of the core.

    `collecting` holds through the grace period of a start; `num_undelivered` counts messages whose receiver
    was not connected or whose epoch was over. `max_connections` is what the process can hold, None for any number.
    """

    settings: BrokerSettings
    incarnation: int
    started_at: float
    sessions: Sessions
    finished: FinishedRequests
    clients: Clients
    snapshot_expiry: SnapshotExpiry
    pool: Pool = field(default_factory=Pool)
    pipelines: dict[Epoch, Pipeline] = field(default_factory=dict)
    requests: RequestTable = field(default_factory=RequestTable)
    waiting: WaitingRequests = field(default_factory=WaitingRequests)
    models: KnownModels = field(default_factory=KnownModels)
    measures: BrokerMeasures = field(default_factory=BrokerMeasures)
    out: list[Instruction] = field(default_factory=list)
    collecting: bool = True
    stopping: bool = False
    num_epochs: int = 0
    num_bad_messages: int = 0
    num_undelivered: int = 0
    max_connections: int | None = None

    @classmethod
    def begin(
        cls, settings: BrokerSettings, incarnation: int, now: float, max_connections: int | None = None
    ) -> BrokerState:
        sessions, finished = Sessions(settings.max_sessions), FinishedRequests(settings.max_finished)
        clients = Clients()
        expiry = SnapshotExpiry(settings.snapshot_expiry_s, clients)
        return cls(settings, incarnation, now, sessions, finished, clients, expiry, max_connections=max_connections)

    @property
    def is_full(self) -> bool:
        """No further client can be connected beside those that are, and the stages."""
        num_taken = len(self.clients) + _CONNECTIONS_OF_STAGE * len(self.pool)
        return self.max_connections is not None and num_taken >= self.max_connections

    # --- epochs ---

    def next_epoch(self) -> Epoch:
        self.num_epochs += 1
        return Epoch(self.incarnation, self.num_epochs)

    def rise_above(self, epoch: Epoch) -> None:
        """After another broker's epoch was reported, every epoch of ours must be greater."""
        if epoch > Epoch(self.incarnation, self.num_epochs):
            self.incarnation = epoch.incarnation + 1
            self.note("incarnation_raised", incarnation=f"{self.incarnation:x}")

    def serving(self) -> list[Pipeline]:
        return [pipeline for pipeline in self.pipelines.values() if pipeline.is_serving]

    def waiting_for(self, model: str | None = None) -> str:
        """Why no pipeline stands (for `model`), in words; empty when one does."""
        if any(model in (None, pipeline.head.model_name) for pipeline in self.serving()):
            return ""
        if self.collecting:
            return "the broker has just started and waits for the stages that it finds"
        infos = [stage.info for stage in self.pool if model in (None, stage.info.model_name)]
        return missing_layers(infos) or "all layers are held; a pipeline is being assembled"

    # --- instructions ---

    def answer(self, peer: Peer, message: Message) -> None:
        """To whoever has just spoken, known or not."""
        self.out.append(Send(peer, message))

    def to_client(self, client_id: str, message: Message) -> None:
        client = self.clients.get(client_id)
        if client and client.peer:
            self.out.append(Send(client.peer, message))
        else:
            self.undelivered(message, f"client={client_id}")

    def to_stage(self, stage: StageRecord, message: Message) -> None:
        if stage.peer:
            self.out.append(Send(stage.peer, message))
        else:
            self.undelivered(message, f"stage={stage.info.stage_id}")

    def undelivered(self, message: Message, receiver: str) -> None:
        """Nobody is there to take it: whoever needs it asks again."""
        self.num_undelivered += 1
        self.out.append(Note("undelivered", f"{receiver} message={type(message).__name__}", is_detail=True))

    def note(self, event: str, **fields: object) -> None:
        self.out.append(Note(event, " ".join(f"{name}={_on_one_line(value)}" for name, value in fields.items())))

    # --- invariants ---

    def check_invariants(self) -> None:
        """Raises AssertionError when the parts contradict each other: our own bug."""
        self.pool.check_invariants()
        self.requests.check_invariants()
        self.waiting.check_invariants()
        self.clients.check_invariants()
        self.sessions.check_invariants()
        self.finished.check_invariants()
        self._check_requests()
        self._check_stages()

    def _check_requests(self) -> None:
        queued = {request.request_id for request in self.requests if request.state is RequestState.QUEUED}
        assert set(self.waiting.in_turn()) == queued
        assert len(queued) <= self.settings.max_queued
        assert self.requests.payload_bytes <= self.settings.max_queued_bytes
        given = [request_id for pipeline in self.pipelines.values() for request_id in pipeline.requests]
        assert len(given) == len(set(given)), "a request is on two pipelines"
        assert set(given) | queued == {request.request_id for request in self.requests}
        for epoch, pipeline in self.pipelines.items():
            pipeline.check_invariants()
            assert pipeline.epoch == epoch
            assert all(self.requests[request_id].epoch == epoch for request_id in pipeline.requests)

    def _check_stages(self) -> None:
        assert len(self.pool) <= self.settings.max_stages
        assert len(self.clients) <= self.settings.max_clients + len(self.requests)
        for stage in self.pool:
            if stage.epoch is not None:
                assert stage.info.stage_id in self.pipelines[stage.epoch].stage_ids
        for pipeline in self.pipelines.values():
            members = [self.pool.member(stage_id, pipeline.epoch) for stage_id in pipeline.stage_ids]
            if pipeline.state is not PipelineState.DISSOLVING:
                assert all(members), "a pipeline stands without one of its stages"
            present = {stage.info.stage_id for stage in members if stage}
            assert pipeline.waiting <= present


def _on_one_line(value: object) -> str:
    """A peer's text must not be able to forge another line of the log."""
    text = str(value)
    return text if text.isprintable() else repr(text)
