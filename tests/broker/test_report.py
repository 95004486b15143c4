"""What the broker's report says of the stages' work: what each has told last, and nothing of a former process."""

from __future__ import annotations

from dataclasses import fields, replace

from support.broker_world import FIRST, LAST, CheckedCore
from support.counters import HEAD, START

from stagewire.broker.events import Send
from stagewire.wire.control import Heartbeat, Register
from stagewire.wire.counters import HeadCounters, StageCounters, TailCounters
from stagewire.wire.frontend import ClientHello, GetStatus
from stagewire.wire.status import Status

COUNTERS = replace(START, head=HEAD)


def counters_by_stage(broker: CheckedCore) -> dict[str, StageCounters | None]:
    (answer,) = broker.from_client("x", GetStatus())
    assert isinstance(answer, Send) and isinstance(answer.message, Status)
    return {stage.info.stage_id: stage.counters for stage in answer.message.stages}


def serving() -> CheckedCore:
    broker = CheckedCore()
    broker.settle()
    broker.serve(FIRST, LAST)
    return broker


def test_each_stage_is_reported_with_its_last_counters() -> None:
    broker = serving()
    assert counters_by_stage(broker) == {"s0": None, "s1": None}
    broker.from_stage("s0 beats", Heartbeat("s0", 1, 5, None, COUNTERS))
    later = replace(COUNTERS, uptime_s=11.0)
    broker.from_stage("s0 beats", Heartbeat("s0", 1, 6, None, later))
    assert counters_by_stage(broker) == {"s0": later, "s1": None}


def test_another_process_of_that_name_is_not_heard() -> None:
    """Its heartbeat is not the registered stage's."""
    broker = serving()
    broker.from_stage("s0 beats", Heartbeat("s0", 1, 5, None, COUNTERS))
    broker.from_stage("other beats", Heartbeat("s0", 2, 0, None, START))
    assert counters_by_stage(broker)["s0"] == COUNTERS


def test_a_restarted_stage_begins_without() -> None:
    broker = serving()
    broker.from_stage("s0 beats", Heartbeat("s0", 1, 5, None, COUNTERS))
    broker.from_stage("s0 again", Register(replace(FIRST, run=2), None))
    broker.pass_time(3.0)
    assert counters_by_stage(broker).get("s0") is None


def test_the_names_that_programs_read_stay() -> None:
    """`stagewire status --json` prints these; whoever renames one breaks what others have written."""
    assert [field.name for field in fields(StageCounters)] == [
        "uptime_s", "idle_s", "num_steps", "num_prefill_tokens", "num_decode_tokens", "prefill_s", "decode_s",
        "plan_s", "sample_s", "codec_s", "num_queued_steps", "num_used_blocks", "num_cached_blocks", "head", "tail",
    ]  # fmt: skip
    assert [field.name for field in fields(HeadCounters)] == [
        "num_waiting", "num_running", "num_round_trips", "round_trips_s", "hops_s",
    ]  # fmt: skip
    assert [field.name for field in fields(TailCounters)] == [
        "num_prompt_tokens", "num_cached_tokens", "num_generated_tokens",
    ]  # fmt: skip


def test_who_asks_is_not_counted_among_the_clients() -> None:
    """Neither a client that asks, nor somebody who has not said hello; all the others are."""

    def num_clients(asker: str) -> int:
        (answer,) = broker.from_client(asker, GetStatus())
        assert isinstance(answer, Send) and isinstance(answer.message, Status)
        return answer.message.num_clients

    broker = serving()
    assert num_clients("stranger") == 0
    broker.from_client("c", ClientHello("c", b"n", None))
    assert (num_clients("c"), num_clients("stranger")) == (0, 1)
    broker.from_client("d", ClientHello("d", b"n", None))
    broker.from_client("e", ClientHello("e", b"n", None))
    assert (num_clients("c"), num_clients("e"), num_clients("stranger")) == (2, 2, 3)
