"""What answers at an address is recognized: real listeners of each kind, and names that lead nowhere."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import zmq
from support.running_broker import FAST, RunningBroker

from stagewire.monitoring.endpoint import MetricsEndpoint, identity
from stagewire.sockets.probe import PROBE_S, probe_within
from stagewire.wire.address import Address, dialled
from stagewire.wire.answering import Found, Kind

pytestmark = pytest.mark.timeout(60)


@contextmanager
def bound(kind: int, host: str = "127.0.0.1") -> Iterator[Address]:
    with zmq.Context() as context, context.socket(kind) as listener:
        listener.set(zmq.IPV6, int(":" in host))
        listener.bind(f"tcp://{host}:*")
        yield dialled(listener.get_string(zmq.LAST_ENDPOINT), "endpoint")


@contextmanager
def answering(say: Callable[[socket.socket], object]) -> Iterator[Address]:
    """A server of one connection, to which `say` is told."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as open_:

        def serve() -> None:
            connection = open_.enter_context(server.accept()[0])
            say(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address(*server.getsockname())
        thread.join(5)


def web_page(body: bytes) -> Callable[[socket.socket], object]:
    def say(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)
        connection.shutdown(socket.SHUT_WR)

    return say


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (zmq.ROUTER, Kind.BROKER),
        (zmq.PULL, Kind.STAGE_DATA),
        (zmq.PAIR, Kind.CLIENT_RETURN),
        (zmq.PUB, Kind.STRANGER),
    ],
)
def test_a_socket_says_of_which_kind_it_is(kind: int, found: Kind) -> None:
    with bound(kind) as address:
        assert probe_within(address, 5).kind is found


def test_ipv6_is_dialled_where_it_is_written() -> None:
    with bound(zmq.ROUTER, "[::1]") as address:
        assert address.host == "::1"
        assert probe_within(address, 5).kind is Kind.BROKER


def test_a_brokers_metrics_port_tells_its_other_ports() -> None:
    broker = RunningBroker(FAST)
    try:
        ends = broker.endpoints
        found = probe_within(dialled(ends.metrics, "endpoint"), 5)
        assert found == Found(Kind.BROKER_METRICS, "", ends.frontend, ends.control)
    finally:
        broker.stop()


def test_a_stages_metrics_port_tells_its_name() -> None:
    with MetricsEndpoint(0) as endpoint:
        endpoint.serve({"/": identity("stage", stage_id="stage-7")})
        assert probe_within(dialled(endpoint.address, "endpoint"), 5) == Found(Kind.STAGE_METRICS, "stage-7")


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'{"stagewire": "pump"}', b'{"stagewire": []}', b""])
def test_any_other_web_server_is_one(body: bytes) -> None:
    with answering(web_page(body)) as address:
        assert probe_within(address, 5).kind is Kind.WEB_SERVER


def test_what_a_stranger_writes_cannot_forge_a_line() -> None:
    """Nor fill it: names of any length and kind come to nothing, or to a short text."""
    with answering(web_page(b'{"stagewire": "stage", "stage_id": "a\\nb", "frontend": 7}')) as address:
        assert probe_within(address, 5) == Found(Kind.STAGE_METRICS, "")


@pytest.mark.parametrize("words", [b"SSH-2.0-OpenSSH_9\r\n", b"220 mail\r\n", b"\x00\x01", b"\xff but no ZeroMQ"])
def test_who_speaks_another_protocol_is_a_stranger_or_silent(words: bytes) -> None:
    def say(connection: socket.socket) -> None:
        connection.sendall(words)
        connection.shutdown(socket.SHUT_WR)

    with answering(say) as address:
        assert probe_within(address, 5).kind in (Kind.STRANGER, Kind.SILENT)


@pytest.mark.parametrize("say", [lambda connection: time.sleep(3), lambda connection: connection.close()])
def test_who_says_nothing_is_silent_and_not_waited_for(say: Callable[[socket.socket], object]) -> None:
    with answering(say) as address:
        begun = time.monotonic()
        assert probe_within(address, PROBE_S + 0.5).kind is Kind.SILENT
        assert time.monotonic() - begun < PROBE_S + 1


def test_a_broker_that_speaks_late_is_no_stranger() -> None:
    """It has not accepted the connection in time, and then greets instead of answering like a web server."""

    def say(connection: socket.socket) -> None:
        time.sleep(0.8)
        connection.sendall(b"\xff" + bytes(8) + b"\x7f")

    with answering(say) as address:
        assert probe_within(address, 5).kind is Kind.SILENT


def test_a_port_that_nobody_holds_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address(*server.getsockname())
    assert probe_within(address, 5).kind is Kind.NO_LISTENER


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a..b.invalid", "x" * 70 + ".invalid", "nö.invalid"])
def test_a_name_that_does_not_resolve_is_one(name: str) -> None:
    found = probe_within(Address(name, 7070), 5)
    assert found.kind is Kind.NO_SUCH_NAME and found.detail


def test_a_look_up_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def look_up(*_ignored: object, **_also: object) -> object:
        released.wait(10)
        raise socket.gaierror(-3, "late")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    begun = time.monotonic()
    assert probe_within(Address("slow.example", 7070), 0.2) == Found(Kind.NO_SUCH_NAME, "no answer within 0.2 s")
    assert time.monotonic() - begun < 1.0
    released.set()


def test_a_name_with_ipv6_addresses_only_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeroMQ would look for an IPv4 address and find nothing."""
    infos = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::7", 7070, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_a, **_k: infos)
    assert probe_within(Address("new.example", 7070), 5) == Found(Kind.ONLY_IPV6, "fd00::7")
