"""What was measured on and with: the processor, and the versions of what took part. No names of hosts or people."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("stagewire", "llama-cpp-python", "numpy", "torch", "pyzmq")
_CPUINFO = Path("/proc/cpuinfo")
_ZEN: dict[str, tuple[tuple[str, str], ...]] = {
    "23": (("clwb", "Zen 2"), ("avx2", "Zen")),
    "25": (("avx512f", "Zen 4"), ("avx2", "Zen 3")),
    "26": (("avx512f", "Zen 5"),),
}
"""By AMD's family: a flag and what it tells, newest first."""
_INSTRUCTIONS = (("amx_int8", "AMX"), ("avx512_vnni", "AVX-512 VNNI"), ("avx512f", "AVX-512"), ("avx2", "AVX2"))
_NOISE = re.compile(r"\((r|tm)\)|\b(cpu|processor|\d+-core)\b|@ ?[\d.]+ ?GHz", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Processor:
    """`generation` tells apart what a virtual machine gives one bland name; empty where nothing tells."""

    name: str
    generation: str

    @property
    def slug(self) -> str:
        """Its name among files: `amd-epyc-zen-4`."""
        words = re.findall(r"[a-z0-9]+", _NOISE.sub(" ", f"{self.name} {self.generation}").lower())
        return "-".join(words) or "unknown"


def processor_of(cpuinfo: str, fallback: str) -> Processor:
    """From the text of `/proc/cpuinfo`; `fallback` is the name where that says none, as it does on ARM."""
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in cpuinfo.splitlines())}
    flags = set(fields.get("flags", "").split())
    is_amd = fields.get("vendor_id") == "AuthenticAMD"
    choices = _ZEN.get(fields.get("cpu family", ""), ()) if is_amd else _INSTRUCTIONS
    generation = next((label for flag, label in choices if flag in flags), "")
    return Processor(fields.get("model name", fallback), generation)


def this_processor() -> Processor:
    cpuinfo = _CPUINFO.read_text(encoding="utf-8") if _CPUINFO.exists() else ""
    return processor_of(cpuinfo, platform.processor() or platform.machine())


def machine_description() -> str:
    """Model and number of processors; the slug says the generation."""
    return f"{this_processor().name}, {os.cpu_count()} CPUs"


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
