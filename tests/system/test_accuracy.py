"""What the native kernels' rounding costs: the default model's logits against float32, over a fixed text."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.native_operators import kernel_or_skip
from support.whole_model import whole_model

from bench.accuracy import TEXT_PATH, compare
from stagewire.client.text.tokenizer import Tokenizer
from stagewire.model.card import build_card
from stagewire.model.gguf import GgufFile
from stagewire.model.layout import EMBEDDING
from stagewire.stage.compute.embedding import EmbeddingTable
from stagewire.stage.compute.operators import BLOCK_SIZE, Batch, SequenceRows
from stagewire.stage.compute.rotary import rotary_table
from stagewire.stage.native.decoder import KvPool, NativeDecoder
from stagewire.stage.native.kernel import best_kernel
from stagewire.stage.native.weights import NativeLayer, NativeOutput, NativeWeightLoader

NUM_TOKENS = 400


@pytest.fixture(scope="module")
def batch(gguf_file: GgufFile) -> Batch:
    token_ids = Tokenizer(build_card(gguf_file, "m")).encode(TEXT_PATH.read_text(encoding="utf-8"))[:NUM_TOKENS]
    table = np.arange(NUM_TOKENS // BLOCK_SIZE, dtype=np.int32)
    return Batch.of(token_ids, [SequenceRows(0, NUM_TOKENS, 0, table)], range(NUM_TOKENS))


@pytest.fixture(scope="module")
def reference(batch: Batch) -> NDArray[np.float32]:
    model = whole_model("f32")
    return model.stage(0, model.config.num_layers).forward(batch, None)


@pytest.fixture(scope="module")
def weights(gguf_file: GgufFile) -> tuple[list[NativeLayer], NativeOutput]:
    loader = NativeWeightLoader(gguf_file, whole_model("f32").config, "stored")
    return [loader.layer(index) for index in range(whole_model("f32").config.num_layers)], loader.output()


@pytest.mark.parametrize("kv_precision", ["f16", "f32"])
def test_stored_weights_lose_almost_nothing_against_float32(
    gguf_file: GgufFile,
    batch: Batch,
    reference: NDArray[np.float32],
    weights: tuple[list[NativeLayer], NativeOutput],
    kv_precision: str,
) -> None:
    """The mean divergence stays below 0.0035 nats, and 96 of 100 likeliest tokens are the same."""
    kernel_or_skip("portable")
    chosen, config = best_kernel(), whole_model("f32").config
    assert chosen is not None
    pool = KvPool.make(config, config.num_layers, NUM_TOKENS // BLOCK_SIZE, kv_precision)
    embedding = EmbeddingTable(gguf_file, EMBEDDING)
    decoder = NativeDecoder(chosen[1], config, *weights, rotary_table(config), pool, 1, embedding)
    found = compare(reference, decoder.forward(batch, None))
    assert found.kl < 0.0035
    assert found.top1 >= 0.96
