"""Looks what answers at an address where no broker has: a name, a connection, a few bytes. It sends no message."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable

from stagewire.wire.address import Address
from stagewire.wire.answering import Found, Kind

PROBE_S = 1.5
"""A probe takes no longer, once the name is looked up."""
_SPEAKS_FIRST_S = 0.5
_MAX_BYTES = 8192
_MAX_CHARS = 200
# ZMTP 3.1, for a peer without security: signature, version, mechanism, not the server, filler.
_GREETING = b"\xff" + 8 * b"\x00" + b"\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\x00") + 32 * b"\x00"
_SOCKET_TYPE = b"Socket-Type"
_KINDS = {"ROUTER": Kind.BROKER, "PULL": Kind.STAGE_DATA, "PAIR": Kind.CLIENT_RETURN}


def probe_within(address: Address, timeout_s: float) -> Found:
    """What answers there; a look-up that takes longer than `timeout_s` counts as a name that does not resolve."""
    found: list[Found] = []
    thread = probe_aside(address, found.append)
    thread.join(timeout_s)
    if found:
        return found[0]
    return Found(Kind.NO_SUCH_NAME if address.is_name else Kind.SILENT, f"no answer within {timeout_s:g} s")


def probe_aside(address: Address, tell: Callable[[Found], None]) -> threading.Thread:
    """Probes on a thread of its own, since no system bounds how long a name is looked up, and tells what it found."""
    thread = threading.Thread(target=lambda: tell(_probe(address)), name="probe", daemon=True)
    thread.start()
    return thread


def _probe(address: Address) -> Found:
    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Found(Kind.NO_SUCH_NAME, _words(error))
    hosts = [(info[0], str(info[4][0])) for info in infos]
    wanted = socket.AF_INET6 if ":" in address.host else socket.AF_INET  # as ZeroMQ dials
    host = next((host for family, host in hosts if family == wanted), None)
    if host is None:
        return Found(Kind.ONLY_IPV6, hosts[0][1])
    assert address.port is not None
    deadline = time.monotonic() + PROBE_S
    try:
        with socket.create_connection((host, address.port), timeout=PROBE_S) as connection:
            return _listen(connection, str(address), deadline)
    except ConnectionRefusedError as error:
        return Found(Kind.NO_LISTENER, _words(error))
    except OSError as error:
        return Found(Kind.MACHINE_AWAY, _words(error))


def _listen(connection: socket.socket, host: str, deadline: float) -> Found:
    """A ZeroMQ peer speaks first, a web server only when it is asked."""
    try:
        first = _read(connection, 10, min(deadline, time.monotonic() + _SPEAKS_FIRST_S))
        if not first:
            question = f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            connection.sendall(question.encode("ascii", "replace"))
            return _of_page(_read(connection, _MAX_BYTES, deadline))
        if first[0] != 0xFF:
            return Found(Kind.STRANGER)
        connection.sendall(_GREETING)
        return _of_handshake(_read(connection, _MAX_BYTES, deadline, _SOCKET_TYPE))
    except OSError:  # it hung up
        return Found(Kind.SILENT)


def _read(connection: socket.socket, num_bytes: int, deadline: float, until: bytes | None = None) -> bytes:
    """At most `num_bytes`, or to what follows `until`, or to the end, or what has come by the deadline."""
    data = b""
    while len(data) < num_bytes and (left_s := deadline - time.monotonic()) > 0:
        connection.settimeout(left_s)
        try:
            part = connection.recv(num_bytes - len(data))
        except TimeoutError:
            break
        data += part
        if not part or (until and len(data.partition(until)[2]) > 4):
            break
    return data


def _of_handshake(data: bytes) -> Found:
    """A peer says in its READY command, unasked, of which kind its socket is."""
    _, name, rest = data.partition(_SOCKET_TYPE)
    if not name:
        return Found(Kind.SILENT)
    value = rest[4 : 4 + int.from_bytes(rest[:4], "big")].decode("latin-1")
    return Found(_KINDS.get(value, Kind.STRANGER))


def _of_page(answer: bytes) -> Found:
    """Metrics ports say at `/` whose they are."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.startswith(_GREETING[:1]):  # ZeroMQ after all, on a machine that is busy
        return Found(Kind.SILENT)
    if not head.startswith(b"HTTP/"):
        return Found(Kind.STRANGER if head else Kind.SILENT)
    try:
        told = json.loads(body)
    except ValueError:
        return Found(Kind.WEB_SERVER)
    process = told.get("stagewire") if isinstance(told, dict) else None
    kind = {"broker": Kind.BROKER_METRICS, "stage": Kind.STAGE_METRICS}.get(str(process))
    if kind is None:
        return Found(Kind.WEB_SERVER)
    stage_id, frontend, control = (_printable(told.get(name)) for name in ("stage_id", "frontend", "control"))
    return Found(kind, stage_id, frontend, control)


def _printable(value: object) -> str:
    """A stranger's text, fit for one line."""
    text = value if isinstance(value, str) else ""
    return text[:_MAX_CHARS] if text.isprintable() else ""


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
