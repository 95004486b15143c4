"""Plans of whole clusters, and that the processes' commands read back what the specs say."""

from __future__ import annotations

from dataclasses import fields

import pytest

from stagewire.broker.settings import BrokerSettings
from stagewire.cli.main import build_parser
from stagewire.cli.options import chosen
from stagewire.cluster.command import STAGEWIRE, broker_command, stage_command
from stagewire.cluster.plan import LayerRange
from stagewire.cluster.spec import BrokerSpec, StageLimits, StageSpec, plan_pipelines
from stagewire.sockets.condition import WireCondition
from stagewire.stage.settings import StageSettings
from stagewire.wire.errors import ErrorCode, SettingsError


def layers_of(pipelines: tuple[tuple[StageSpec, ...], ...]) -> list[list[str]]:
    return [[str(stage.layers) for stage in pipeline] for pipeline in pipelines]


def test_without_a_wish_a_model_is_cut_in_two() -> None:
    assert layers_of(plan_pipelines(30)) == [["0:15", "15:30"]]


def test_replicas_repeat_the_pipeline_and_several_splits_are_pipelines_of_different_cuts() -> None:
    assert layers_of(plan_pipelines(30, stages=1, replicas=2)) == [["0:30"], ["0:30"]]
    assert layers_of(plan_pipelines(30, split=["0:12,12:30", "0:30"])) == [["0:12", "12:30"], ["0:30"]]


def test_device_and_threads_are_one_for_all_or_one_each() -> None:
    (pipeline,) = plan_pipelines(30, stages=3, device="cpu", threads=[4, 2, 1])
    assert [(stage.device, stage.threads) for stage in pipeline] == [("cpu", 4), ("cpu", 2), ("cpu", 1)]
    (pipeline,) = plan_pipelines(30, device=["cuda:0", "cpu"])
    assert [(stage.device, stage.threads) for stage in pipeline] == [("cuda:0", None), ("cpu", None)]


