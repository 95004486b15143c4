"""A stage on the native kernels, loaded and proved: the layers of one range as `Operators`. It needs no torch."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from stagewire.model.gguf import GgufFile
from stagewire.model.layout import EMBEDDING, stage_bytes
from stagewire.stage.compute.embedding import EmbeddingTable
from stagewire.stage.compute.memory import return_freed_memory
from stagewire.stage.compute.operators import BLOCK_SIZE
from stagewire.stage.compute.rotary import rotary_table
from stagewire.stage.native.decoder import KvPool, NativeDecoder
from stagewire.stage.native.selftest import run_native_selftest
from stagewire.stage.native.weights import NativeWeightLoader
from stagewire.stage.settings import StageSettings
from stagewire.wire.card import ModelConfig


def load_native_operators(
    kernel: ModuleType, path: Path, config: ModelConfig, settings: StageSettings, layer_end: int, precision: str
) -> NativeDecoder:
    """Load `[settings.layer_start, layer_end)`, each tensor once, and run the self-test.

    `precision` is one of `stored`, `int8` and `int4`.

    Raises:
        ModelError: a tensor is missing, or of a type that cannot be read.
    """
    kv_dtype = "f32" if settings.kv_precision == "f32" else "f16"
    selftest = run_native_selftest(kernel, config, precision, kv_dtype)
    with GgufFile.open(path) as gguf:  # the embedding keeps its part mapped
        loader = NativeWeightLoader(gguf, config, precision)
        layers = [loader.layer(index) for index in range(settings.layer_start, layer_end)]
        output = loader.output() if layer_end == config.num_layers else None
        embedding = EmbeddingTable(gguf, EMBEDDING) if settings.layer_start == 0 else None
        file_bytes = stage_bytes(gguf, config, settings.layer_start, layer_end)
        gguf.release_all()
    num_blocks = -(-settings.kv_tokens // BLOCK_SIZE)
    rotary = rotary_table(config)[: num_blocks * BLOCK_SIZE]  # no sequence is longer than the pool
    pool = KvPool.make(config, len(layers), num_blocks, kv_dtype)
    decoder = NativeDecoder(kernel, config, layers, output, rotary, pool, settings.threads, embedding)
    del rotary
    return_freed_memory()
    decoder.fingerprint, decoder.is_row_exact = selftest.fingerprint, selftest.is_row_exact
    decoder.file_bytes = file_bytes
    decoder.weight_bytes = sum(layer.num_bytes for layer in layers) + (output.num_bytes if output else 0)
    return decoder
