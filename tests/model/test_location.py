"""What somebody names as a model: found, or refused with what is there instead and what to do."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.model_files import write_model

from stagewire.model.catalogue import resolve
from stagewire.model.gguf import GgufFile
from stagewire.model.location import locate
from stagewire.wire.errors import ErrorCode, ModelError

NOBODY = 65534


def refusal(text: str) -> str:
    """The one line with which `text` is refused."""
    with pytest.raises(ModelError) as refused:
        resolve(text)
    assert refused.value.code is ErrorCode.MODEL_FILE_INVALID
    assert "\n" not in refused.value.detail
    return refused.value.detail


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Permissions mean nothing to root; others meet them as they are."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("https://hub.example/a/b/resolve/main/x.gguf", r"is a URL; fetch the file first, .*`curl -fLO 'https://hub"),
        ("HTTP://hub.example/x", r"is a URL"),
        ("s3://bucket/x.gguf", r"is an address; fetch the \.gguf file first"),
        ("hf://org/name", r"is an address"),
        ("file:///models/x.gguf", r"give the path itself: /models/x\.gguf"),
        ("org/name", r"repository of a model hub: .*hf download org/name FILE\.gguf"),
        ("Some-Org/Model.v2-GGUF", r"hf download Some-Org/Model\.v2-GGUF "),
        ("org/name:Q4_K_M", r"hf download org/name FILE"),
        ("/nowhere/at/all/x.gguf", r"no such file, nor a folder /nowhere$"),
        ("hub.example/a/b", r"https://hub\.example/a/b is a URL"),
        ("www.hub.example:8080/m.gguf", r"is a URL"),
        ("some.org/name", r"hf download some\.org/name"),
        ("absent/", r"there is no such file$"),
        ("./org/name", r"there is no such file, nor a folder org$"),
        ("~/absent-folder/x", r"there is no such file"),
        ("a/b/c", r"there is no such file"),
        ("", r"is no path"),
        ("a\0b", r"is no path"),
        ("x" * 300 + ".gguf", r"cannot be reached: File name too long"),
    ],
)
def test_what_is_no_path_is_told_what_to_give_instead(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert re.search(words, refusal(text))


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.close()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (fifo, "is a FIFO; several processes map a model"),
        (listening, "is a socket"),
        (lambda path: path.symlink_to("/dev/null"), "is a device"),
        (lambda path: path.mkdir(), "is a folder without a .gguf file"),
        (
            lambda path: path.symlink_to(path.with_name("gone")),
            "is a symbolic link to .*/gone, and there is no such file",
        ),
        (lambda path: path.symlink_to(path), "cannot be reached: Too many levels of symbolic links"),
    ],
)
def test_what_is_no_regular_file_is_named(make: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    """At once: nobody waits for a writer of a FIFO, here or where the file is opened."""
    path = tmp_path / "x.gguf"
    make(path)
    assert re.search(words, refusal(str(path)))
    with pytest.raises(ModelError):
        GgufFile.open(path)


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/dev/tty"])
def test_a_device_is_no_model(path: str) -> None:
    assert refusal(path) == f"{path} is a device; give the path of a .gguf file"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["a.gguf"], r"give the path of a file in it: .*/a\.gguf$"),
        (["c.gguf", "b.GGUF", "notes.txt"], r"b\.GGUF, .*c\.gguf$"),
        ([f"{n}.gguf" for n in range(9)], r"/4\.gguf and 4 more$"),
        (
            ["config.json", "model.safetensors"],
            r"with model\.safetensors, a model in another format; .*convert_hf_to_gguf",
        ),
        (["pytorch_model.bin"], r"with pytorch_model\.bin, a model in another format"),
        (["README.md", "tokenizer.json"], r"a folder without a \.gguf file"),
        ([], r"a folder without a \.gguf file; give the path of one"),
        (["sub.gguf/x"], r"a folder without a \.gguf file"),
    ],
)
def test_of_a_folder_its_models_are_named(files: list[str], words: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert re.search(words, refusal(str(tmp_path)))


@pytest.mark.parametrize(
    ("given", "beside", "words"),
    [
        ("m.gguf", "m.gguf.part", r"but m\.gguf\.part, its unfinished download; end that"),
        ("m.gguf", "m.gguf.crdownload", r"but m\.gguf\.crdownload, its"),
        ("m.gguf", "m-00001-of-00003.gguf", r"`llama-gguf-split --merge m-00001-of-00003\.gguf m\.gguf`"),
        ("Model.gguf", "model.gguf", r"did you mean .*/model\.gguf\?"),
        ("smol-q4.gguf", "smol-q4_0.gguf", r"did you mean .*/smol-q4_0\.gguf\?"),
        ("m", "m.gguf", r"did you mean .*/m\.gguf\?"),
        ("m.gguf", "quite-another.gguf", r"there is no such file$"),
    ],
)
def test_what_lies_beside_a_missing_file_is_named(given: str, beside: str, words: str, tmp_path: Path) -> None:
    (tmp_path / beside).write_bytes(b"x")
    assert re.search(words, refusal(str(tmp_path / given)))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("m.gguf.part", "name of an unfinished download"),
        ("m.gguf.download", "name of an unfinished download"),
        ("m.gguf.incomplete", "name of an unfinished download"),
        ("m.gguf-split-a", "name of a piece of a file; join all pieces in order: `cat PIECE... > m.gguf`"),
        ("m.gguf.part2of3", "name of a piece of a file"),
        ("m.gguf.aa", "name of a piece of a file"),
        ("m.gguf.001", "name of a piece of a file"),
    ],
)
def test_a_file_that_is_not_whole_by_its_name_is_refused(name: str, words: str, tmp_path: Path) -> None:
    write_model(tmp_path / name)
    assert words in refusal(str(tmp_path / name))


def test_a_download_whose_downloader_still_keeps_its_books_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf")
    (tmp_path / "m.gguf.aria2").write_bytes(b"")
    assert "is an unfinished download, as m.gguf.aria2 beside it says" in refusal(str(tmp_path / "m.gguf"))


def test_a_file_that_may_not_be_read_is_refused_as_such(tmp_path: Path) -> None:
    """Also one in a folder that may not be entered."""
    path = write_model(tmp_path / "m.gguf")
    locked = tmp_path / "locked"
    locked.mkdir()
    write_model(locked / "m.gguf")
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(folder.stat().st_mode | 0o711)
    path.chmod(0)
    locked.chmod(0)
    try:
        with as_somebody_else():
            assert "may not be read by this user" in refusal(str(path))
            assert "cannot be reached: Permission denied" in refusal(str(locked / "m.gguf"))
    finally:
        locked.chmod(0o700)


@pytest.mark.parametrize("name", ["-m.gguf", "b\udce9.gguf", "b\x1b[2J.gguf", "two\nlines.gguf", "a b'c\".gguf"])
def test_odd_names_are_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where nothing is to be found, shown so that a terminal does not obey them."""
    monkeypatch.chdir(tmp_path)
    write_model(Path(name))
    assert locate(name) == Path(name)
    Path(name).unlink()
    told = refusal(f"./{name}")
    assert told.isprintable()
    told.encode()


def test_a_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells do not where the path stands behind an `=`; one that nobody has is a name like others."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = write_model(tmp_path / "m.gguf")
    assert resolve("~/m.gguf") == path
    write_model(tmp_path / "~nobody-has-this-home.gguf")
    assert resolve("~nobody-has-this-home.gguf") == Path("~nobody-has-this-home.gguf")
    (tmp_path / "link").symlink_to("m.gguf")
    assert resolve("~/link") == tmp_path / "link"
