"""A stage on the native kernels, loaded and proved: the layers of one range as `Operators`. It needs no torch."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from stagewire.model.gguf import GgufFile
from stagewire.model.layout import EMBEDDING, stage_tensors
from stagewire.stage.embedding import EmbeddingTable
from stagewire.stage.memory import return_freed_memory
from stagewire.stage.native_decoder import KvPool, NativeDecoder
from stagewire.stage.native_selftest import NativeSelfTest, run_native_selftest
from stagewire.stage.native_weights import NativeWeightLoader
from stagewire.stage.operators import BLOCK_SIZE, Batch
from stagewire.stage.rotary import rotary_table
from stagewire.stage.settings import StageSettings
from stagewire.wire.card import ModelConfig


class NativeOperators:
    """`Operators` on the native kernels; see there. It keeps the file open where it looks embeddings up."""

    def __init__(
        self,
        gguf: GgufFile,
        embedding: EmbeddingTable | None,
        decoder: NativeDecoder,
        selftest: NativeSelfTest,
        file_bytes: int,
        weight_bytes: int,
    ) -> None:
        self._gguf, self._embedding, self._decoder, self._selftest = gguf, embedding, decoder, selftest
        self._file_bytes, self._weight_bytes = file_bytes, weight_bytes

    @property
    def fingerprint(self) -> str:
        return self._selftest.fingerprint

    @property
    def is_row_exact(self) -> bool:
        return self._selftest.is_row_exact

    @property
    def num_blocks(self) -> int:
        return len(self._decoder.pool.blocks)

    @property
    def block_bytes(self) -> int:
        return self._decoder.pool.block_bytes

    def copy_block(self, source: int, target: int) -> None:
        self._decoder.pool.blocks[target] = self._decoder.pool.blocks[source]

    def read_block(self, block: int) -> bytes:
        content: bytes = self._decoder.pool.blocks[block].tobytes()
        return content

    def write_block(self, block: int, content: bytes) -> None:
        pool = self._decoder.pool.blocks
        pool[block] = np.frombuffer(content, pool.dtype).reshape(pool[block].shape)

    @property
    def file_bytes(self) -> int:
        return self._file_bytes

    @property
    def weight_bytes(self) -> int:
        return self._weight_bytes

    def forward(self, batch: Batch, hidden_states: NDArray[np.float32] | None) -> NDArray[np.float32]:
        return self._decoder.forward(batch, self._input(batch, hidden_states))

    def _input(self, batch: Batch, hidden_states: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """Rows that the kernel may change: looked up, or copied from what came."""
        if hidden_states is not None:
            return np.array(hidden_states, np.float32, order="C")
        assert self._embedding is not None, "only a first stage starts from token ids"
        return self._embedding.rows(batch.token_ids)


def load_native_operators(
    kernel: ModuleType, path: Path, config: ModelConfig, settings: StageSettings, layer_end: int, precision: str
) -> NativeOperators:
    """Load `[settings.layer_start, layer_end)`, each tensor once, and run the self-test.

    `precision` is one of `stored`, `int8` and `int4`.

    Raises:
        ModelError: a tensor is missing, or of a type that cannot be read.
    """
    kv_dtype = "f32" if settings.kv_precision == "f32" else "f16"
    selftest = run_native_selftest(kernel, config, precision, kv_dtype)
    gguf = GgufFile.open(path)
    names = stage_tensors(gguf, config, settings.layer_start, layer_end)
    loader = NativeWeightLoader(gguf, config, precision)
    layers = [loader.layer(index) for index in range(settings.layer_start, layer_end)]
    output = loader.output() if layer_end == config.num_layers else None
    embedding = EmbeddingTable(gguf, EMBEDDING) if settings.layer_start == 0 else None
    num_blocks = -(-settings.kv_tokens // BLOCK_SIZE)
    pool = KvPool.make(config, len(layers), num_blocks, kv_dtype)
    rotary = rotary_table(config)[: num_blocks * BLOCK_SIZE]  # no sequence is longer than the pool
    decoder = NativeDecoder(kernel, config, layers, output, rotary, pool, settings.threads)
    del rotary
    gguf.release_all()
    if embedding is None:
        gguf.close()
    return_freed_memory()
    file_bytes = sum(gguf.tensor(name).num_bytes for name in names)
    weight_bytes = sum(layer.num_bytes for layer in layers) + (output.num_bytes if output else 0)
    return NativeOperators(gguf, embedding, decoder, selftest, file_bytes, weight_bytes)
