"""Which tensors a stage holds: every cut covers the file; the missing, misshapen and unknown are named."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.model_files import HIDDEN, KV_HEADS, Tensors, small_tensors, write_model

from stagewire.model.config import read_config
from stagewire.model.gguf import GgufFile
from stagewire.model.layout import check_layer_range, stage_tensors
from stagewire.wire.errors import ErrorCode, ModelError, SettingsError


def layout_of(path: Path, layer_start: int, layer_end: int) -> tuple[str, ...]:
    with GgufFile.open(path) as opened:
        return stage_tensors(opened, read_config(opened), layer_start, layer_end)


def refusal(folder: Path, tensors: Tensors) -> ModelError:
    path = write_model(folder / "m.gguf", tensors=tensors)
    with pytest.raises(ModelError) as caught:
        layout_of(path, 0, 2)
    return caught.value


def test_every_cut_into_two_covers_the_default_model(gguf_file: GgufFile) -> None:
    """Each tensor lies on one stage, but the tied embedding, which the first and the last both need."""
    config = read_config(gguf_file)
    for cut in range(1, config.num_layers):
        head = stage_tensors(gguf_file, config, 0, cut)
        tail = stage_tensors(gguf_file, config, cut, config.num_layers)
        assert Counter([*head, *tail]) == Counter([*gguf_file.tensors, "token_embd.weight"])
    assert sorted(stage_tensors(gguf_file, config, 0, 30)) == sorted(gguf_file.tensors)
    assert {name.split(".")[1] for name in stage_tensors(gguf_file, config, 11, 13)} == {"11", "12"}


def test_an_untied_output_matrix_belongs_to_the_last_stage_alone(tmp_path: Path) -> None:
    tensors = small_tensors()
    tensors["output.weight"] = tensors["token_embd.weight"]
    path = write_model(tmp_path / "m.gguf", tensors=tensors)
    assert layout_of(path, 0, 1)[0] == "token_embd.weight"
    assert layout_of(path, 1, 2)[-2:] == ("output_norm.weight", "output.weight")
    assert "token_embd.weight" not in layout_of(path, 1, 2)


@pytest.mark.parametrize("layers", [(0, 0), (1, 1), (2, 1), (-1, 2), (0, 31), (30, 31)])
def test_a_range_outside_the_model_is_refused_with_its_layers(layers: tuple[int, int], gguf_file: GgufFile) -> None:
    with pytest.raises(SettingsError, match=f"{layers[0]}:{layers[1]} .* 0:30") as caught:
        check_layer_range(read_config(gguf_file), *layers)
    assert caught.value.code is ErrorCode.INVALID_LAYER_RANGE


def test_a_missing_tensor_is_named_by_the_stage_that_needs_it(tmp_path: Path) -> None:
    tensors = small_tensors()
    del tensors["blk.1.attn_k.weight"]
    path = write_model(tmp_path / "m.gguf", tensors=tensors)
    layout_of(path, 0, 1)
    with pytest.raises(ModelError, match=r"'blk\.1\.attn_k\.weight' is missing"):
        layout_of(path, 1, 2)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    tensors = small_tensors() | {"blk.0.ffn_up.weight": np.zeros((HIDDEN, HIDDEN), np.float32)}
    error = refusal(tmp_path, tensors)
    assert error.code is ErrorCode.MODEL_FILE_INVALID
    assert "'blk.0.ffn_up.weight' has shape (32, 32), expected (64, 32)" in error.detail


@pytest.mark.parametrize(
    "name",
    ["blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.1.attn_v.bias", "output.bias", "blk.2.attn_norm.weight"],
)
def test_a_tensor_that_would_have_to_be_ignored_is_refused_by_name(name: str, tmp_path: Path) -> None:
    error = refusal(tmp_path, small_tensors() | {name: np.zeros(KV_HEADS * 8, np.float32)})
    assert error.code is ErrorCode.UNSUPPORTED_ARCHITECTURE
    assert f"'{name}'" in error.detail


def test_an_unsupported_type_is_named_with_its_tensor(tmp_path: Path) -> None:
    """The norm is stored as float64, which no decoder takes."""
    tensors = small_tensors()
    tensors["output_norm.weight"] = tensors["output_norm.weight"].astype(np.float64)
    error = refusal(tmp_path, tensors)
    assert error.code is ErrorCode.UNSUPPORTED_TENSOR_TYPE
    assert "'output_norm.weight' has type F64" in error.detail
