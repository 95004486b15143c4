"""What people write for an address is understood in every form, or refused with the part that is wrong."""

from __future__ import annotations

import pytest

from stagewire.wire.address import Address, bound, dialled
from stagewire.wire.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("7170", "tcp://127.0.0.1:7170"),
        (":7170", "tcp://127.0.0.1:7170"),
        ("host:7170", "tcp://host:7170"),
        ("tcp://host:7170", "tcp://host:7170"),
        ("TCP://host:7170/", "tcp://host:7170"),
        (" 10.1.2.3:1 ", "tcp://10.1.2.3:1"),
        ("[::1]:7170", "tcp://[::1]:7170"),
        ("tcp://[fe80::1%eth0]:65535", "tcp://[fe80::1%eth0]:65535"),
        ("gpu-3.rack_2.example.:80", "tcp://gpu-3.rack_2.example.:80"),
    ],
)
def test_an_address_to_dial_is_understood(text: str, endpoint: str) -> None:
    assert dialled(text, "endpoint").endpoint == endpoint
    assert dialled(endpoint, "endpoint").endpoint == endpoint, "what it says is read as the same"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the port is missing"),
        ("localhost", "the port is missing"),
        ("tcp://localhost", "the port is missing"),
        ("0", "the port must be a number"),
        ("70000", "from 1 to 65535"),
        ("host:*", "* is for who listens"),
        ("host:seven", "from 1 to 65535"),
        ("host:\u0667\u0660", "from 1 to 65535"),
        ("*:7070", "expected PORT, HOST:PORT"),
        ("two words:7070", "expected PORT, HOST:PORT"),
        ("user@host:7070", "expected PORT, HOST:PORT"),
        ("::1:7070", "in brackets, as in [::1]:7070"),
        ("[::1:7070", "no IPv6 address"),
        ("[127.0.0.1]:7070", "no IPv6 address"),
        ("[::g]:7070", "no IPv6 address"),
        ("256.0.0.1:7070", "256.0.0.1 is no IPv4 address"),
        ("127.1:7070", "127.1 is no IPv4 address"),
        ("http://host:7070", "only tcp://"),
        ("ipc:///tmp/broker", "only tcp://"),
        ("tcp://a:1;tcp://b:2", "only tcp://"),
        ("host:70\x1b[2J", "expected PORT"),
        ("h" * 400 + ":1", "expected PORT"),
    ],
)
def test_what_is_none_is_refused_with_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        dialled(text, "endpoint")
    assert words in caught.value.detail
    assert caught.value.detail.startswith("endpoint=")
    assert caught.value.detail.isprintable() and len(caught.value.detail) < 250


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("*", Address("127.0.0.1", None)),
        ("0", Address("127.0.0.1", None)),
        ("localhost:7070", Address("127.0.0.1", 7070)),
        ("[::1]:*", Address("::1", None)),
        ("tcp://10.0.0.1:0", Address("10.0.0.1", None)),
    ],
)
def test_who_listens_may_take_a_free_port(text: str, address: Address) -> None:
    """`localhost` is one address here: who dials it gets there, whatever else the name means."""
    assert bound(text, "bind") == address


@pytest.mark.parametrize("text", ["myhost:7070", "tcp://broker.example:*", "*:7070"])
def test_who_listens_must_name_an_ip_address(text: str) -> None:
    with pytest.raises(SettingsError, match="bind="):
        bound(text, "bind")


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.9.8.7", True), ("::1", True), ("localhost", True), ("10.0.0.1", False),
     ("::", False), ("0.0.0.0", False), ("localhost.example", False)],
)  # fmt: skip
def test_this_machines_own_addresses_are_told_from_others(host: str, is_loopback: bool) -> None:
    assert Address(host, 1).is_loopback is is_loopback
