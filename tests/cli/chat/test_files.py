"""Saved conversations on a real disk."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from stagewire.cli.chat import files
from stagewire.cli.chat.core.conversation import Conversation, Turn
from stagewire.cli.chat.core.saved import to_text

TEXT = to_text(Conversation("s", (Turn("grüß", "你好"),)))


@pytest.mark.parametrize("name", ["x.json", "with blanks", "ünï", "-m"])
def test_what_is_written_is_read_again(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / name)
    assert files.write(path, TEXT) == tmp_path / name
    assert files.read(path) == TEXT
    files.write(path, "[]\n")
    assert files.read(path) == "[]\n"
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_tilde_is_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    files.write("~/x", TEXT)
    assert files.read("~/x") == TEXT == (tmp_path / "x").read_text(encoding="utf-8")


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("[]", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files.write(str(tmp_path / "link"), TEXT)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text(encoding="utf-8") == TEXT


@pytest.mark.parametrize("content", ["Dear diary", "{}", '[{"role": "user"}]', "\n"])
def test_only_a_conversation_is_overwritten(content: str, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(files.FileError, match="is no saved conversation; choose another name"):
        files.write(str(path), TEXT)
    assert path.read_text(encoding="utf-8") == content
    (tmp_path / "empty").touch()
    files.write(str(tmp_path / "empty"), TEXT)


def test_what_is_no_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "picture").write_bytes(b"\xff\xd8\x00")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null"), tmp_path / "picture"):
        with pytest.raises(files.FileError, match=str(path)):
            files.write(str(path), TEXT)
        with pytest.raises(files.FileError, match=str(path)):
            files.read(str(path))
    assert (tmp_path / "picture").read_bytes() == b"\xff\xd8\x00"


@pytest.mark.parametrize("path", ["/no/such/folder/x", "~nobody-of-this-name/x", "x" * 300, "a\0b"])
def test_a_path_that_leads_nowhere_says_so(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(files.FileError):
        files.read(path)
    with pytest.raises(files.FileError):
        files.write(path, TEXT)
    assert [*tmp_path.iterdir()] == []


def test_a_disk_that_takes_no_more_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    files.write(str(path), "[]")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(files.FileError, match="File too large"):
            files.write(str(path), TEXT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text(encoding="utf-8") == "[]"
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate((1 << 26) + 1)
    with pytest.raises(files.FileError, match="larger than 64 MiB"):
        files.read(str(tmp_path / "large"))
