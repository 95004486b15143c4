"""Picks the native kernels that this processor can run. All of them compute the same bits; only speed differs."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from types import ModuleType

from stagewire.stage.compute.operators import BLOCK_SIZE
from stagewire.stage.native.matrix import BLOCK, PANEL
from stagewire.wire.errors import SettingsError

LAYOUT_VERSION = 1
"""Of what a kernel is told of a model; see stage/native/src/description.h."""

VARIANTS = ("amx", "avx512", "avx2", "portable")
"""From the fastest to the plainest, which is the specification."""
_ENVIRONMENT = "STAGEWIRE_KERNEL"
_AGREED = {"LAYOUT_VERSION": LAYOUT_VERSION, "KV_BLOCK": BLOCK_SIZE, "PANEL": PANEL, "BLOCK": BLOCK}
"""What both sides take for granted of the memory that they share."""


def load_kernel(name: str) -> ModuleType:
    """Imports one variant.

    Raises:
        ImportError: it was not built, or this processor cannot run it.
        SettingsError: it was built from other sources than these.
    """
    if name not in runnable_variants():
        raise ImportError(f"this processor cannot run the {name} kernels")
    kernel = importlib.import_module(f"stagewire.stage.native._{name}")
    check_layout(name, kernel)
    return kernel


def check_layout(name: str, kernel: ModuleType) -> None:
    """Raises SettingsError if these kernels read memory in another way than this package lays it out."""
    found = {key: getattr(kernel, key, None) for key in _AGREED}
    if found != _AGREED:
        raise SettingsError(
            f"the {name} kernels were built from other sources ({found}, here {_AGREED}): build or install again"
        )


def runnable_variants() -> Sequence[str]:
    """Names of the variants that are built and that this processor can run, the fastest first; none without a build."""
    try:
        portable = importlib.import_module("stagewire.stage.native._portable")
    except ImportError:
        return ()
    supported = portable.supported()
    return tuple(name for name in VARIANTS if name in supported and _is_built(name))


def best_kernel() -> tuple[str, ModuleType] | None:
    """The fastest variant and its name, None where none was built; STAGEWIRE_KERNEL names another one.

    Raises:
        SettingsError: the environment names a variant that cannot be had.
    """
    wanted = os.environ.get(_ENVIRONMENT)
    variants = runnable_variants()
    if wanted and wanted not in variants:
        raise SettingsError(f"{_ENVIRONMENT}={wanted!r}: to be had here are {', '.join(variants) or 'none'}")
    if not variants:
        return None
    name = wanted or variants[0]
    return name, load_kernel(name)


def _is_built(name: str) -> bool:
    return importlib.util.find_spec(f"stagewire.stage.native._{name}") is not None
