"""The endpoint that Prometheus reads: it answers, it is bounded, and nobody can hold it up."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.error
from collections.abc import Iterator

import pytest
from support.watching import fetch, series_of

from stagewire.monitoring import endpoint as module
from stagewire.monitoring.distribution import Distribution
from stagewire.monitoring.endpoint import MAX_CONNECTIONS, MetricsEndpoint, Page
from stagewire.monitoring.exposition import CONTENT_TYPE, Exposition
from stagewire.monitoring.metric import Kind, Metric, Sample, Source

pytestmark = pytest.mark.timeout(60)

COUNTER = Metric("toy_total", Kind.COUNTER, Source.STAGE, "things", "Things.", ("colour",))
HISTOGRAM = Metric("toy_seconds", Kind.HISTOGRAM, Source.STAGE, "seconds", "Times.", (), (0.1, 1))


def broken() -> bytes:
    raise ValueError("as it happens")


@pytest.fixture
def endpoint() -> Iterator[MetricsEndpoint]:
    pages = {"/metrics": Page(CONTENT_TYPE, lambda: b"x 1\n"), "/broken": Page("text/plain", broken)}
    with MetricsEndpoint(0) as serving:
        serving.serve(pages)
        yield serving


def connect(endpoint: MetricsEndpoint) -> socket.socket:
    host, _, port = endpoint.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def say(endpoint: MetricsEndpoint, request: bytes) -> bytes:
    """All that the endpoint answers to these bytes, until it hangs up."""
    with connect(endpoint) as connected:
        connected.sendall(request)
        answer = b""
        while received := connected.recv(4096):
            answer += received
        return answer


def test_a_page_is_served_under_its_path_whatever_is_asked_behind_it(endpoint: MetricsEndpoint) -> None:
    assert fetch(endpoint.address, "/metrics") == fetch(endpoint.address, "/metrics?name=x") == "x 1\n"


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /nothing HTTP/1.1", b"404"),
        (b"POST /metrics HTTP/1.1", b"405"),
        (b"\xff\xfe", b"405"),
        (b"GET /broken HTTP/1.1", b"500"),
        (b"GET /metrics HTTP/1.0", b"200"),
    ],
)
def test_what_cannot_be_served_is_answered_and_the_next_is_served(
    endpoint: MetricsEndpoint, request_line: bytes, status: bytes
) -> None:
    assert say(endpoint, request_line + b"\r\n\r\n").split()[1] == status
    assert fetch(endpoint.address, "/metrics") == "x 1\n"


def test_a_head_request_gets_the_length_and_no_body(endpoint: MetricsEndpoint) -> None:
    answer = say(endpoint, b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"Content-Length: 4\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_a_request_that_never_ends_is_cut_off(endpoint: MetricsEndpoint) -> None:
    """By its length."""
    assert say(endpoint, b"GET /metrics HTTP/1.1\r\nX: " + b"y" * module.MAX_REQUEST_BYTES).split()[1] == b"431"


def test_silent_connections_hold_up_others_no_longer_than_the_deadline(
    endpoint: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than may be open at a time: whoever comes next waits in the system's queue, and is served then."""
    monkeypatch.setattr(module, "DEADLINE_S", 0.5)
    silent = [connect(endpoint) for _ in range(MAX_CONNECTIONS)]
    started = time.monotonic()
    assert fetch(endpoint.address, "/metrics") == "x 1\n"
    assert time.monotonic() - started < 5
    for one in silent:
        assert one.recv(1) == b""
        one.close()


def test_a_slow_reader_of_a_long_page_is_dropped_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else waits for it meanwhile."""
    monkeypatch.setattr(module, "DEADLINE_S", 0.5)
    with MetricsEndpoint(0) as serving:
        serving.serve({"/long": Page("text/plain", lambda: b"x" * (64 << 20)), "/": Page("text/plain", lambda: b"y")})
        with connect(serving) as slow:
            slow.sendall(b"GET /long HTTP/1.1\r\n\r\n")
            assert slow.recv(1) == b"H"
            assert fetch(serving.address, "/") == "y"
            time.sleep(1)
            num_bytes = 0
            with contextlib.suppress(ConnectionResetError):
                while received := slow.recv(1 << 20):
                    num_bytes += len(received)
            assert num_bytes < 64 << 20


def test_it_ends_at_once_and_frees_its_port(endpoint: MetricsEndpoint) -> None:
    """Also while somebody is connected; the thread is gone."""
    idle = connect(endpoint)
    address = endpoint.address
    started = time.monotonic()
    endpoint.close()
    assert time.monotonic() - started < 2
    assert not any(thread.name == "metrics" for thread in threading.enumerate())
    with pytest.raises((ConnectionRefusedError, urllib.error.URLError)):
        fetch(address, "/metrics")
    idle.close()


def test_a_port_that_is_taken_is_refused_and_one_that_never_served_closes(endpoint: MetricsEndpoint) -> None:
    port = int(endpoint.address.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        MetricsEndpoint(port)
    MetricsEndpoint(0).close()


# --- the text ---


def test_samples_become_the_text_that_prometheus_reads() -> None:
    """Counters by label, and a histogram's cumulative buckets, count and sum."""
    times = HISTOGRAM.distribution()
    for seconds in (0.05, 0.1, 0.5, 7):
        times.observe(seconds)
    samples = [Sample(COUNTER, ("red",), 3), Sample(COUNTER, ('bl"ue',), 0), Sample(HISTOGRAM, (), times)]
    page = Exposition(lambda: samples).page().decode()
    found = {name: value for name, value in series_of(page).items() if name.startswith("toy")}
    assert found == {
        'toy_total{colour="red"}': 3,
        'toy_total{colour="bl\\"ue"}': 0,
        'toy_seconds_bucket{le="0.1"}': 2,
        'toy_seconds_bucket{le="1.0"}': 3,
        'toy_seconds_bucket{le="+Inf"}': 4,
        "toy_seconds_count": 4,
        "toy_seconds_sum": 7.65,
    }
    assert "# TYPE toy_total counter\n" in page
    assert "# HELP toy_seconds Times.\n" in page
    assert "process_cpu_seconds_total" in page


def test_a_page_is_made_anew_for_each_reader() -> None:
    counts = iter([1, 2])
    exposition = Exposition(lambda: [Sample(COUNTER, ("red",), next(counts))])
    assert [series_of(exposition.page().decode())['toy_total{colour="red"}'] for _ in range(2)] == [1, 2]


def test_a_distribution_counts_a_value_at_a_bound_below_it() -> None:
    times = Distribution((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 3.0):
        times.observe(value)
    assert times.cumulative() == [2, 4, 5]
    assert (times.count, times.total) == (5, 7.5)


def test_a_broken_page_says_so_in_the_log(endpoint: MetricsEndpoint, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(urllib.error.HTTPError, match="500"):
        fetch(endpoint.address, "/broken")
    assert "path=/broken" in caplog.text


def test_pages_of_json_come_with_their_type() -> None:
    """Prometheus takes a list of targets only as application/json."""
    with MetricsEndpoint(0) as serving:
        serving.serve({"/sd": Page("application/json", lambda: json.dumps([]).encode())})
        assert b"Content-Type: application/json\r\n" in say(serving, b"GET /sd HTTP/1.1\r\n\r\n")
