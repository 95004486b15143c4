"""A model's shape: what the file says, and a refusal by name of whatever would change the arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.model_files import HIDDEN, Value, small_tensors, write_model

from stagewire.model.config import read_config
from stagewire.model.gguf import GgufFile
from stagewire.wire.card import ModelConfig
from stagewire.wire.errors import ErrorCode, ModelError


def config_of(path: Path) -> ModelConfig:
    with GgufFile.open(path) as opened:
        return read_config(opened)


def test_the_default_model_has_the_shape_that_its_authors_state(gguf_file: GgufFile) -> None:
    """The values of HuggingFaceTB/SmolLM2-135M-Instruct's config.json, not their float32 roundings."""
    assert read_config(gguf_file) == ModelConfig(
        architecture="llama",
        num_layers=30,
        hidden_size=576,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        intermediate_size=1536,
        vocab_size=49152,
        context_length=8192,
        rms_norm_eps=1e-5,
        rope_theta=100000.0,
        rope_dim=64,
        tie_word_embeddings=True,
    )


def test_what_a_file_may_leave_out_has_ggmls_defaults(tmp_path: Path) -> None:
    absent: dict[str, Value | None] = {
        "llama.attention.head_count_kv": None,
        "llama.rope.dimension_count": None,
        "llama.rope.freq_base": None,
    }
    config = config_of(write_model(tmp_path / "m.gguf", absent))
    assert (config.num_kv_heads, config.head_dim, config.rope_dim, config.rope_theta) == (4, 8, 8, 10000.0)


def test_explicit_head_and_rope_lengths_win(tmp_path: Path) -> None:
    changes = {"llama.attention.key_length": 16, "llama.attention.value_length": 16}
    config = config_of(write_model(tmp_path / "m.gguf", {**changes, "llama.rope.dimension_count": 6}))
    assert (config.head_dim, config.rope_dim) == (16, 6)


def test_an_output_matrix_of_its_own_unties_the_embeddings(tmp_path: Path) -> None:
    tensors = small_tensors()
    tensors["output.weight"] = tensors["token_embd.weight"]
    assert not config_of(write_model(tmp_path / "m.gguf", tensors=tensors)).tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn'"),
        ({"llama.rope.scaling.factor": 4.0}, r"rope.scaling.factor=4.0"),
        ({"llama.rope.scale_linear": 2.0}, r"rope.scale_linear=2.0"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.attention.sliding_window": 64}, "window 64"),
        ({"llama.attention.value_length": 16}, "values of another length"),
        ({"llama.attention.head_count": [4, 2]}, r"different llama\.attention\.head_count in each layer"),
    ],
)
def test_a_variant_with_other_arithmetic_is_refused_by_name(
    changes: dict[str, Value | None], named: str, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "m.gguf", changes)
    with pytest.raises(ModelError, match=named) as caught:
        config_of(path)
    assert caught.value.code is ErrorCode.UNSUPPORTED_ARCHITECTURE


def test_scaling_that_scales_by_nothing_is_none(tmp_path: Path) -> None:
    changes: dict[str, Value | None] = {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 1.0}
    config_of(write_model(tmp_path / "m.gguf", changes))


def test_frequency_factors_are_rope_scaling_too(tmp_path: Path) -> None:
    tensors = small_tensors() | {"rope_freqs.weight": np.ones(4, np.float32)}
    with pytest.raises(ModelError, match=r"rope_freqs\.weight"):
        config_of(write_model(tmp_path / "m.gguf", tensors=tensors))


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", architecture="qwen3")
    with pytest.raises(ModelError, match=r"'qwen3' \(supported: llama\)") as caught:
        config_of(path)
    assert caught.value.code is ErrorCode.UNSUPPORTED_ARCHITECTURE


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"llama.block_count": None}, r"no llama\.block_count"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, r"no llama\.attention\.layer_norm_rms_epsilon"),
        ({"llama.block_count": "two"}, r"llama\.block_count='two' is not an integer"),
        ({"llama.rope.freq_base": "big"}, r"llama\.rope\.freq_base='big' is not a number"),
        ({"llama.rope.freq_base": -1.0}, "rope_theta=-1.0"),
        ({"llama.block_count": 0}, "num_layers=0"),
        ({"llama.attention.head_count": 0}, r"no llama\.attention\.key_length"),
        ({"llama.attention.head_count_kv": 3}, "num_kv_heads=3"),
        ({"llama.embedding_length": HIDDEN * 2}, r"token_embd\.weight has shape"),
    ],
)
def test_a_missing_or_impossible_value_is_named(changes: dict[str, Value | None], named: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", changes)
    with pytest.raises(ModelError, match=named) as caught:
        config_of(path)
    assert caught.value.code is ErrorCode.MODEL_FILE_INVALID
