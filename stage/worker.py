"""A stage process from its settings to its loop: load the layers, bind, register, serve until told to stop."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import zmq

from stagewire.model.card import build_card
from stagewire.model.catalogue import CATALOGUE, resolve
from stagewire.model.config import read_config
from stagewire.model.digest import model_digest, stage_digest
from stagewire.model.gguf import GgufFile
from stagewire.model.layout import check_layer_range, stage_tensors
from stagewire.model.name import model_name
from stagewire.sockets import descriptors
from stagewire.sockets.connection import HIGH_WATER_MARK, bind, new_socket
from stagewire.stage.backend import Backend, load_backend
from stagewire.stage.broker_check import check_broker
from stagewire.stage.compute.operators import BLOCK_SIZE, Operators
from stagewire.stage.core import StageCore, StageParts
from stagewire.stage.files.disk_cache import DiskCache
from stagewire.stage.files.disk_tier import DiskTier
from stagewire.stage.files.runner import FileRunner
from stagewire.stage.files.snapshot_directory import SnapshotDirectory
from stagewire.stage.files.worker import FileWorker
from stagewire.stage.head.limits import HeadLimits
from stagewire.stage.heartbeat import HeartbeatThread
from stagewire.stage.kv.store import KvStore
from stagewire.stage.loop import StageLoop
from stagewire.stage.schedule.limits import SchedulerLimits
from stagewire.stage.settings import StageSettings
from stagewire.stage.watch import StageWatch, bind_endpoint
from stagewire.wire.card import ModelCard, ModelConfig, card_digest
from stagewire.wire.control import Assemble, StageInfo

log = logging.getLogger("stagewire.stage")

_MAX_MESSAGE_BYTES = 1 << 30
_MAX_SOCKETS = 65_535
"""Three for each client that is dialled."""
_MIN_DESCRIPTORS = 48
"""Its own thirty, and the reserve."""


@dataclass(frozen=True, slots=True)
class LoadedStage:
    """A stage's part of the model, ready to compute. `card` is empty but for a first stage."""

    config: ModelConfig
    name: str
    digest: str
    tensors_digest: str
    layer_end: int
    backend: Backend
    card: bytes
    end_token_ids: tuple[int, ...]


def run_stage(settings: StageSettings, on_ready: Callable[[], None], stop: threading.Event) -> None:
    """Load, register with the broker, serve until `stop` is set. `on_ready` is called once registered.

    Raises:
        StagewireError: the model cannot be loaded, the range is wrong, the port is taken, or the broker does not
            want this stage, or too few files may be opened. All sockets are closed.
    """
    descriptors.require(_MIN_DESCRIPTORS, "a stage")
    check_broker(settings.control_endpoint)
    loaded = load_stage(settings)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
    run, endpoint = secrets.randbits(63), None
    try:
        data = _bind(context, settings.bind)
        endpoint = bind_endpoint(settings.metrics_port)
        address = endpoint.address if endpoint else ""
        info = _describe(settings, loaded, run, data.get_string(zmq.LAST_ENDPOINT), address)
        parts = _parts(settings, loaded)
        disk = _disk(settings, loaded, parts.store)
        directory = settings.snapshot_directory
        snapshots = SnapshotDirectory(Path(directory), settings.snapshot_bytes) if directory else None
        files = FileWorker(
            FileRunner(snapshots, disk.tier if disk else None),
            loaded.backend.operators.read_block,
        )
        core = StageCore(info, replace(parts, disk_counts=disk.counts, file_lookup=disk.file_lookup) if disk else parts)
        if endpoint:
            StageWatch(info, core, parts.store, disk, settings.disk_bytes).serve(endpoint)
        with HeartbeatThread(context, settings.control_endpoint, settings.stage_id, run) as heartbeat:
            operators = loaded.backend.operators
            loop = StageLoop(context, settings, data, core, operators, heartbeat, files, disk)
            try:
                loop.run(on_ready, stop)
            finally:
                loop.close()
    finally:
        if endpoint:
            endpoint.close()
        context.destroy(linger=200)


