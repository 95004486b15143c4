"""The directory of exported snapshots: what counts as a manifest, and what is left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stagewire.stage.files.snapshot_directory import SnapshotDirectory
from stagewire.stage.files.snapshot_file import Manifest, SnapshotFileError, decode_manifest, encode_manifest

# --- the directory ---


def manifest_of(**fields: object) -> Manifest:
    given = {"client_id": "c", "model": "m", "block_size": 16, "token_ids": (1, 2), "digests": ("a" * 64,)}
    return Manifest(**(given | fields))  # type: ignore[arg-type]


def test_of_two_that_write_a_manifest_of_one_name_one_is_told_that_it_was_late(tmp_path: Path) -> None:
    """Whether there was one before or not."""
    directory, first = SnapshotDirectory(tmp_path, 1 << 20), manifest_of()
    directory.commit("x", first, None)
    with pytest.raises(SnapshotFileError, match="somebody else"):
        directory.commit("x", manifest_of(client_id="d"), None)
    directory.commit("x", manifest_of(client_id="e"), first)
    with pytest.raises(SnapshotFileError, match="somebody else"):
        directory.commit("x", manifest_of(client_id="f"), first)
    assert directory.manifest("x") == manifest_of(client_id="e")
    assert [path.name for path in tmp_path.iterdir()] == ["x.snapshot.json"]


@pytest.mark.parametrize(
    "change",
    [
        {"digests": ("a" * 5000,)}, {"digests": ("../x",)}, {"digests": (1,)}, {"digests": "a" * 64},
        {"client_id": 5}, {"token_ids": ()}, {"more": 1},
    ],
)  # fmt: skip
def test_a_manifest_that_says_something_else_is_none(tmp_path: Path, change: dict[str, object]) -> None:
    """Whatever it says would go out to all stages."""
    fields = json.loads(encode_manifest(manifest_of())) | change
    with pytest.raises(SnapshotFileError):
        decode_manifest(json.dumps(fields).encode())


def test_what_is_no_regular_file_or_too_long_is_not_read(tmp_path: Path) -> None:
    """A pipe would never end, and a huge file would fill the memory."""
    directory = SnapshotDirectory(tmp_path, 1 << 20)
    os.mkfifo(tmp_path / "pipe.snapshot.json")
    (tmp_path / "folder.snapshot.json").mkdir()
    with (tmp_path / "huge.snapshot.json").open("wb") as file:
        file.truncate(1 << 33)
    for name in ("pipe", "folder", "huge"):
        with pytest.raises(OSError, match=r"regular|bytes|directory"):
            directory.manifest(name)
    assert directory.manifest("nothing") is None


def test_other_files_in_the_directory_are_in_nobodys_way(tmp_path: Path) -> None:
    """Links to nowhere, files that vanish, snapshots whose names begin alike; what a killed process left goes."""
    for name in (".x.snapshot.json.77", ".young"):
        (tmp_path / name).write_text("left")
    os.utime(tmp_path / ".x.snapshot.json.77", (1e9, 1e9))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    directory = SnapshotDirectory(tmp_path, 1 << 20)
    alike = directory.write_part("x.stage-0-of-2", b"good", "")
    for path in tmp_path.glob("x*"):
        os.utime(path, (1e9, 1e9))
    directory.write_part("x", b"other", "")
    assert directory.read_part("x.stage-0-of-2", alike, 100) == b"good"
    assert sorted(path.name for path in tmp_path.glob(".*")) == [".young"]
