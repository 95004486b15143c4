"""The broker's settings name what is wrong with them; its tables are complete."""

from __future__ import annotations

import pytest

from stagewire.broker import pipeline, requests
from stagewire.broker.settings import BrokerSettings, is_loopback
from stagewire.wire.errors import InvalidTransition, SettingsError
from stagewire.wire.machine import Machine


def test_the_defaults_are_valid_and_a_free_port_may_be_asked_for() -> None:
    assert BrokerSettings().frontend_endpoint == "tcp://127.0.0.1:7070"
    assert BrokerSettings(frontend_endpoint="tcp://127.0.0.1:*").max_requests_per_client >= 1024


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_queued": 0}, ["max_queued=0", "between 1 and 65536"]),
        ({"queue_timeout_s": -1.0}, ["queue_timeout_s=-1.0", "between 0.1 and 3600"]),
        ({"stage_silence_s": float("nan")}, ["stage_silence_s=nan"]),
        ({"frontend_endpoint": "tcp://0.0.0.0:7070"}, ["frontend_endpoint=tcp://0.0.0.0:7070", "this machine only"]),
        ({"control_endpoint": "tcp://*:7071"}, ["control_endpoint=tcp://*:7071"]),
    ],
)
def test_a_value_outside_its_limits_is_named_with_the_limit(changes: dict[str, object], words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        BrokerSettings(**changes)  # type: ignore[arg-type]
    assert all(word in caught.value.detail for word in words)


@pytest.mark.parametrize(
    ("endpoint", "answer"),
    [
        ("tcp://127.0.0.1:80", True),
        ("tcp://127.1.2.3:*", True),
        ("tcp://localhost:5000", True),
        ("tcp://127.0.0.1:70000", False),
        ("tcp://127.0.0.1.evil.example:80", False),
        ("tcp://127.0.0.1:80;tcp://10.0.0.1:80", False),
        ("ipc:///tmp/x", False),
        ("tcp://10.0.0.1:80", False),
    ],
)
def test_loopback_endpoints_are_told_from_others(endpoint: str, answer: bool) -> None:
    assert is_loopback(endpoint) is answer


def test_a_transition_that_the_table_lacks_is_our_own_bug_and_carries_its_history() -> None:
    machine = Machine("request r1", requests.RequestState.QUEUED, requests.TRANSITIONS)
    machine.fire(requests.RequestTrigger.PUSH)
    with pytest.raises(InvalidTransition, match="request r1"):
        machine.fire(requests.RequestTrigger.PUSH)
    assert machine.state is requests.RequestState.PUSHED


def test_every_state_can_be_left_but_the_last_and_reached_but_the_first() -> None:
    request_ends = {start for start, _ in requests.TRANSITIONS}
    assert set(requests.RequestState) - request_ends == {requests.RequestState.ENDED}
    assert set(requests.RequestState) - set(requests.TRANSITIONS.values()) == {requests.RequestState.QUEUED}
    pipeline_starts = {start for start, _ in pipeline.TRANSITIONS}
    assert set(pipeline.PipelineState) - pipeline_starts == {pipeline.PipelineState.GONE}
