"""Files that are no model: each is named for what it is, with what to do next."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors.numpy
import torch
from support.model_files import METADATA, small_tensors, write_model

from stagewire.model.config import read_config
from stagewire.model.foreign import HEAD_BYTES, describe_head
from stagewire.model.gguf import GgufFile
from stagewire.wire.errors import ErrorCode, ModelError


def torch_file(*, is_zip: bool) -> bytes:
    sink = io.BytesIO()
    torch.save({"weight": torch.ones(40)}, sink, _use_new_zipfile_serialization=is_zip)
    return sink.getvalue()


def zip_file() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("model/x.gguf", b"GGUF")
    return sink.getvalue()


def tar_file() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("x.gguf"))
    return sink.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (torch_file(is_zip=True), "a PyTorch checkpoint"),
        (torch_file(is_zip=False), "a PyTorch checkpoint"),
        (pickle.dumps({"weight": [1.0] * 9}, protocol=4), "a PyTorch checkpoint"),
        (zip_file(), "a zip archive"),
        (tar_file(), "a tar archive"),
        (b"\x1f\x8b\x08\0" + bytes(range(99)), "compressed; unpack it"),
        (safetensors.numpy.save({"weight": np.ones(4, np.float32)}), "safetensors"),
        (b"<!DOCTYPE html><html><title>Sign in</title>", "an HTML page"),
        (b"\xef\xbb\xbf\n <html lang=en>", "an HTML page"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code>', "an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n", "a pointer of Git LFS"),
        (b'{"architectures": ["LlamaForCausalLM"]}', "JSON"),
        ("Diese Datei gibt es nicht: schöne Grüße\n".encode() * 30, "text"),
        (b"Entry not found", "text"),
        (bytes(4096), "zero bytes"),
        (b"tjgg" + bytes(range(200)), "a format of llama.cpp before GGUF"),
        (b"\x7fELF\2\1\1" + bytes(99), "a program"),
    ],
)
def test_a_file_that_is_not_gguf_is_named_for_what_it_is(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="not a GGUF file, but ") as refused:
        GgufFile.open(path)
    assert words in refused.value.detail
    assert "\n" not in refused.value.detail


def test_what_nobody_knows_is_at_least_no_gguf_file(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(4096)
    assert describe_head(noise[:HEAD_BYTES]) == ""
    (tmp_path / "x.gguf").write_bytes(noise)
    with pytest.raises(ModelError, match=r"x\.gguf: not a GGUF file; give the path"):
        GgufFile.open(tmp_path / "x.gguf")


def test_a_character_that_is_cut_at_the_end_of_the_head_is_text_all_the_same() -> None:
    for shift in range(4):
        head = (b"x" * shift + "€".encode() * HEAD_BYTES)[:HEAD_BYTES]
        assert describe_head(head).startswith("text;")


def adapter(writer: gguf.GGUFWriter) -> None:
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.ones((4, 32), np.float32))


def old_adapter(writer: gguf.GGUFWriter) -> None:
    writer.add_string("adapter.type", "lora")


def vocabulary(writer: gguf.GGUFWriter) -> None:
    writer.add_type("vocab")


@pytest.mark.parametrize(
    ("architecture", "fill", "words"),
    [
        ("llama", adapter, "an adapter (LoRA)"),
        ("llama", old_adapter, "an adapter (LoRA)"),
        ("clip", lambda _: None, "the part of a model that sees or hears"),
        ("llama", lambda writer: writer.add_type("mmproj"), "the part of a model that sees or hears"),
        ("llama", lambda writer: writer.add_type("imatrix"), "an importance matrix"),
        ("controlvector", lambda _: None, "a control vector"),
        ("llama", vocabulary, "a vocabulary without weights"),
    ],
)
def test_a_gguf_file_without_a_language_model_is_named_for_what_it_is(
    architecture: str, fill: Callable[[gguf.GGUFWriter], None], words: str, tmp_path: Path
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", architecture)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with (
        GgufFile.open(tmp_path / "x.gguf") as opened,
        pytest.raises(ModelError, match="no language model, but") as found,
    ):
        read_config(opened)
    assert words in found.value.detail
    assert found.value.code is ErrorCode.UNSUPPORTED_ARCHITECTURE


@pytest.mark.parametrize("kind", ["model", "Model", "something new"])
def test_a_model_that_says_so_is_read(kind: str, tmp_path: Path) -> None:
    with GgufFile.open(write_model(tmp_path / "x.gguf", {"general.type": kind})) as opened:
        assert read_config(opened).num_layers == METADATA["llama.block_count"]
        assert len(opened.tensors) == len(small_tensors())
