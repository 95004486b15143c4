"""What a forward step starts from: batches whose fields fit, and embeddings as the file's type defines them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.native_files import HIDDEN, VOCAB, write_native_model

from stagewire.model.gguf import GgufFile
from stagewire.model.gguf_types import dequantize_bytes
from stagewire.model.layout import EMBEDDING
from stagewire.stage.compute.embedding import EmbeddingTable, input_rows
from stagewire.stage.compute.operators import Batch, SequenceRows

TABLE = np.array([4, 2], np.int32)
BATCH = Batch.of([1, 2, 3], [SequenceRows(0, 2, 30, TABLE), SequenceRows(2, 1, 0, TABLE)], [2, 0])


@pytest.mark.parametrize(
    ("slices", "logit_rows", "reason"),
    [
        ([SequenceRows(1, 3, 0, TABLE)], [], "do not follow"),
        ([SequenceRows(0, 2, 0, TABLE), SequenceRows(1, 1, 0, TABLE)], [], "do not follow"),
        ([SequenceRows(0, 3, -1, TABLE)], [], "do not follow"),
        ([SequenceRows(0, 0, 0, TABLE), SequenceRows(0, 3, 0, TABLE)], [], "do not follow"),
        ([SequenceRows(0, 2, 0, TABLE)], [], "3 token ids for 2 rows"),
        ([SequenceRows(0, 3, 30, TABLE)], [], "ends early"),
        ([SequenceRows(0, 3, 0, TABLE.astype(np.int64))], [], "not of int32"),
        ([SequenceRows(0, 3, 0, TABLE)], [3], "outside the batch"),
        ([SequenceRows(0, 3, 0, TABLE)], [-1, 0], "outside the batch"),
    ],
)
def test_a_batch_whose_fields_do_not_fit_is_refused(slices: Any, logit_rows: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Batch.of([1, 2, 3], slices, logit_rows)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F16"])
def test_embeddings_are_those_of_the_type_for_any_bytes(tmp_path: Path, kind: str) -> None:
    """Infinite and NaN scales among them; the rows asked for, in their order."""
    path = write_native_model(tmp_path / "m.gguf", {"": "Q8_0", "token_embd.weight": kind})
    token_ids = np.array([5, 0, VOCAB - 1, 5], np.int32)
    with GgufFile.open(path) as gguf:
        table = EmbeddingTable(gguf, EMBEDDING)
        table._rows = np.random.default_rng(3).integers(0, 256, table._rows.shape).astype(np.uint8)
        table._rows[0, :2] = np.array([np.inf], np.float16).view(np.uint8)
        found = table.rows(token_ids)
        expected = dequantize_bytes(table._rows[token_ids].reshape(-1), kind).reshape(4, HIDDEN)
        assert found.dtype == np.float32 and found.flags.writeable and found.flags.c_contiguous
        assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))
        with pytest.raises(ValueError, match="starts from token ids"):
            input_rows(table, BATCH, np.zeros((3, HIDDEN), np.float32))
        del table


def test_hidden_states_are_copied_and_nothing_but_float32_is_taken_for_them() -> None:
    hidden = np.arange(12, dtype=np.float32).reshape(3, 4)
    rows = input_rows(None, BATCH, hidden)
    assert np.array_equal(rows, hidden) and not np.shares_memory(rows, hidden)
    with pytest.raises(ValueError, match="only a first stage"):
        input_rows(None, BATCH, None)
    for dtype in (np.uint16, np.float16, np.float64):
        with pytest.raises(ValueError, match="not float32"):
            input_rows(None, BATCH, hidden.astype(dtype))
