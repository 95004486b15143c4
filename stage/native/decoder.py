"""The layers of one stage on the native kernels: their description, their KV pool, and the one call per step."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from stagewire.stage.compute.embedding import EmbeddingTable, input_rows
from stagewire.stage.compute.operators import BLOCK_SIZE, Batch
from stagewire.stage.native.arena import large_zeros
from stagewire.stage.native.matrix import NativeMatrix
from stagewire.stage.native.weights import NativeLayer, NativeOutput
from stagewire.wire.card import ModelConfig

KV_DTYPES: dict[str, type[np.generic]] = {"f16": np.float16, "f32": np.float32}
_NO_MATRIX = [0] * 10


@dataclass(frozen=True, slots=True)
class KvPool:
    """Keys and values: [blocks, layers, kv heads, 2, 16 * head_dim]; keys transposed, see stage/native/src/attention.h.

    All zero at first, which costs memory only for the blocks that are used.
    """

    blocks: NDArray[np.generic]

    @classmethod
    def make(cls, config: ModelConfig, num_layers: int, num_blocks: int, dtype: str) -> KvPool:
        shape = (num_blocks, num_layers, config.num_kv_heads, 2, BLOCK_SIZE * config.head_dim)
        return cls(large_zeros(shape, KV_DTYPES[dtype]))

    @property
    def block_bytes(self) -> int:
        return self.blocks.nbytes // len(self.blocks)

    def copy(self, source: int, target: int) -> None:
        self.blocks[target] = self.blocks[source]

    def read(self, block: int) -> bytes:
        content: bytes = self.blocks[block].tobytes()
        return content

    def write(self, block: int, content: bytes) -> None:
        self.blocks[block] = np.frombuffer(content, self.blocks.dtype).reshape(self.blocks.shape[1:])

    @property
    def is_float32(self) -> bool:
        return self.blocks.dtype == np.float32


class NativeDecoder:
    """Checks what it is given, then calls the kernel: a wrong address or row there would read memory at random."""

    def __init__(
        self,
        kernel: ModuleType,
        config: ModelConfig,
        layers: Sequence[NativeLayer],
        output: NativeOutput | None,
        rotary: NDArray[np.float32],
        pool: KvPool,
        threads: int,
        embedding: EmbeddingTable | None = None,
    ) -> None:
        self._kernel, self._config, self._embedding = kernel, config, embedding
        self._has_output = output is not None
        self._cosine, self._sine = (np.ascontiguousarray(rotary[:, :, part]) for part in (0, 1))
        self.pool = pool
        self.copy_block, self.read_block, self.write_block = pool.copy, pool.read, pool.write
        self._kept = (tuple(layers), output)  # the kernel knows addresses only
        words = self._describe(layers, output)  # alive while its address is read
        self._handle = kernel.create(words.ctypes.data, threads)

    def _describe(self, layers: Sequence[NativeLayer], output: NativeOutput | None) -> NDArray[np.int64]:
        """The words that `read_model` in stage/native/src/module.h reads, in its order."""
        config = self._config
        words = [
            config.hidden_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.intermediate_size,
            len(self._cosine),
            len(layers),
            struct.unpack("q", struct.pack("d", config.rms_norm_eps))[0],
            int(self.pool.is_float32),
            self.pool.blocks.ctypes.data,
            self._cosine.ctypes.data,
            self._sine.ctypes.data,
        ]
        for layer in layers:
            words += [layer.attention_norm.ctypes.data, layer.ffn_norm.ctypes.data]
            words += [word for matrix in layer.matrices for word in matrix.words]
        words += [output.norm.ctypes.data, *output.projection.words] if output else [0, *_NO_MATRIX]
        return np.array(words, np.int64)

    @property
    def num_blocks(self) -> int:
        return len(self.pool.blocks)

    @property
    def block_bytes(self) -> int:
        return self.pool.block_bytes

    def forward(self, batch: Batch, hidden_states: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """See `Operators.forward`.

        Raises:
            ValueError: rows, blocks or positions that do not fit; nothing was computed.
        """
        hidden = input_rows(self._embedding, batch, hidden_states)  # the kernel changes them in place
        if hidden.shape != (batch.num_rows, self._config.hidden_size):
            raise ValueError(f"hidden states {hidden.shape} for {batch.num_rows} rows")
        slices, tables = self._rows_and_tables(batch)
        num_logits = len(batch.logit_rows) if self._has_output else 0
        logits = np.empty((num_logits, self._config.vocab_size), np.float32)
        self._kernel.forward(
            self._handle,
            batch.num_rows,
            hidden.ctypes.data,
            len(slices),
            slices.ctypes.data,
            tables.ctypes.data,
            num_logits,
            batch.logit_rows.ctypes.data,
            logits.ctypes.data,
        )
        return logits if self._has_output else hidden

    def _rows_and_tables(self, batch: Batch) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Row start, rows, position and table start of each slice, int32 [S, 4]; and all block tables in one row."""
        starts, words, tables = 0, [], []
        for part in batch.slices:
            end = part.pos_start + part.num_rows
            if end > len(self._cosine):
                raise ValueError(f"position {end} is beyond the context, or the pool")
            table = part.block_table[: -(-end // BLOCK_SIZE)]
            words.append((part.row_start, part.num_rows, part.pos_start, starts))
            tables.append(table)
            starts += len(table)
        joined = tables[0] if len(tables) == 1 else np.concatenate(tables)
        if not 0 <= joined.min() <= joined.max() < self.num_blocks:
            raise ValueError("a block outside the pool")
        return np.array(words, np.int32), joined


def matrix_address(matrix: NativeMatrix) -> NDArray[np.int64]:
    """The words of one matrix alone, for a kernel's `linear`."""
    return np.array(matrix.words, np.int64)
