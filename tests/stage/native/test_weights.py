"""Weights on the native kernels: what the file holds, no more memory than said, and no tensor taken for another."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from support.native_files import HEAD_DIM, HIDDEN, write_native_model
from support.native_operators import ROUNDING, Floats, kernel_or_skip, linear

from stagewire.model.config import read_config
from stagewire.model.gguf import GgufFile
from stagewire.model.gguf_codes import CODE_FORMS
from stagewire.model.gguf_types import TYPE_BY_NAME
from stagewire.model.layout import stage_tensors
from stagewire.stage.native.matrix import NativeMatrix
from stagewire.stage.native.requantize import requantize
from stagewire.stage.native.weights import NativeWeightLoader, unsupported_reason
from stagewire.wire.errors import ErrorCode, ModelError

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
# Bytes that 256 weights take in memory: codes of 4 or 8 bits, and scales in halves or bytes.
MEMORY_BYTES = {
    "Q4_0": 144, "Q4_1": 160, "Q5_0": 272, "Q5_1": 288, "Q8_0": 272, "IQ4_NL": 272, "Q2_K": 164, "Q3_K": 146,
    "Q4_K": 148, "Q5_K": 276, "Q6_K": 274, "IQ4_XS": 266, "F32": 1024, "F16": 512, "BF16": 512,
}  # fmt: skip

Opener = Callable[[Path], GgufFile]


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Opens files, and closes them at the end."""
    files: list[GgufFile] = []

    def open_file(path: Path) -> GgufFile:
        files.append(GgufFile.open(path))
        return files[-1]

    yield open_file
    for file in files:
        file.close()


def exact_rows(num_rows: int, inputs: int) -> Floats:
    """Rows that are their own codes: integers, 127 the largest in each block, so that the scale is 1."""
    rng = np.random.default_rng(2)
    rows = rng.integers(-127, 128, (num_rows, inputs)).astype(np.float32)
    rows[:, ::16] = 127
    return rows


def assert_holds(matrix: NativeMatrix, weights: Floats) -> None:
    """Its products are those of these weights, to the rounding of the sums."""
    rows = exact_rows(5, weights.shape[1])
    exact = rows.astype(np.float64) @ weights.T.astype(np.float64)
    sizes = np.abs(rows.astype(np.float64)) @ np.abs(weights.T.astype(np.float64))
    errors = np.abs(linear(kernel_or_skip("portable"), matrix, rows) - exact)
    # Codes and minima are summed apart; here neither part is much larger than the weights.
    assert (errors <= weights.shape[1] * 4 * ROUNDING * sizes).all()
    assert sizes.min() > 0


