"""A small HTTP server for Prometheus: some pages on loopback, on one thread, bounded in connections, bytes, time."""

from __future__ import annotations

import json
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

log = logging.getLogger("stagewire.monitoring")

MAX_CONNECTIONS = 16
DEADLINE_S = 5.0
MAX_REQUEST_BYTES = 8192
HOST = "127.0.0.1"
_READ_BYTES = 4096
_NO_DESCRIPTOR_S = 0.1


@dataclass(frozen=True, slots=True)
class Page:
    """What is served under a path; `body` makes it anew for each request, on the endpoint's thread."""

    content_type: str
    body: Callable[[], bytes]


def identity(process: str, **told: str) -> Page:
    """What `/` says: which process this is, so that whoever takes this port for another can be told."""
    body = json.dumps({"stagewire": process} | told).encode()
    return Page("application/json", lambda: body)


@dataclass(slots=True, eq=False)
class _Connection:
    socket: socket.socket
    deadline: float
    request: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None


class MetricsEndpoint:
    """Bound from its construction, so that its address can be told; it answers once `serve` is called.

    Port 0 takes a free one. At most `MAX_CONNECTIONS` are open, each for `DEADLINE_S` at most; others wait in the
    system's queue meanwhile.

    Raises:
        OSError: on construction, the port cannot be bound; nothing is left open.
    """

    def __init__(self, port: int) -> None:
        self._pages: Mapping[str, Page] = {}
        self._listener = socket.create_server((HOST, port), backlog=MAX_CONNECTIONS)
        self._listener.setblocking(False)
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._connections: set[_Connection] = set()
        self._is_listening = True
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)

    @property
    def address(self) -> str:
        """`host:port`, as Prometheus writes a target."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def serve(self, pages: Mapping[str, Page]) -> None:
        """Answer with `pages` by path, until it is closed."""
        self._pages = pages
        self._thread.start()

    def close(self) -> None:
        """Stop answering, in bounded time."""
        self._wake.close()
        if self._thread.ident is None:
            self._close_all()
        else:
            self._thread.join(timeout=DEADLINE_S)

    def __enter__(self) -> MetricsEndpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the thread ---

    def _serve(self) -> None:
        is_open = True
        while is_open:
            for key, _ in self._selector.select(self._wait_s()):
                if key.fileobj is self._woken:
                    is_open = False
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._go_on(key.data)
            self._drop_overdue(time.monotonic())
            self._listen(len(self._connections) < MAX_CONNECTIONS)
        self._close_all()

    def _wait_s(self) -> float | None:
        deadline = min((one.deadline for one in self._connections), default=None)
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def _listen(self, wanted: bool) -> None:
        """Beyond the limit nobody is let in until somebody has left."""
        if wanted != self._is_listening:
            self._is_listening = wanted
            if wanted:
                self._selector.register(self._listener, selectors.EVENT_READ)
            else:
                self._selector.unregister(self._listener)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            return  # whoever it was has left again
        except OSError:
            time.sleep(_NO_DESCRIPTOR_S)  # the process has none left: do not spin on it
            return
        accepted.setblocking(False)
        connection = _Connection(accepted, time.monotonic() + DEADLINE_S)
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _go_on(self, connection: _Connection) -> None:
        try:
            is_done = self._send(connection) if connection.answer is not None else self._read(connection)
        except BlockingIOError:
            return
        except OSError:
            is_done = True
        if is_done:
            self._drop(connection)

    def _read(self, connection: _Connection) -> bool:
        received = connection.socket.recv(_READ_BYTES)
        connection.request += received
        is_whole = b"\r\n\r\n" in connection.request
        if not is_whole and received and len(connection.request) <= MAX_REQUEST_BYTES:
            return False
        if not received:
            return True
        connection.answer = memoryview(self._answer(bytes(connection.request)) if is_whole else _TOO_LARGE)
        self._selector.modify(connection.socket, selectors.EVENT_WRITE, connection)
        return False

    def _send(self, connection: _Connection) -> bool:
        assert connection.answer is not None
        connection.answer = connection.answer[connection.socket.send(connection.answer) :]
        return not connection.answer

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        page = self._pages.get(path)
        if method not in {"GET", "HEAD"}:
            return _response("405 Method Not Allowed", "text/plain", b"only GET is served here\n")
        if page is None:
            return _response("404 Not Found", "text/plain", f"served are: {', '.join(self._pages)}\n".encode())
        try:
            return _response("200 OK", page.content_type, page.body(), is_head=method == "HEAD")
        except Exception:
            # Whatever a page raises, the next scrape shall find the endpoint, and nobody else shall notice.
            log.exception("event=page_failed path=%s", path)
            return _response("500 Internal Server Error", "text/plain", b"see the log of this process\n")

    # --- the end of a connection ---

    def _drop(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _drop_overdue(self, now: float) -> None:
        for connection in [one for one in self._connections if one.deadline <= now]:
            self._drop(connection)

    def _close_all(self) -> None:
        for connection in list(self._connections):
            self._drop(connection)
        self._selector.close()
        for one in (self._listener, self._woken):
            one.close()


def _response(status: str, content_type: str, body: bytes, is_head: bool = False) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (b"" if is_head else body)


_TOO_LARGE = _response("431 Request Header Fields Too Large", "text/plain", b"the request's head is too long\n")