def load_stage(settings: StageSettings) -> LoadedStage:
    """Read this stage's tensors, and no others, into memory.

    Raises:
        StagewireError: as `run_stage`.
    """
    path = resolve(settings.model, progress=lambda line: log.info("event=model %s", line))
    with GgufFile.open(path) as gguf:
        config = read_config(gguf)
        layer_end = config.num_layers if settings.layer_end is None else settings.layer_end
        check_layer_range(config, settings.layer_start, layer_end)
        name = model_name(settings.model, gguf)
        # Only its bytes are kept, and the rest is gone before memory is given back.
        card_parts = _card_parts(_card(settings.model, gguf, name) if settings.layer_start == 0 else None)
        digest = model_digest(gguf)
        tensors_digest = stage_digest(gguf, stage_tensors(gguf, config, settings.layer_start, layer_end))
    backend = load_backend(path, config, settings, layer_end)
    operators = backend.operators
    log.info(
        "event=loaded layers=%d:%d precision=%s kernel=%s file_bytes=%d weight_bytes=%d fingerprint=%s row_exact=%s",
        settings.layer_start,
        layer_end,
        backend.precision,
        backend.kernel,
        operators.file_bytes,
        operators.weight_bytes,
        operators.fingerprint,
        operators.is_row_exact,
    )
    if not operators.is_row_exact:
        log.warning("event=not_row_exact detail='tokens may depend on what else is in a batch on this machine'")
    return LoadedStage(config, name, digest, tensors_digest, layer_end, backend, *card_parts)


def _card(model: str, gguf: GgufFile, name: str) -> ModelCard:
    recommended = CATALOGUE[model].sampling if model in CATALOGUE else None
    return build_card(gguf, name, recommended, tell=lambda line: log.warning("event=model_value detail=%r", line))


def _card_parts(card: ModelCard | None) -> tuple[bytes, tuple[int, ...]]:
    return (card.encode(), card.stop_token_ids) if card else (b"", ())


def _bind(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    socket = new_socket(context, zmq.PULL, endpoint)
    socket.set(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
    bind(socket, endpoint, "bind")
    return socket


def _describe(settings: StageSettings, loaded: LoadedStage, run: int, endpoint: str, metrics_address: str) -> StageInfo:
    operators = loaded.backend.operators
    return StageInfo(
        stage_id=settings.stage_id,
        run=run,
        data_endpoint=endpoint,
        model_name=loaded.name,
        model_digest=loaded.digest,
        card_digest=card_digest(loaded.card) if loaded.card else "",
        num_layers=loaded.config.num_layers,
        layer_start=settings.layer_start,
        layer_end=loaded.layer_end,
        context_length=loaded.config.context_length,
        vocab_size=loaded.config.vocab_size,
        precision=loaded.backend.precision,
        fingerprint=operators.fingerprint,
        kernel=loaded.backend.kernel,
        is_row_exact=operators.is_row_exact,
        device=settings.device,
        threads=settings.threads,
        num_blocks=operators.num_blocks,
        block_size=BLOCK_SIZE,
        max_sequences=settings.max_sequences,
        file_bytes=operators.file_bytes,
        weight_bytes=operators.weight_bytes,
        tensors_digest=loaded.tensors_digest,
        cache_blocks=_cache_blocks(settings, operators),
        metrics_address=metrics_address,
    )


def _cache_blocks(settings: StageSettings, operators: Operators) -> int:
    wanted = operators.num_blocks if settings.cache_tokens is None else settings.cache_tokens // BLOCK_SIZE
    return min(wanted, operators.num_blocks)


def _disk(settings: StageSettings, loaded: LoadedStage, store: KvStore) -> DiskCache | None:
    if settings.disk_directory is None:
        return None
    return DiskCache(store, loaded.backend.operators, DiskTier(Path(settings.disk_directory), settings.disk_bytes))


def _parts(settings: StageSettings, loaded: LoadedStage) -> StageParts:
    def head_limits(assemble: Assemble) -> HeadLimits:
        scheduler = SchedulerLimits(
            num_stages=assemble.num_stages,
            num_blocks=assemble.num_blocks,
            block_size=BLOCK_SIZE,
            max_sequences=settings.max_sequences,
            chunk_tokens=settings.chunk_tokens,
            chunk_target_s=settings.chunk_target_s,
            are_blocks_shared=assemble.cache_blocks > 0 and operators.is_row_exact,
        )
        return HeadLimits(
            scheduler=scheduler,
            context_length=loaded.config.context_length,
            vocab_size=loaded.config.vocab_size,
            end_token_ids=loaded.end_token_ids,
            step_deadline_s=settings.step_deadline_s,
        )

    operators = loaded.backend.operators
    return StageParts(
        store=KvStore(operators.num_blocks, BLOCK_SIZE, operators.block_bytes),
        hidden_size=loaded.config.hidden_size,
        is_row_exact=operators.is_row_exact,
        head_limits=head_limits,
        draw_nonce=lambda: secrets.token_bytes(16),
        card=loaded.card,
        control_endpoint=settings.control_endpoint,
        dial_timeout_s=settings.dial_timeout_s,
    )
