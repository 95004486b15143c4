"""The tiny random model that comes with the package, so that a test of a cluster need not fetch one."""

from __future__ import annotations

from pathlib import Path

TINY_MODEL = "tiny-random"


def tiny_model_path() -> Path:
    """Where it lies; `tests/support/tiny_model.py` has made it."""
    return Path(__file__).with_name(f"{TINY_MODEL}.gguf")
