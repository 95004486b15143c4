"""Fixtures that several test modules share: the default model's file, fetched once into the user's cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stagewire.model.catalogue import DEFAULT_MODEL, resolve
from stagewire.model.gguf import GgufFile


@pytest.fixture(scope="session")
def model_path() -> Path:
    return resolve(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def gguf_file(model_path: Path) -> Iterator[GgufFile]:
    with GgufFile.open(model_path) as gguf:
        yield gguf
