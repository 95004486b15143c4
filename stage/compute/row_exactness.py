"""Whether a decoder's rows depend on their own sequence alone: made-up layers, one sequence cut in several ways."""

from __future__ import annotations

import zlib
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stagewire.stage.compute.operators import BLOCK_SIZE, Batch, SequenceRows

Chunkings = tuple[list[int], list[int]]
"""Sizes of the chunks of a sequence that is alone, and of the same one in company."""


class Decoder(Protocol):
    """What is proved: layers with an output and a KV pool."""

    def forward(self, batch: Batch, hidden_states: NDArray[np.float32], /) -> NDArray[np.float32]:
        """Returns logits; see `Operators`."""


def made_up(name: str, num_rows: int, columns: int) -> NDArray[np.float32]:
    """Numbers of variance 1 that `name` alone decides: float32 [rows, columns], without a sum or a logarithm.

    Patterns (a multiplicative hash, say) will not do: they made attention so even that differences cancelled.
    """
    words = np.random.Philox(key=zlib.crc32(name.encode())).random_raw(-(-num_rows * columns // 2))
    values: NDArray[np.float32] = words.view(np.int32)[: num_rows * columns].astype(np.float32)
    values *= np.float32(3**0.5 / 2**31)
    return values.reshape(num_rows, columns)


def num_test_blocks(chunkings: Chunkings) -> int:
    """KV blocks that `compare_chunkings` needs."""
    return 2 * -(-sum(chunkings[0]) // BLOCK_SIZE) + 1


def compare_chunkings(decoder: Decoder, hidden_size: int, chunkings: Chunkings) -> tuple[NDArray[np.float32], bool]:
    """Logits of all positions at once, and whether both chunkings give the same bits."""
    rows = made_up("hidden states", sum(chunkings[0]), hidden_size)
    num_blocks = -(-len(rows) // BLOCK_SIZE)
    tables = np.arange(2 * num_blocks, dtype=np.int32).reshape(2, num_blocks)
    shuffled = np.ascontiguousarray(tables[1, ::-1])
    whole = _run(decoder, rows, [len(rows)], tables[0])
    alone = _run(decoder, rows, chunkings[0], shuffled)
    in_company = _run(decoder, rows, chunkings[1], shuffled, company_block=2 * num_blocks)
    return whole, np.array_equal(whole, alone) and np.array_equal(whole, in_company)


def _run(
    decoder: Decoder,
    rows: NDArray[np.float32],
    chunks: list[int],
    table: NDArray[np.int32],
    company_block: int | None = None,
) -> NDArray[np.float32]:
    """Run the rows as chunks of one sequence; in company, another sequence's only row comes before each."""
    company = [] if company_block is None else [SequenceRows(0, 1, 0, np.array([company_block], dtype=np.int32))]
    logits, position = [], 0
    for num_rows in chunks:
        part = np.concatenate([rows[-1:], rows[position : position + num_rows]])[1 - len(company) :]
        slices = [*company, SequenceRows(len(company), num_rows, position, table)]
        wanted = range(len(company), len(part))
        logits.append(decoder.forward(Batch.of([0] * len(part), slices, wanted), np.array(part)))
        position += num_rows
    return np.concatenate(logits)
