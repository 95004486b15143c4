"""A broker and a tail's sockets for a client under test, each made anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.answers import CARD
from support.client_peers import CLIENT, Broker, Context, dispatched, tails_context

from stagewire.client import Client, ClientSettings


@pytest.fixture
def context() -> Iterator[Context]:
    with tails_context() as made:
        yield made


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker(card=CARD)
    made.on_generate = dispatched()
    yield made
    made.close()


@pytest.fixture
def settings(broker: Broker, tmp_path: Path) -> ClientSettings:
    return ClientSettings(endpoint=broker.endpoint, client_id=CLIENT, cache_folder=tmp_path)


@pytest.fixture
def client(settings: ClientSettings) -> Iterator[Client]:
    with Client(settings=settings) as made:
        yield made
