"""The flag of every command that talks to a running cluster, and the client that it names."""
# ruff: noqa: PLC0415  # imports wait until they are needed

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from stagewire.wire.address import ENDPOINT_VARIABLE, FRONTEND_PORT

if TYPE_CHECKING:
    from stagewire.client import Client

_CONNECT_TIMEOUT_S = 3.0


def add_endpoint_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--endpoint",
        metavar="ADDRESS",
        help="where the broker serves clients, as 7070, host:7070 or tcp://host:7070 "
        f"(default: ${ENDPOINT_VARIABLE}, else {FRONTEND_PORT})",
    )


def connect(options: argparse.Namespace, client_id: str | None = None) -> Client:
    """The client; under a random name unless one is given."""
    from stagewire.client import Client, ClientSettings
    from stagewire.client.settings import default_endpoint

    endpoint = default_endpoint() if options.endpoint is None else options.endpoint
    settings = ClientSettings(connect_timeout_s=_CONNECT_TIMEOUT_S, endpoint=endpoint)
    return Client(settings=replace(settings, client_id=client_id) if client_id else settings)
