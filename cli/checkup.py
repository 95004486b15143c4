"""What this machine has for Stagewire, as facts: what is installed, what computes, where models lie, what is free."""
# ruff: noqa: PLC0415  # imports wait until they are needed

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from stagewire.wire.address import CONTROL_PORT, FRONTEND_PORT, LOOPBACK, Address, dialled
from stagewire.wire.answering import Kind, Wanted, circumstance, mistake, occupant
from stagewire.wire.cache_folder import cache_folder
from stagewire.wire.errors import StagewireError
from stagewire.wire.extras import EXTRAS, install_command

_COMPILER_S = 10.0
_PORTS = ((FRONTEND_PORT, "clients"), (CONTROL_PORT, "stages"), (CONTROL_PORT + 1, "metrics"))
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra, and what of it cannot be imported here."""

    name: str
    packages: tuple[str, ...]
    missing: tuple[str, ...]
    install: str


@dataclass(frozen=True, slots=True)
class Kernels:
    """The native variants that this processor runs, the fastest first; `problem`: why none can be chosen."""

    runnable: tuple[str, ...]
    chosen: str | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Models:
    """The cache of model files and cards."""

    folder: str
    names: tuple[str, ...]
    num_bytes: int
    is_writable: bool


@dataclass(frozen=True, slots=True)
class Port:
    """One that `stagewire up` takes; `holder` is who has it already, None while it is free."""

    port: int
    purpose: str
    holder: str | None


@dataclass(frozen=True, slots=True)
class Broker:
    """Where clients look for one; `problem`: what is wrong with that address, `answer` what was found there."""

    endpoint: str
    answer: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The limit of open files, what every process raises it to, and how many clients a stage holds with that."""

    soft: int
    hard: int
    num_clients: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Of the machine, or of what this process may have of it."""

    total_bytes: int
    available_bytes: int
    num_cpus: int


@dataclass(frozen=True, slots=True)
class Checkup:
    """All facts; `compiler` and `torch` are versions, None where there is none."""

    version: str
    python: str
    system: str
    extras: tuple[Extra, ...]
    kernels: Kernels
    compiler: str | None
    torch: str | None
    models: Models
    ports: tuple[Port, ...]
    broker: Broker
    descriptors: Descriptors
    memory: Memory


def look() -> Checkup:
    """Looks at all of it; takes some seconds at most, and changes nothing."""
    from importlib.metadata import version

    return Checkup(
        version=version("stagewire"),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        extras=tuple(_extra(name, packages) for name, packages in EXTRAS.items()),
        kernels=_kernels(),
        compiler=_compiler(),
        torch=version("torch") if find_spec("torch") else None,
        models=_models(cache_folder()),
        ports=tuple(_port(port, purpose) for port, purpose in _PORTS),
        broker=_broker(),
        descriptors=_descriptors(),
        memory=_memory(),
    )


def _extra(name: str, packages: tuple[str, ...]) -> Extra:
    missing = tuple(package for package in packages if find_spec(package) is None)
    return Extra(name, packages, missing, install_command(name))


def _kernels() -> Kernels:
    try:
        from stagewire.stage.native.kernel import best_kernel, runnable_variants
    except ModuleNotFoundError:  # without their extra nobody can use them
        return Kernels((), None)
    try:
        best = best_kernel()
    except (StagewireError, ImportError) as error:
        return Kernels(tuple(runnable_variants()), None, str(error))
    return Kernels(tuple(runnable_variants()), best[0] if best else None)


def _compiler() -> str | None:
    found = [shutil.which(name) for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name]
    path = next((path for path in found if path), None)
    if path is None:
        return None
    command = [path, "--version"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILER_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return next(iter(said.stdout.splitlines()), path)


def _models(folder: Path) -> Models:
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    names = tuple(sorted(path.name for path in files if path.suffix == ".gguf"))
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    is_writable = nearest.is_dir() and os.access(nearest, os.W_OK)
    return Models(str(folder), names, sum(path.stat().st_size for path in files), is_writable)


def _port(port: int, purpose: str) -> Port:
    from stagewire.cluster.resources import why_not_free
    from stagewire.sockets.probe import PROBE_S, probe_within

    address = Address(LOOPBACK, port)
    is_free = why_not_free(address) is None
    return Port(port, purpose, None if is_free else occupant(probe_within(address, PROBE_S + 0.5)))


def _broker() -> Broker:
    from stagewire.client.settings import default_endpoint
    from stagewire.sockets.probe import PROBE_S, probe_within

    try:
        address = dialled(default_endpoint(), "endpoint")
    except StagewireError as error:
        return Broker("", "", error.detail)
    found = probe_within(address, PROBE_S + 1.0)
    answer = "a broker is there" if found.kind is Kind.BROKER else circumstance(found)
    return Broker(address.endpoint, answer, mistake(found, address, Wanted.FRONTEND))


def _descriptors() -> Descriptors:
    from stagewire.sockets.descriptor_needs import stage_need
    from stagewire.sockets.open_files import highest_open_file_limit, open_file_limit

    hard = highest_open_file_limit()
    return Descriptors(open_file_limit(), hard, stage_need().clients_within(hard))


def _memory() -> Memory:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts = dict(_memory_lines())
    available = facts.get("MemAvailable", total)
    limit = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.is_file() else "max"
    allowed = int(limit) if limit.isdecimal() else total
    affinity = getattr(os, "sched_getaffinity", None)
    num_cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    return Memory(min(total, allowed), min(available, allowed), num_cpus)


def _memory_lines() -> Iterator[tuple[str, int]]:
    """Of Linux, in bytes."""
    path = Path("/proc/meminfo")
    for line in path.read_text().splitlines() if path.is_file() else ():
        name, _, value = line.partition(":")
        yield name, 1024 * int(value.split()[0])
