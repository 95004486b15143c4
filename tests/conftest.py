"""What all tests share: the default model's file, fetched once into the user's cache, and turns among workers."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from support.turns import turn

from stagewire.model.catalogue import DEFAULT_MODEL, resolve
from stagewire.model.gguf import GgufFile


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Before the clock of its timeout starts, a test of several workers waits for its turn."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    # The folder above a worker's own is the run's, in which all its workers meet.
    with turn(Path(item.config.getoption("basetemp")).parent, alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.fixture(scope="session")
def model_path() -> Path:
    return resolve(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def gguf_file(model_path: Path) -> Iterator[GgufFile]:
    with GgufFile.open(model_path) as gguf:
        yield gguf
