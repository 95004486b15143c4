"""What a cluster lacks is named before anything starts: a port, what for, and who has it; a package, and its extra."""

from __future__ import annotations

import re
import socket
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from support.running_broker import FAST, RunningBroker

from stagewire.cli.main import main
from stagewire.cluster import resources
from stagewire.cluster.local import LocalCluster
from stagewire.cluster.resources import check_ports, fixed_ports
from stagewire.cluster.spec import BrokerSpec
from stagewire.wire.errors import ClusterError, ErrorCode, SettingsError
from stagewire.wire.extras import EXTRAS, explained, install_command

Capture = pytest.CaptureFixture[str]
FREE = "tcp://127.0.0.1:*"


def three_free_ports() -> int:
    """The first of three in a row that nobody holds now."""
    for first in range(21_000, 60_000, 97):
        try:
            for port in range(first, first + 3):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no three free ports")


def test_ports_that_the_broker_chooses_are_no_concern() -> None:
    assert fixed_ports(BrokerSpec()) == ()
    assert fixed_ports(BrokerSpec(metrics_port="off")) == ()
    assert [use.address.port for use in fixed_ports(BrokerSpec(frontend_endpoint="7170", metrics_port=7172))] == [
        7170,
        7172,
    ]


@pytest.mark.parametrize(
    ("offset", "purpose"), [(0, "where clients connect"), (1, "where stages connect"), (2, "for its metrics")]
)
def test_up_names_the_port_and_what_for_and_starts_nothing(offset: int, purpose: str, capsys: Capture) -> None:
    first = three_free_ports()
    with socket.create_server(("127.0.0.1", first + offset)):
        begun = time.monotonic()
        assert main(["up", "--frontend-port", str(first), "--model", "no-such-model"]) == 2
        assert time.monotonic() - begun < 8
    told = capsys.readouterr()
    assert f"error: port {first + offset}, {purpose}, is taken by another program" in told.err
    assert "--frontend-port" in told.err
    assert "no-such-model" not in told.err + told.out, "the model was looked for first"
    assert psutil.Process().children() == []


def test_a_broker_that_runs_already_is_recognized_with_all_its_ports() -> None:
    broker = RunningBroker(FAST)
    try:
        ends = broker.endpoints
        metrics_port = int(ends.metrics.rpartition(":")[2])
        with pytest.raises(SettingsError) as caught:
            check_ports(BrokerSpec(frontend_endpoint=ends.frontend, control_endpoint=FREE, metrics_port=metrics_port))
    finally:
        broker.stop()
    assert caught.value.code is ErrorCode.PORT_IN_USE
    frontend_port = ends.frontend.rpartition(":")[2]
    assert caught.value.detail == (
        f"port {frontend_port}, where clients connect, is taken by a Stagewire broker; "
        f"port {metrics_port}, for its metrics, is taken by a Stagewire process (the broker's metrics port)"
    )


def test_a_port_that_has_just_been_left_can_be_had() -> None:
    """Its last connections may linger for a minute; they are in nobody's way."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()
    check_ports(BrokerSpec(frontend_endpoint=f"127.0.0.1:{port}"))


def test_ipv6_ports_are_looked_at_where_they_are() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        check_ports(BrokerSpec(frontend_endpoint=f"127.0.0.1:{port}"))
        with pytest.raises(SettingsError, match=f"port {port}, where clients connect, is taken"):
            check_ports(BrokerSpec(frontend_endpoint=f"[::1]:{port}"))


# --- packages ---


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        ({"gguf"}, "stages need the Python packages gguf: pip install 'stagewire[native]'"),
        ({"safetensors"}, "stages need the Python packages safetensors: pip install 'stagewire[native]'"),
        ({"gguf", "safetensors"}, "stages need the Python packages gguf and safetensors: pip install"),
    ],
)
def test_what_stages_lack_is_said_before_a_model_is_fetched(
    absent: set[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    real = find_spec
    monkeypatch.setattr(resources, "find_spec", lambda name: None if name in absent else real(name))
    with pytest.raises(ClusterError) as refused:
        LocalCluster("no-such-model")
    assert refused.value.detail.startswith(words)
    assert main(["up", "--frontend-port", "0", "--model", "no-such-model"]) == 1
    assert words in capsys.readouterr().err


def test_the_extras_are_those_of_the_project() -> None:
    """What the command advises brings what it says."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    for extra, packages in EXTRAS.items():
        block = re.search(rf"^{extra} = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
        assert block
        assert set(re.findall(r'^    "([\w-]+)', block[1], re.MULTILINE)) == set(packages), extra
    assert install_command("text") == "pip install 'stagewire[text]'"


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("torch.nn", "this needs the Python package torch: pip install 'stagewire[stage]'"),
        ("rich.live", "this needs the Python package rich: pip install 'stagewire[cli]'"),
        ("gguf", "this needs the Python package gguf: pip install 'stagewire[native]'"),
        ("stagewire.mistyped", None),
    ],
)
def test_a_failed_import_is_explained_where_an_extra_has_it(module: str, words: str | None) -> None:
    assert explained(ModuleNotFoundError("...", name=module)) == words
