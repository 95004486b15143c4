"""A client that nobody greets looks why: a wrong address ends the wait, everything else explains it."""

from __future__ import annotations

import pytest
from support.client_core import GENERATE, SETTINGS, Client, welcomed

from stagewire.client.core.diagnosis import LOOK_AGAIN_S, LOOK_UP_S
from stagewire.client.core.events import (
    Ask,
    BrokerConnected,
    BrokerProbed,
    DeliverEnding,
    NoReply,
    ProbeBroker,
    Submit,
    Tick,
)
from stagewire.client.settings import ClientSettings
from stagewire.wire.address import Address
from stagewire.wire.answering import Found, Kind
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import GetStatus

PROBE = ProbeBroker(Address("127.0.0.1", 7070))
METRICS = Found(Kind.BROKER_METRICS, "", "tcp://127.0.0.1:7170", "tcp://127.0.0.1:7171")
DETAIL = "endpoint=tcp://127.0.0.1:7070: 127.0.0.1:7070 is the broker's metrics port; clients use 127.0.0.1:7170"


def asking(settings: ClientSettings = SETTINGS) -> Client:
    client = Client(settings)
    client.on(Tick(), 0.0)
    client.on(Ask(1, GetStatus(), 3.0), 0.1)
    client.on(Tick(), 0.25)
    return client


def test_it_looks_only_while_somebody_waits_and_nobody_was_ever_heard() -> None:
    idle = Client()
    assert [idle.on(Tick(), now) for now in (1.0, 2.0, 9.0)] == [[], [], []]
    known = welcomed()
    known.on(Ask(1, GetStatus(), 30.0), 0.1)
    assert PROBE not in [out for now in (1.0, 2.0, 9.0) for out in known.on(Tick(), now)]
    assert asking().on(Tick(), 1.0) == [PROBE]


def test_a_broker_that_greets_in_time_is_not_looked_at() -> None:
    client = asking()
    client.on(BrokerConnected(), 0.3)
    assert PROBE not in client.on(Tick(), 0.75)


@pytest.mark.parametrize(
    ("found", "detail"),
    [
        (METRICS, DETAIL),
        (Found(Kind.STAGE_METRICS, "stage-1"), None),
        (Found(Kind.NO_SUCH_NAME, "no"), None),
        (Found(Kind.WEB_SERVER), None),
    ],
)
def test_a_wrong_address_ends_questions_and_requests_at_once(found: Found, detail: str | None) -> None:
    client = asking()
    client.on(Submit(GENERATE), 0.5)
    assert client.on(Tick(), 1.0) == [PROBE]
    client.on(BrokerProbed(found), 1.1)
    ending, answer = client.on(Tick(), 1.5)
    assert isinstance(answer, NoReply) and isinstance(ending, DeliverEnding) and ending.refused
    assert answer.code is ending.ending.code is ErrorCode.INVALID_SETTING
    assert answer.detail == ending.ending.detail == (detail or answer.detail)


def test_who_asks_afterwards_looks_anew() -> None:
    """A name may begin to resolve: one answer is not for good."""
    client = asking()
    client.on(Tick(), 1.0)
    client.on(BrokerProbed(METRICS), 1.1)
    client.on(Tick(), 1.5)
    client.on(Tick(), 5.0)
    client.on(Ask(2, GetStatus(), 3.0), 6.0)
    assert client.on(Tick(), 6.1) == []
    assert client.on(Tick(), 7.0) == [PROBE]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Kind.NO_LISTENER, "within 3 s: nothing listens there"),
        (Kind.MACHINE_AWAY, "within 3 s: no machine answers there"),
        (Kind.BROKER, "within 3 s: something accepts connections there as a broker does, and does not answer"),
    ],
)
def test_what_may_change_is_waited_for_and_explains_the_time_out(kind: Kind, words: str) -> None:
    client = asking()
    assert client.on(Tick(), 1.0) == [PROBE]
    client.on(BrokerProbed(Found(kind)), 1.1)
    assert client.on(Tick(), 2.0) == []
    (answer,) = [out for out in client.on(Tick(), 3.1) if isinstance(out, NoReply)]
    assert answer.code is ErrorCode.UNREACHABLE and answer.detail.endswith(words)


def test_it_looks_again_while_it_waits() -> None:
    """The port may be taken by another program meanwhile."""
    client = Client()
    client.on(Ask(1, GetStatus(), 60.0), 0.1)
    client.on(Tick(), 0.25)
    assert client.on(Tick(), 1.0) == [PROBE]
    client.on(BrokerProbed(Found(Kind.NO_LISTENER)), 1.1)
    assert client.on(Tick(), 1.1 + LOOK_AGAIN_S - 0.2) == []
    assert client.on(Tick(), 1.1 + LOOK_AGAIN_S + 0.2) == [PROBE]


def test_a_name_that_is_looked_up_for_long_counts_as_none() -> None:
    """All of it within four seconds, whatever the system's resolver does."""
    client = asking(ClientSettings(client_id="c", endpoint="slow.example:7070", connect_timeout_s=10.0))
    assert client.on(Tick(), 1.0) == [ProbeBroker(Address("slow.example", 7070))]
    (answer,) = client.on(Tick(), 1.0 + LOOK_UP_S)
    assert isinstance(answer, NoReply)
    assert "the name slow.example does not resolve (no answer within 2 s)" in answer.detail
    assert client.now < 4.0
