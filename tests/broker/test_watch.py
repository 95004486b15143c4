"""What the broker counts for whoever watches, and whom it tells Prometheus to scrape."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.broker_world import FIRST, LAST, TICK_S, CheckedCore, client_peer

from stagewire.broker.events import Unreadable
from stagewire.broker.measures import LOST_MEMORY_S
from stagewire.broker.registration import defect_of
from stagewire.broker.settings import BrokerSettings
from stagewire.broker.watch import broker_samples, targets, watch
from stagewire.monitoring.distribution import Distribution
from stagewire.wire.control import Fault, RequestEnded, StageBye
from stagewire.wire.errors import ErrorCode, SettingsError
from stagewire.wire.request import FinishReason, Usage
from stagewire.wire.snapshots import AskSnapshots, SnapshotAction, SnapshotOrder

BOTH = (FIRST, LAST)
Values = dict[tuple[str, ...], float]


def values(broker: CheckedCore) -> Values:
    """Each series by name, without the prefix, and labels; of a histogram the count and the sum."""
    found: Values = {}
    for metric, labels, value in broker_samples(broker.core.state):
        name = metric.name.removeprefix("stagewire_")
        if isinstance(value, Distribution):
            found[name, "count"], found[name, "sum"] = value.count, value.total
        else:
            key = (name, *labels)
            found[key] = value
    return found


def changed(before: Values, after: Values) -> Values:
    return {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}


@pytest.fixture
def broker() -> CheckedCore:
    serving = CheckedCore()
    serving.settle()
    return serving


def test_a_request_is_counted_from_its_admission_to_its_ending(broker: CheckedCore) -> None:
    """Queue and end-to-end times are those of the broker's clock."""
    broker.hello("c")
    before = values(broker)
    broker.ask("c", "r")
    assert changed(before, values(broker)) == {
        ("requests_accepted_total",): 1,
        ("num_requests_waiting", "no_pipeline"): 1,
        ("num_requests", "queued"): 1,
        ("queued_prompt_bytes",): 100,
    }
    broker.pass_time(4 * TICK_S)
    epoch = broker.serve(*BOTH)
    given = values(broker)
    assert given["broker_queue_time_seconds", "count"] == 1
    assert given["broker_queue_time_seconds", "sum"] == pytest.approx(5 * TICK_S)
    assert (given["num_requests_running",], given["num_requests", "pushed"]) == (1, 1)
    broker.acknowledge("r", epoch)
    broker.pass_time(10 * TICK_S, alive=BOTH)
    broker.from_stage("s0", RequestEnded("r", epoch, FinishReason.LENGTH, None, Usage(3, 5)))
    after = values(broker)
    assert changed(given, after) == {
        ("request_success_total", "length"): 1,
        ("num_requests_running",): -1,
        ("num_requests", "pushed"): -1,
        ("queued_prompt_bytes",): -100,
        ("e2e_request_latency_seconds", "count"): 1,
        ("e2e_request_latency_seconds", "sum"): pytest.approx(15 * TICK_S),
    }


def test_refusals_and_failures_are_counted_by_code(broker: CheckedCore) -> None:
    epoch = broker.serve(*BOTH)
    broker.hello("c")
    broker.ask("c", "long", num_prompt_tokens=10**6)
    broker.ask("c", "bad")
    broker.acknowledge("bad", epoch)
    broker.from_stage("s0", RequestEnded("bad", epoch, FinishReason.FAILED, ErrorCode.CLIENT_GONE, Usage(3, 0)))
    broker.ask("c", "lost")
    broker.acknowledge("lost", epoch)
    broker.from_stage("s1", Fault(epoch, ErrorCode.DECODE_FAILED, "it raised"))
    broker.pass_time(6.0, alive=BOTH)
    found = values(broker)
    assert found["requests_refused_total", "context_overflow"] == 1
    assert found["request_failures_total", "client_gone"] == 1
    assert found["request_failures_total", "decode_failed"] == 1
    assert found["epochs_lost_total", "decode_failed"] == 1


