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
from stagewire.stage.native.kernel import LAYOUT_VERSION
from stagewire.stage.native.large_pages import large_zeros
from stagewire.stage.native.weights import NativeLayer, NativeOutput
from stagewire.wire.card import ModelConfig

_SLICE = struct.Struct("4i")  # `Slice` in stage/native/src/decoder.h
_NO_ROWS: NDArray[np.int32] = np.empty(0, np.int32)
KV_DTYPES: dict[str, type[np.generic]] = {"f16": np.float16, "f32": np.float32}


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
    """`Operators` on the native kernels, which check the rows, blocks and positions that they are given.

    Fingerprint, proof and sizes are the loader's to set.
    """

    fingerprint = ""
    is_row_exact = False
    file_bytes = 0
    weight_bytes = 0

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
        self.num_blocks, self.block_bytes = len(pool.blocks), pool.block_bytes
        self.copy_block, self.read_block, self.write_block = pool.copy, pool.read, pool.write
        self._kept = (tuple(layers), output)  # the kernel knows addresses only
        self._handle = kernel.create(self._describe(layers, output), threads)

    def _describe(self, layers: Sequence[NativeLayer], output: NativeOutput | None) -> bytes:
        """The words that `read_model` in stage/native/src/description.h reads, in its order."""
        config = self._config
        words = [
            LAYOUT_VERSION,
            config.hidden_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.intermediate_size,
            len(self._cosine),
            len(layers),
            struct.unpack("q", struct.pack("d", config.rms_norm_eps))[0],
            int(self.pool.is_float32),
            self.num_blocks,
            self.pool.blocks.ctypes.data,
            self._cosine.ctypes.data,
            self._sine.ctypes.data,
        ]
        for layer in layers:
            words += [layer.attention_norm.ctypes.data, layer.ffn_norm.ctypes.data]
            words += [word for matrix in layer.matrices for word in matrix.words]
        words += [config.vocab_size, output.norm.ctypes.data, *output.projection.words] if output else [0]
        return struct.pack(f"{len(words)}q", *words)

    def forward(self, batch: Batch, hidden_states: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """See `Operators.forward`.

        Raises:
            ValueError: rows, blocks or positions that do not fit; nothing was computed.
        """
        hidden = input_rows(self._embedding, batch, hidden_states)  # the kernel changes them in place
        if hidden.shape != (batch.num_rows, self._config.hidden_size):
            raise ValueError(f"hidden states {hidden.shape} for {batch.num_rows} rows")
        slices, tables, num_blocks = [], [], 0
        for part in batch.slices:
            table = part.block_table[: (part.pos_start + part.num_rows + BLOCK_SIZE - 1) // BLOCK_SIZE]
            slices.append(_SLICE.pack(part.row_start, part.num_rows, part.pos_start, num_blocks))
            tables.append(table.tobytes())
            num_blocks += len(table)
        logit_rows = batch.logit_rows if self._has_output else _NO_ROWS
        logits = np.empty((len(logit_rows), self._config.vocab_size), np.float32)
        self._kernel.forward(
            self._handle,
            batch.num_rows,
            hidden.ctypes.data,
            b"".join(slices),
            b"".join(tables),
            logit_rows.tobytes(),
            logits.ctypes.data,
        )
        return logits if self._has_output else hidden
