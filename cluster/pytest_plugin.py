"""The pytest plugin: a fixture with a running cluster of the tiny model; nothing is loaded until a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stagewire.cluster.local import LocalCluster


@pytest.fixture(scope="session")
def stagewire_cluster() -> Iterator[LocalCluster]:
    """A cluster of real processes, a broker and two stages, with the tiny random model that comes with the package.

    One for the whole session, started when a test first asks for it: a test that hurts it sees that it serves again.
    """
    from stagewire.cluster.local import LocalCluster  # noqa: PLC0415  # most sessions never need it
    from stagewire.model.shipped import TINY_MODEL  # noqa: PLC0415

    with LocalCluster(TINY_MODEL, stages=2) as cluster:
        yield cluster