def test_a_condition_holds_for_all_hops_or_for_one_and_each_link_has_its_own_seed() -> None:
    slow, slower = WireCondition(delay_s=0.01, seed=7), WireCondition(delay_s=0.1, seed=7)
    (pipeline,) = plan_pipelines(30, stages=3, conditions={"hop": slow, "hop.1": slower, "return": slow})
    assert [stage.hop_condition for stage in pipeline] == [
        WireCondition(delay_s=0.01, seed=7),
        WireCondition(delay_s=0.1, seed=8),
        WireCondition(delay_s=0.01, seed=9),
    ]
    assert [stage.feed_condition for stage in pipeline] == [None, None, None]
    assert pipeline[2].return_condition == WireCondition(delay_s=0.01, seed=9)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"stages": 2, "split": "0:30"}, "stages and split: give one"),
        ({"stages": 31}, "stages=31"),
        ({"split": "0:12,14:30"}, "layers 12:14 belong to no stage"),
        ({"split": []}, "name at least one"),
        ({"replicas": 0}, "replicas=0: must be between 1 and 64"),
        ({"threads": [1, 2, 3]}, "threads=1,2,3: give one, or 2"),
        ({"device": ["cpu"] * 3}, "device=cpu,cpu,cpu: give one, or 2"),
        ({"conditions": {"hop.1": WireCondition()}}, "'hop.1': the links are hop, feed, return, hop.0"),
        ({"conditions": {"": WireCondition()}}, "the links are hop"),
    ],
)
def test_a_wish_that_cannot_be_is_refused_by_name(wishes: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        plan_pipelines(30, **wishes)  # type: ignore[arg-type]
    assert caught.value.code in {ErrorCode.INVALID_SETTING, ErrorCode.INVALID_LAYER_RANGE}


def test_the_stage_command_reads_back_every_field_of_the_spec() -> None:
    condition = WireCondition(delay_s=0.01, bandwidth_bytes_per_s=1e6, seed=3)
    limits = StageLimits(
        kv_tokens=1024, cache_tokens=512, disk_directory="kv", disk_bytes=1 << 21,
        snapshot_directory="snapshots", snapshot_bytes=1 << 22, max_sequences=3, chunk_tokens=16,
        chunk_target_s=0.5, step_deadline_s=9.0, dial_timeout_s=1.5, metrics_port=7073, log_level="debug",
    )  # fmt: skip
    spec = StageSpec(
        layers=LayerRange(12, 30), device="cuda:0", threads=3, precision="f32", hop_condition=condition,
        feed_condition=condition, return_condition=condition, limits=limits,
    )  # fmt: skip
    assert None not in [getattr(spec, field.name) for field in fields(spec)], "a new field: add it here"
    assert None not in [getattr(limits, field.name) for field in fields(limits)], "a new field: add it here"
    command = stage_command("m.gguf", "stage-1", "tcp://127.0.0.1:9", spec)[len(STAGEWIRE) :]
    options = build_parser("stage").parse_args(command)
    settings = chosen(StageSettings, options, layer_start=options.layers[0], layer_end=options.layers[1])
    assert settings == StageSettings(
        model="m.gguf", stage_id="stage-1", control_endpoint="tcp://127.0.0.1:9", layer_start=12, layer_end=30,
        device="cuda:0", threads=3, precision="f32", hop_condition=condition, feed_condition=condition,
        return_condition=condition, kv_tokens=1024, cache_tokens=512, disk_directory="kv", disk_bytes=1 << 21,
        snapshot_directory="snapshots", snapshot_bytes=1 << 22, max_sequences=3, chunk_tokens=16, chunk_target_s=0.5,
        step_deadline_s=9.0, dial_timeout_s=1.5, metrics_port=7073,
    )  # fmt: skip
    assert options.log_level == "debug"


def test_the_broker_command_reads_back_every_field_of_the_spec() -> None:
    spec = BrokerSpec(
        frontend_endpoint="tcp://127.0.0.1:5", control_endpoint="tcp://127.0.0.1:6", max_queued=7,
        max_requests_per_client=8, queue_timeout_s=9.0, no_pipeline_wait_s=1.0, stage_silence_s=2.0,
        step_hang_s=3.0, grace_s=4.0, client_silence_s=5.0, snapshot_expiry_s=6.0, metrics_port=7072,
        log_level="warning", feed_condition=WireCondition(jitter_s=0.001),
    )  # fmt: skip
    assert None not in [getattr(spec, field.name) for field in fields(spec)], "a new field: add it here"
    options = build_parser("broker").parse_args(broker_command(spec)[len(STAGEWIRE) :])
    settings = chosen(BrokerSettings, options)
    assert options.log_level == "warning"
    names = [field.name for field in fields(spec) if field.name != "log_level"]
    assert [getattr(settings, name) for name in names] == [getattr(spec, name) for name in names]


def test_an_endpoint_for_metrics_can_be_switched_off() -> None:
    """`off` is a word for None where None is not the default."""
    command = broker_command(BrokerSpec(metrics_port="off"))[len(STAGEWIRE) :]
    assert chosen(BrokerSettings, build_parser("broker").parse_args(command)).metrics_port is None


def test_what_a_spec_leaves_open_is_the_process_own_default() -> None:
    options = build_parser("broker").parse_args(broker_command(BrokerSpec())[len(STAGEWIRE) :])
    expected = BrokerSettings(frontend_endpoint="tcp://127.0.0.1:*", control_endpoint="tcp://127.0.0.1:*")
    assert chosen(BrokerSettings, options) == expected


@pytest.mark.parametrize(
    ("broker", "grace_s"),
    [
        (BrokerSpec(), 0.0),
        (BrokerSpec(frontend_endpoint="tcp://127.0.0.1:7070"), 0.0),
        (BrokerSpec(grace_s=2.0), 2.0),
        (BrokerSpec(control_endpoint="tcp://127.0.0.1:7071"), None),
    ],
)
def test_a_broker_waits_for_stages_at_its_first_start_only_where_these_could_know_it(
    broker: BrokerSpec, grace_s: float | None
) -> None:
    assert broker.first().grace_s == grace_s
