"""The file in which a started process says that it is ready, and where it listens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def announce(path: Path, facts: Mapping[str, str]) -> None:
    """Writes `facts` as JSON. A reader sees the whole file or none."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(dict(facts)), encoding="utf-8")
    partial.replace(path)


def read_announcement(path: Path) -> dict[str, str] | None:
    """What the process announced, or None as long as it has not."""
    try:
        return {str(key): str(value) for key, value in json.loads(path.read_text(encoding="utf-8")).items()}
    except FileNotFoundError:
        return None
