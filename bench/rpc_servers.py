"""llama.cpp's own split: RPC servers of one thread each on loopback, started and always ended."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_START_S = 20.0
_END_S = 5.0
_POLL_S = 0.1


class RpcServerError(Exception):
    """A server did not start; the message says what it wrote."""


@contextlib.contextmanager
def rpc_servers(count: int, threads: int) -> Iterator[tuple[str, ...]]:
    """Yields the endpoints of `count` running servers.

    Raises:
        RpcServerError: one ended, as it does where llama.cpp was built without RPC; none is left running.
    """
    ports = [_free_port() for _ in range(count)]
    servers: list[subprocess.Popen[str]] = []
    try:
        for port in ports:
            command = [sys.executable, "-m", "bench.llama_rpc_server", str(port), str(threads)]
            servers.append(
                subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            )
        for port, server in zip(ports, servers, strict=True):
            _wait_until_listening(port, server)
        yield tuple(f"127.0.0.1:{port}" for port in ports)
    finally:
        for server in servers:
            server.kill()
            server.wait(_END_S)
            assert server.stderr is not None
            server.stderr.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_listening(port: int, server: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            assert server.stderr is not None
            last_line = (server.stderr.read().strip().splitlines() or ["nothing"])[-1]
            raise RpcServerError(f"an RPC server of llama.cpp ended; it said: {last_line}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(_POLL_S)
    raise RpcServerError(f"an RPC server of llama.cpp did not listen within {_START_S:g} s")