def halves_apart(rows: Floats) -> Floats:
    """Each head's first elements of all pairs, then the second ones, as the kernels rotate them."""
    heads = rows.reshape(-1, HEAD_DIM // 2, 2, rows.shape[1])
    return np.concatenate([heads[:, :, 0], heads[:, :, 1]], axis=1).reshape(rows.shape)


# ---- What is loaded


@pytest.mark.parametrize("kind", [*CODE_FORMS, "F32", "F16", "BF16"])
def test_stored_weights_are_those_of_the_file(kind: str, tmp_path: Path, opened: Opener) -> None:
    gguf = opened(write_native_model(tmp_path / "m.gguf", kind))
    loader = NativeWeightLoader(gguf, read_config(gguf), "stored")
    layer = loader.layer(1)
    for name, matrix in zip(MATRICES, layer.matrices, strict=True):
        weights = gguf.dequantize(f"blk.1.{name}.weight")
        assert_holds(matrix, halves_apart(weights) if name in ("attn_q", "attn_k") else weights)
    assert np.array_equal(layer.attention_norm, gguf.dequantize("blk.1.attn_norm.weight"))
    assert np.array_equal(layer.ffn_norm, gguf.dequantize("blk.1.ffn_norm.weight"))
    assert_holds(loader.output().projection, gguf.dequantize("token_embd.weight"))


@pytest.mark.parametrize("precision", ["stored", "int8", "int4"])
def test_a_tensor_that_is_read_in_slices_is_whole(precision: str, tmp_path: Path, opened: Opener) -> None:
    """More than a million weights, and a number of rows that is no whole panel."""
    gguf = opened(write_native_model(tmp_path / "m.gguf", "Q8_0", vocab=5003))
    projection = NativeWeightLoader(gguf, read_config(gguf), precision).output().projection
    weights = gguf.dequantize("token_embd.weight")
    if precision == "int4":
        weights = requantize(weights, 4).dequantize()
    assert_holds(projection, weights)


@pytest.mark.parametrize("kind", MEMORY_BYTES)
def test_the_bytes_that_weights_take_are_counted_right(kind: str, tmp_path: Path, opened: Opener) -> None:
    """Per 256 weights, by type: 4-bit types as in the file; of 5 and 6 bits as bytes, 30 to 57% more."""
    gguf = opened(write_native_model(tmp_path / "m.gguf", kind, vocab=48))
    config = read_config(gguf)
    loader = NativeWeightLoader(gguf, config, "stored")
    layer, output = loader.layer(0), loader.output()
    num_weights = sum(int(np.prod(gguf.tensor(f"blk.0.{name}.weight").shape)) for name in MATRICES)
    assert layer.num_bytes == num_weights // 256 * MEMORY_BYTES[kind] + 2 * 4 * HIDDEN
    assert output.num_bytes == 48 * HIDDEN // 256 * MEMORY_BYTES[kind] + 4 * HIDDEN
    in_file = TYPE_BY_NAME[kind].block_bytes * 256 // TYPE_BY_NAME[kind].block_size
    if kind in ("Q5_0", "Q5_1", "Q5_K", "Q6_K"):
        assert 1.30 <= MEMORY_BYTES[kind] / in_file <= 1.57


@pytest.mark.parametrize(("precision", "largest"), [("int8", 272), ("int4", 160)])
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q6_K", "F16", "TQ2_0"])
def test_fewer_bits_are_made_only_of_more(
    kind: str, precision: str, largest: int, tmp_path: Path, opened: Opener
) -> None:
    """int8 leaves codes of 4 bits alone; what has more, or is of a type without codes, is rounded."""
    gguf = opened(write_native_model(tmp_path / "m.gguf", kind))
    matrix = NativeWeightLoader(gguf, read_config(gguf), precision).layer(0).matrices[2]
    weights = gguf.dequantize("blk.0.attn_v.weight")
    is_kept = kind in CODE_FORMS and CODE_FORMS[kind].bits <= int(precision[3:])
    per_256 = MEMORY_BYTES[kind] if is_kept else largest
    assert matrix.num_bytes == matrix.outputs * matrix.inputs // 256 * per_256
    assert_holds(matrix, weights if is_kept else requantize(weights, int(precision[3:])).dequantize())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mapped pages are counted on Linux")
@pytest.mark.parametrize("precision", ["stored", "int4"])
def test_mapped_pages_are_given_back_tensor_by_tensor(precision: str, tmp_path: Path, opened: Opener) -> None:
    """Of 8 MB that were read, some neighbours of the last page stay."""
    path = write_native_model(tmp_path / "m.gguf", "F32", vocab=4000)
    gguf = opened(path)
    loader = NativeWeightLoader(gguf, read_config(gguf), precision)

    def mapped() -> int:
        maps = psutil.Process(os.getpid()).memory_maps(grouped=False)
        return sum(int(entry.rss) for entry in maps if entry.path == str(path.resolve()))

    held = [loader.layer(0), loader.layer(1), loader.output()]
    assert path.stat().st_size > 8_000_000
    assert mapped() <= 512 << 10
    assert bytes(gguf.raw("token_embd.weight")) and mapped() > 4_000_000, "pages that are held are counted"
    assert len(held) == 3


# ---- What is refused


def reason_of(gguf: GgufFile, precision: str) -> str:
    config = read_config(gguf)
    return unsupported_reason(gguf, config, stage_tensors(gguf, config, 0, config.num_layers), precision)


@pytest.mark.parametrize("precision", ["stored", "int8", "int4"])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"llama.embedding_length": 264}, "hidden_size 264 is not a multiple of 16"),
        (
            {f"llama.attention.{key}_length": 8 for key in ("key", "value")} | {"llama.rope.dimension_count": 8},
            "head_dim 8 is not a multiple of 16",
        ),
        ({"llama.feed_forward_length": 520}, "feed-forward 520 is not a multiple of 16"),
        ({"llama.embedding_length": 272, "llama.feed_forward_length": 528}, ""),
    ],
)
def test_shapes_that_do_not_fill_the_lanes_are_refused_by_name(
    changes: dict[str, int], reason: str, precision: str, tmp_path: Path, opened: Opener
) -> None:
    gguf = opened(write_native_model(tmp_path / "m.gguf", "F16", changes))
    assert reason_of(gguf, precision) == reason


