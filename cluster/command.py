"""The command lines of the processes: specs turned into flags of `stagewire broker` and `stagewire stage`."""

from __future__ import annotations

import sys
from dataclasses import fields

from stagewire.cluster.spec import BrokerSpec, StageLimits, StageSpec

STAGEWIRE = (sys.executable, "-m", "stagewire")


def broker_command(spec: BrokerSpec) -> list[str]:
    return [*STAGEWIRE, "broker", *_flags(spec)]


def stage_command(model: str, stage_id: str, control_endpoint: str, spec: StageSpec) -> list[str]:
    # With "=": a value may begin with a "-".
    given = [f"--model={model}", f"--stage-id={stage_id}", f"--control-endpoint={control_endpoint}"]
    return [*STAGEWIRE, "stage", *given, *_flags(spec), *_flags(spec.limits)]


def _flags(spec: BrokerSpec | StageSpec | StageLimits) -> list[str]:
    """`kv_tokens=1024` as `--kv-tokens=1024`; what is None keeps the process's own default."""
    values = {field.name: getattr(spec, field.name) for field in fields(spec) if field.name != "limits"}
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value is not None]
