"""Digests: equal for equal content wherever it lies, and different as soon as what they cover differs."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.model_files import small_tensors, write_model

from stagewire.model.digest import model_digest, stage_digest
from stagewire.model.gguf import GgufFile

NAMES = ("blk.0.attn_q.weight", "blk.0.attn_k.weight")


def digests(path: Path) -> tuple[str, str]:
    with GgufFile.open(path) as opened:
        return model_digest(opened), stage_digest(opened, NAMES)


def test_a_copy_has_the_same_digests(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    assert digests(path) == digests(Path(shutil.copy(path, tmp_path / "copy.gguf")))


def test_metadata_belongs_to_the_model_and_not_to_a_stages_tensors(tmp_path: Path) -> None:
    """One merge of the vocabulary differs: another model, but the same weights, at other offsets."""
    model, stage = digests(write_model(tmp_path / "m.gguf"))
    merges: dict[str, str | list[str]] = {"tokenizer.ggml.merges": ["a b"], "general.name": "n" * 100}
    other_model, other_stage = digests(write_model(tmp_path / "n.gguf", merges))
    assert model != other_model
    assert stage == other_stage


def test_retrained_weights_make_another_model(tmp_path: Path) -> None:
    tensors = small_tensors()
    tensors["blk.1.ffn_down.weight"] = tensors["blk.1.ffn_down.weight"] + 1
    model, stage = digests(write_model(tmp_path / "m.gguf"))
    other_model, other_stage = digests(write_model(tmp_path / "n.gguf", tensors=tensors))
    assert model != other_model
    assert stage == other_stage


def test_one_byte_of_a_stages_tensor_changes_the_stages_digest(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    before = digests(path)
    with GgufFile.open(path) as opened:
        offset = opened.tensors[NAMES[1]].offset
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    assert digests(path)[1] != before[1]


def test_the_order_of_names_does_not_matter_but_their_choice_does(tmp_path: Path) -> None:
    with GgufFile.open(write_model(tmp_path / "m.gguf")) as opened:
        assert stage_digest(opened, NAMES) == stage_digest(opened, reversed(NAMES))
        assert stage_digest(opened, NAMES) != stage_digest(opened, NAMES[:1])


def test_reading_part_of_a_file_gives_what_the_file_has(gguf_file: GgufFile) -> None:
    assert gguf_file.read_bytes(0, 4) == b"GGUF"
    assert gguf_file.read_bytes(gguf_file.path.stat().st_size - 2, 10) == gguf_file.path.read_bytes()[-2:]
