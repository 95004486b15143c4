"""A whole model is looked at before anything starts: a fault that one stage alone would meet is found, and names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.model_files import HIDDEN, MIDDLE, small_tensors, write_model

from stagewire.model.check import check_model
from stagewire.model.gguf import GgufFile
from stagewire.model.name import MAX_MODEL_NAME_CHARS, model_name
from stagewire.wire.errors import ErrorCode, ModelError

LAST = "blk.1"


@pytest.mark.parametrize(
    "name", [f"{LAST}.ffn_up.weight", f"{LAST}.attn_norm.weight", "output_norm.weight", "blk.0.attn_k.weight"]
)
def test_a_tensor_that_one_stage_would_miss_is_named(name: str, tmp_path: Path) -> None:
    tensors = small_tensors()
    del tensors[name]
    path = write_model(tmp_path / "m.gguf", tensors=tensors)
    with pytest.raises(ModelError, match=f"the tensor '{name}' is missing"):
        check_model(str(path), path)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (f"{LAST}.ffn_down.weight", (HIDDEN, 2 * MIDDLE)),
        ("output_norm.weight", (HIDDEN * 2,)),
        (f"{LAST}.attn_q.weight", (8, HIDDEN)),
    ],
)
def test_a_tensor_of_another_shape_is_named_with_both(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", tensors=small_tensors() | {name: np.ones(shape, np.float32)})
    with pytest.raises(ModelError, match=f"'{name}' has shape .* expected"):
        check_model(str(path), path)


@pytest.mark.parametrize("dtype", [np.int32, np.float64, np.int8])
def test_a_tensor_of_a_type_that_cannot_be_read_is_named_with_it(dtype: type[np.generic], tmp_path: Path) -> None:
    name = f"{LAST}.ffn_norm.weight"
    tensors = small_tensors() | {name: np.ones(HIDDEN, dtype)}
    path = write_model(tmp_path / "m.gguf", tensors=tensors)
    with pytest.raises(ModelError, match=f"'{name}' has type") as refused:
        check_model(str(path), path)
    assert refused.value.code is ErrorCode.UNSUPPORTED_TENSOR_TYPE


def test_a_vocabulary_that_the_first_stage_would_refuse_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", {"tokenizer.ggml.eos_token_id": 10**6})
    with pytest.raises(ModelError, match="impossible vocabulary: eos_token_id"):
        check_model(str(path), path)


@pytest.mark.parametrize(
    ("file", "own", "name"),
    [
        ("smol.Q4_1.gguf", "Smol", "smol.Q4_1"),
        ("Smol.GGUF", "Smol", "Smol"),
        ("no-suffix", "Smol", "no-suffix"),
        ("sha256-" + "0a" * 32, "SmolLM2 135M", "SmolLM2 135M"),
        ("b1" * 20, None, "b1" * 20),
        ("b\udce9.gguf", None, "b_"),
        ("Mod\udcc3\udca8le.gguf", None, "Modèle"),
        ("clear\x1b[2J\n.gguf", None, "clear_[2J_"),
        ("-m.gguf", None, "-m"),
        (".gguf", None, "model"),
        ("Modèle 模型.gguf", None, "Modèle 模型"),
        ("a" * 100 + "z" * 100 + ".gguf", None, "a" * 30 + "..." + "z" * 30),
    ],
)
def test_a_model_is_called_by_its_file(file: str, own: str | None, name: str, tmp_path: Path) -> None:
    """On one line, short, without the folders before it; also by a symbolic link's own name."""
    target = write_model(tmp_path / "target.gguf", {} if own is None else {"general.name": own})
    (tmp_path / file).symlink_to(target)
    with GgufFile.open(target) as gguf:
        found = model_name(str(tmp_path / file), gguf)
        assert found == name
        assert found.isprintable()
        assert len(found) <= MAX_MODEL_NAME_CHARS
        assert model_name("smollm2-135m", gguf) == "smollm2-135m"
    assert check_model(str(tmp_path / file), target).card.name == name
