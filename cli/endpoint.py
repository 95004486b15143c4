"""The flag of every command that talks to a running cluster, and the client that it names."""
# ruff: noqa: PLC0415  # imports wait until they are needed

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagewire.client import Client

_CONNECT_TIMEOUT_S = 3.0
DEFAULT_ENDPOINT = "tcp://127.0.0.1:7070"


def add_endpoint_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--endpoint", default=DEFAULT_ENDPOINT, help="the broker's frontend endpoint (default: %(default)s)"
    )


def connect(options: argparse.Namespace, client_id: str | None = None) -> Client:
    """The client; under a random name unless one is given."""
    from stagewire.client import Client, ClientSettings

    settings = ClientSettings(endpoint=options.endpoint, connect_timeout_s=_CONNECT_TIMEOUT_S)
    return Client(settings=replace(settings, client_id=client_id) if client_id else settings)
