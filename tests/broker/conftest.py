"""A running broker, and the sockets of its peers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.broker_sockets import Sockets
from support.running_broker import FAST, RunningBroker


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    sockets = Sockets()
    yield sockets
    sockets.close()


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    broker = RunningBroker(FAST)
    yield broker
    broker.stop()