def test_waiting_requests_tell_whether_a_pipeline_is_missing_or_full() -> None:
    """Of a credit of two messages one is kept for cancels."""
    broker = CheckedCore(BrokerSettings(feed_credit=2))
    broker.settle()
    broker.hello("c")
    for number in range(4):
        broker.ask("c", f"r{number}")
    assert values(broker)["num_requests_waiting", "no_pipeline"] == 4
    broker.serve(*BOTH)
    found = values(broker)
    assert (found["num_requests_waiting", "no_pipeline"], found["num_requests_waiting", "capacity"]) == (0, 3)


def test_a_lost_stage_is_down_until_it_is_back_and_one_that_said_goodbye_is_not_missed(broker: CheckedCore) -> None:
    """The number of series does not depend on how often that happens."""
    broker.serve(*BOTH)
    assert (values(broker)["stage_up", "s0"], values(broker)["stage_up", "s1"]) == (1, 1)
    num_series = len(values(broker))
    broker.pass_time(4.0, alive=(FIRST,))
    found = values(broker)
    assert (found["stage_up", "s0"], found["stage_up", "s1"], found["stages_lost_total",]) == (1, 0, 1)
    assert found["pipelines", "serving"] == 0
    for run in range(2, 50):
        broker.register(replace(LAST, run=run))
        assert values(broker)["stage_up", "s1"] == 1
        broker.pass_time(3.0, alive=(FIRST,))
        assert values(broker)["stage_up", "s1"] == 0
        assert len(values(broker)) == num_series
    broker.register(replace(LAST, run=99))
    broker.from_stage("s1", StageBye("s1", 99))
    assert ("stage_up", "s1") not in values(broker)


def test_a_stage_that_never_comes_back_is_forgotten_some_time(broker: CheckedCore) -> None:
    """And so are names of which there are ever new ones."""
    measures = broker.core.state.measures
    for number in range(1000):
        measures.stage_lost(f"once-{number}", now=float(number) / 10)
    assert len(measures.missed) == 256
    assert next(iter(measures.missed)) == "once-744"
    measures.expire(80.0 + LOST_MEMORY_S)
    assert next(iter(measures.missed)) == "once-801"
    measures.expire(100.0 + LOST_MEMORY_S)
    assert measures.missed == {}


def test_what_clients_ask_about_snapshots_and_what_cannot_be_read_is_counted(broker: CheckedCore) -> None:
    broker.hello("c")
    before = values(broker)
    broker.from_client("c", AskSnapshots(SnapshotOrder()))
    broker.from_client("c", AskSnapshots(SnapshotOrder(SnapshotAction.FREE, "name")))
    broker.handle(Unreadable(client_peer("c"), ErrorCode.PROTOCOL_ERROR, "noise"))
    assert changed(before, values(broker)) == {
        ("snapshot_operations_total", "list"): 1,
        ("snapshot_operations_total", "free"): 1,
        ("bad_messages_total",): 1,
    }


# --- discovery ---


def test_prometheus_is_told_of_the_broker_and_of_every_stage_that_has_an_endpoint(broker: CheckedCore) -> None:
    """A stage's series belong to its name, on whatever port it comes back."""
    broker.serve(replace(FIRST, metrics_address="127.0.0.1:9100"), LAST)
    assert json.loads(targets(broker.core.state, "127.0.0.1:7072")) == [
        {"targets": ["127.0.0.1:7072"], "labels": {"role": "broker"}},
        {"targets": ["127.0.0.1:9100"], "labels": {"role": "stage", "stage": "s0", "instance": "s0"}},
    ]


@pytest.mark.parametrize("address", ["192.0.2.1:9100", "127.0.0.1", "127.0.0.1:99999", "http://127.0.0.1:1/x"])
def test_a_stage_cannot_have_prometheus_ask_anybody_else(address: str) -> None:
    """Its address must be a port of this machine."""
    assert defect_of(FIRST) is None
    defect = defect_of(replace(FIRST, metrics_address=address))
    assert defect is not None
    assert defect[0] is ErrorCode.INVALID_SETTING
    assert "metrics_address" in defect[1]


def test_a_port_that_is_taken_is_named_with_what_to_do(broker: CheckedCore) -> None:
    with watch(broker.core.state, 0) as serving:
        port = int(serving.address.rpartition(":")[2])
        with pytest.raises(SettingsError, match=f"metrics_port={port}: .*choose another") as caught:
            watch(broker.core.state, port)
    assert caught.value.code is ErrorCode.PORT_IN_USE
