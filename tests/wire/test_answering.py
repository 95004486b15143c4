"""What is said of what was found where a broker was expected."""

from __future__ import annotations

import pytest

from stagewire.wire.address import Address
from stagewire.wire.answering import Found, Kind, Wanted, circumstance, mistake, occupant

HERE = Address("127.0.0.1", 9100)
CLIENTS = "clients use the broker's frontend port, 7070 unless it was told another"
STAGES = "stages use the broker's control port, 7071 unless it was told another"


@pytest.mark.parametrize(
    ("found", "wanted", "words"),
    [
        (
            Found(Kind.BROKER_METRICS, "", "tcp://127.0.0.1:7170", "tcp://127.0.0.1:7171"), Wanted.FRONTEND,
            "127.0.0.1:9100 is the broker's metrics port; clients use 127.0.0.1:7170",
        ),
        (
            Found(Kind.BROKER_METRICS, "", "tcp://127.0.0.1:7170", "tcp://127.0.0.1:7171"), Wanted.CONTROL,
            "127.0.0.1:9100 is the broker's metrics port; stages use 127.0.0.1:7171",
        ),
        (
            Found(Kind.STAGE_METRICS, "stage-3"), Wanted.FRONTEND,
            "127.0.0.1:9100 is the metrics port of stage-3; " + CLIENTS,
        ),
        (
            Found(Kind.STAGE_DATA), Wanted.CONTROL,
            "127.0.0.1:9100 is a stage's data port, for its neighbours; " + STAGES,
        ),
    ],
)  # fmt: skip
def test_a_wrong_port_is_named_with_the_right_one(found: Found, wanted: Wanted, words: str) -> None:
    assert mistake(found, HERE, wanted) == words
    assert circumstance(found) == ""


def test_a_name_is_named_with_what_to_write_instead() -> None:
    name = Address("gpu-7", 7070)
    unknown = mistake(Found(Kind.NO_SUCH_NAME, "Name or service not known"), name, Wanted.FRONTEND)
    assert unknown == "the name gpu-7 does not resolve (Name or service not known); check it, or write an IP address"
    only_new = mistake(Found(Kind.ONLY_IPV6, "fd00::7"), name, Wanted.FRONTEND)
    assert only_new == "gpu-7 has no IPv4 address; write tcp://[fd00::7]:7070"


@pytest.mark.parametrize("kind", [Kind.NO_LISTENER, Kind.MACHINE_AWAY, Kind.SILENT, Kind.BROKER])
def test_what_may_change_by_itself_is_no_mistake(kind: Kind) -> None:
    assert mistake(Found(kind), HERE, Wanted.FRONTEND) is None
    assert circumstance(Found(kind)) != ""


def test_every_kind_is_either_a_mistake_or_a_circumstance() -> None:
    for kind in Kind:
        assert (mistake(Found(kind), HERE, Wanted.FRONTEND) is None) == (circumstance(Found(kind)) != "")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Kind.BROKER, "a Stagewire broker"),
        (Kind.STAGE_DATA, "a Stagewire process (a stage's data port, for its neighbours)"),
        (Kind.BROKER_METRICS, "a Stagewire process (the broker's metrics port)"),
        (Kind.WEB_SERVER, "another program"),
        (Kind.SILENT, "another program"),
    ],
)
def test_who_holds_a_port_is_named(kind: Kind, words: str) -> None:
    assert occupant(Found(kind)) == words
