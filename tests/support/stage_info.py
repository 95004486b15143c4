"""What a stage of toy layers says of itself."""

from __future__ import annotations

from support.toy_operators import VOCAB_SIZE

from stagewire.wire.control import (
    StageInfo,
)

INFO = StageInfo(
    stage_id="s0",
    run=1,
    data_endpoint="tcp://127.0.0.1:1",
    model_name="toy",
    model_digest="toy",
    card_digest="",
    num_layers=2,
    layer_start=0,
    layer_end=2,
    context_length=100,
    vocab_size=VOCAB_SIZE,
    precision="toy",
    kernel="toy",
    is_row_exact=True,
    fingerprint="toy",
    device="cpu",
    threads=1,
    num_blocks=16,
    block_size=16,
    max_sequences=4,
    file_bytes=0,
    weight_bytes=0,
    tensors_digest="t",
    cache_blocks=16,
)
