"""What can be installed besides the base, and what to type where a part of it is missing."""

from __future__ import annotations

EXTRAS: dict[str, tuple[str, ...]] = {
    "text": ("tokenizers", "jinja2"),
    "native": ("gguf", "safetensors"),
    "stage": ("torch", "gguf", "safetensors"),
    "cli": ("rich",),
}
"""Extra by extra, the packages that it brings, as they are imported; of several the first one is advised."""


def install_command(extra: str) -> str:
    """What to type for an extra."""
    return f"pip install 'stagewire[{extra}]'"


def explained(error: ModuleNotFoundError) -> str | None:
    """What to install where an import of an extra's package failed; None if the package is of no extra."""
    package = (error.name or "").partition(".")[0]
    extra = next((name for name, packages in EXTRAS.items() if package in packages), None)
    return extra and f"this needs the Python package {package}: {install_command(extra)}"
