"""What was measured on and with: the processor, and the versions of what took part. No names of hosts or people."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("stagewire", "llama-cpp-python", "numpy", "torch", "pyzmq")
_CPUINFO = Path("/proc/cpuinfo")


def machine_description() -> str:
    """Model and number of processors."""
    return f"{_processor()}, {os.cpu_count()} CPUs"


def _processor() -> str:
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def versions(llama_system_info: str | None) -> dict[str, str]:
    """By package; `llama.cpp` is what its library says it was built for."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if llama_system_info is not None:
        found["llama.cpp"] = llama_system_info
    return found
