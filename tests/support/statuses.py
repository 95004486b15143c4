"""Status reports as a broker would send them."""

from __future__ import annotations

from stagewire.wire.control import StageInfo
from stagewire.wire.status import PipelineStatus, StageStatus, Status


def stage(stage_id: str, layer_start: int, layer_end: int, pipeline: str | None) -> StageStatus:
    info = StageInfo(
        stage_id=stage_id, run=1, data_endpoint="tcp://127.0.0.1:1", model_name="smol", model_digest="d",
        card_digest="", num_layers=30, layer_start=layer_start, layer_end=layer_end, context_length=2048,
        vocab_size=100, precision="bf16", kernel="torch", is_row_exact=True, fingerprint="f",
        device="cpu", threads=2, num_blocks=64,
        block_size=16, max_sequences=8, file_bytes=1, weight_bytes=51_000_000,
        tensors_digest="t", cache_blocks=64,
    )  # fmt: skip
    return StageStatus(info, pipeline, silent_s=0.2, step_age_s=None)


def report(*stages: StageStatus, pipelines: tuple[PipelineStatus, ...], waiting_for: str) -> Status:
    return Status(
        incarnation=1, uptime_s=12.0, models=(), stages=stages, pipelines=pipelines, num_clients=1,
        num_requests_waiting=3, num_requests_running=2, num_bad_messages=0, waiting_for=waiting_for,
        snapshot_expiry_s=300.0,
    )  # fmt: skip
