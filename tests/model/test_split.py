"""Split models, joined files, cut and padded ones: named before anything is loaded."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import pytest
from support.model_files import METADATA, small_tensors, write_metadata, write_model

from stagewire.model.catalogue import resolve
from stagewire.model.check import check_model
from stagewire.wire.errors import ErrorCode, ModelError


def write_parts(folder: Path, num_tensors: int, *, is_first_small: bool = False) -> list[Path]:
    """The small model as the `gguf` package splits it, so many tensors in each part."""
    writer = gguf.GGUFWriter(
        folder / "m.gguf", "llama", split_max_tensors=num_tensors, small_first_shard=is_first_small
    )
    write_metadata(writer, METADATA)
    for name, tensor in small_tensors().items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("m-*.gguf"))


def refusal(path: Path) -> ModelError:
    with pytest.raises(ModelError) as refused:
        check_model(str(path), resolve(str(path)))
    assert "\n" not in refused.value.detail
    return refused.value


@pytest.mark.parametrize(("num_tensors", "count"), [(10, 2), (5, 4), (1, 20)])
def test_every_part_of_a_split_model_is_named_as_one(num_tensors: int, count: int, tmp_path: Path) -> None:
    """Whatever its own name is by now."""
    parts = write_parts(tmp_path, num_tensors)
    assert len(parts) == count
    for number, part in enumerate(parts, 1):
        told = refusal(part)
        assert told.code is ErrorCode.UNSUPPORTED_ARCHITECTURE
        assert f"part {number} of {count} of a split model" in told.detail
        assert "llama-gguf-split --merge" in told.detail
        assert "not here are" not in told.detail
        renamed = part.rename(tmp_path / "renamed.gguf")
        assert f"part {number} of {count}" in refusal(renamed).detail
        renamed.rename(part)


def test_parts_that_are_not_there_are_named(tmp_path: Path) -> None:
    parts = write_parts(tmp_path, 5, is_first_small=True)
    for gone in parts[1:3]:
        gone.unlink()
    told = refusal(parts[0]).detail
    assert told.endswith(f"not here are {parts[1].name}, {parts[2].name}")


@pytest.mark.parametrize("num_tensors", [10, 7, 3])
def test_parts_that_were_joined_with_cat_are_told_apart(num_tensors: int, tmp_path: Path) -> None:
    whole = tmp_path / "joined.gguf"
    whole.write_bytes(b"".join(part.read_bytes() for part in write_parts(tmp_path, num_tensors)))
    assert re.search(
        r"two GGUF files joined, the second at byte \d+; .*cannot be joined with cat", refusal(whole).detail
    )


def test_two_whole_models_in_one_file_are_refused(tmp_path: Path) -> None:
    one = write_model(tmp_path / "m.gguf").read_bytes()
    (tmp_path / "two.gguf").write_bytes(one * 2)
    assert f"the second at byte {len(one)};" in refusal(tmp_path / "two.gguf").detail


def test_an_old_part_is_known_by_its_name_and_a_whole_model_is_not_refused_for_it(tmp_path: Path) -> None:
    tensors = small_tensors()
    half = dict(list(tensors.items())[: len(tensors) // 2])
    assert "part 1 of 2" in refusal(write_model(tmp_path / "m-00001-of-00002.gguf", tensors=half)).detail
    path = write_model(tmp_path / "whole-00001-of-00002.gguf")
    assert check_model(str(path), path).card.name == "whole-00001-of-00002"
    path = write_model(tmp_path / "one-00001-of-00001.gguf", {"split.count": 1})
    assert check_model(str(path), path).remarks == ()


@pytest.mark.parametrize("share", [0.99, 0.5, 0.01])
def test_a_download_that_was_cut_short_is_said_to_be(share: float, tmp_path: Path) -> None:
    data = write_model(tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(data[: int(len(data) * share)])
    told = refusal(tmp_path / "m.gguf").detail
    assert "truncated or damaged; fetch it again" in told
    if share > 0.1:
        assert re.search(rf"which has {int(len(data) * share)} of \d+ bytes", told)


@pytest.mark.parametrize(
    ("trailing", "num_remarks"),
    [(b"", 0), (bytes(4000), 0), (b"<html>", 1), (b"\0" * 100 + b"x", 1), (bytes(1 << 17), 1)],
)
def test_bytes_behind_the_last_tensor_are_remarked_on_and_do_no_harm(
    trailing: bytes, num_remarks: int, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes() + trailing)
    remarks = check_model(str(path), path).remarks
    assert len(remarks) == num_remarks
    assert all(re.search(r"\d+ bytes behind the last tensor", remark) for remark in remarks)