@pytest.mark.parametrize("kind", ["TQ2_0", "MXFP4", "IQ2_XXS"])
def test_a_type_without_codes_is_refused_by_name_unless_it_is_to_be_rounded(
    kind: str, tmp_path: Path, opened: Opener
) -> None:
    gguf = opened(write_native_model(tmp_path / "m.gguf", {"": "Q8_0", "1.ffn_up.weight": kind}))
    assert reason_of(gguf, "stored") == f"the tensor blk.1.ffn_up.weight has type {kind}"
    assert reason_of(gguf, "int8") == reason_of(gguf, "int4") == ""


def test_a_type_that_nobody_reads_is_an_error_of_the_file(tmp_path: Path, opened: Opener) -> None:
    gguf = opened(write_native_model(tmp_path / "m.gguf", {"": "Q8_0", "1.ffn_up.weight": "Q8_K"}))
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_up\.weight.*Q8_K") as raised:
        reason_of(gguf, "int4")
    assert raised.value.code is ErrorCode.UNSUPPORTED_TENSOR_TYPE


# ---- Fewer bits


def weights_to_round() -> Floats:
    """Rows of many sizes, down to nothing; some of one number alone, some far from zero."""
    rng = np.random.default_rng(9)
    weights = rng.standard_normal((600, 96)) * 10.0 ** rng.uniform(-9, 3, (600, 1))
    weights[::5] += rng.uniform(-100, 100, (120, 1))
    weights[7] = 0
    weights[8] = 0.1
    weights[9] = -3
    return weights.astype(np.float32)


def blocks_of(rows: Floats) -> NDArray[np.float64]:
    return rows.astype(np.float64).reshape(len(rows), -1, 32)


def test_eight_bits_err_by_half_a_step() -> None:
    """127 steps from zero to the block's largest; its scale is a half, which has its own rounding."""
    weights = weights_to_round()
    codes = requantize(weights, 8)
    errors = np.abs(blocks_of(codes.dequantize()) - blocks_of(weights)).max(axis=2)
    largest = np.abs(blocks_of(weights)).max(axis=2)
    assert (errors <= largest / 254 * (1 + 2.0**-10) + 127 * 2.0**-25).all()
    assert codes.codes.min() >= 1 and codes.codes.max() == 255


def test_four_bits_err_by_half_a_step() -> None:
    """15 steps from the block's least to its largest; scale and minimum are halves, with their own rounding."""
    weights = weights_to_round()
    codes = requantize(weights, 4)
    blocks = blocks_of(weights)
    errors = np.abs(blocks_of(codes.dequantize()) - blocks).max(axis=2)
    spread, largest = blocks.max(axis=2) - blocks.min(axis=2), np.abs(blocks).max(axis=2)
    assert (errors <= spread / 30 * (1 + 2.0**-5) + largest * 2.0**-10 + 16 * 2.0**-25).all()
    assert codes.codes.min() == 0 and codes.codes.max() == 15


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_that_end_within_a_block_are_filled_up_with_weights_that_add_nothing(bits: int) -> None:
    weights = np.random.default_rng(1).standard_normal((16, 48)).astype(np.float32)
    codes = requantize(weights, bits)
    assert codes.codes.shape == (16, 64)
    assert np.abs(codes.dequantize()[:, 48:]).max() <= {4: 0.5, 8: 0}[bits], "codes of rows are zero there anyway"


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_beyond_what_halves_can_scale_stay_finite(bits: int) -> None:
    weights = np.array([[3e38, -3e38] * 16, [1e6, -1e7] * 16], np.float32)
    with np.errstate(over="ignore"):
        assert np.isfinite(requantize(weights, bits).dequantize()).all()
