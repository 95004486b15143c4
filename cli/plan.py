"""The flags that say how a model is spread over stages, and the cluster that they describe."""
# ruff: noqa: PLC0415  # imports wait until they are needed

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from stagewire.cli.characters import path_of, path_text
from stagewire.cli.daemon import LOG_LEVELS
from stagewire.sockets.condition import WireCondition
from stagewire.wire.errors import SettingsError
from stagewire.wire.printable import printable

if TYPE_CHECKING:
    from stagewire.cluster.local import LocalCluster
    from stagewire.cluster.spec import BrokerSpec, StageLimits


def add_plan_flags(parser: argparse.ArgumentParser) -> None:
    from stagewire.model.catalogue import DEFAULT_MODEL
    from stagewire.stage.settings import PRECISIONS

    parser.add_argument(
        "--model", type=path_text, default=DEFAULT_MODEL,
        help="a name from `stagewire models`, or a .gguf file (default: %(default)s)",
    )  # fmt: skip
    cut = parser.add_mutually_exclusive_group()
    cut.add_argument(
        "--stages", type=int, metavar="N", help="cut the model into N parts that take equal time (default: 2)"
    )
    cut.add_argument(
        "--split", action="append", metavar="RANGES",
        help="cut it at will, as in 0:12,12:30; again for another pipeline of another cut",
    )  # fmt: skip
    parser.add_argument(
        "--replicas", type=int, default=1, metavar="R", help="how many of each pipeline (default: %(default)s)"
    )
    parser.add_argument(
        "--threads", type=_numbers, metavar="T", help="CPU threads of each stage (default: 1); or one each, as in 4,2"
    )
    parser.add_argument("--device", type=_names, metavar="D", help="cpu, or cuda:0; or one each, as in cuda:0,cpu")
    parser.add_argument("--precision", metavar="P", choices=PRECISIONS, help="of weights: %(choices)s (default: auto)")
    parser.add_argument(
        "--wire-condition", action="append", type=_condition, default=[], metavar="LINK=CONDITION",
        help="simulate a network on the links hop, hop.0 (out of stage 0), feed or return, as in "
        "hop=delay=10ms,bandwidth=100mbit,jitter=1ms; may be given again",
    )  # fmt: skip
    memory = parser.add_argument_group("memory of each stage")
    memory.add_argument("--kv-tokens", type=int, metavar="N", help="tokens whose keys and values fit (default: 32768)")
    memory.add_argument(
        "--cache-tokens", type=int, metavar="N", help="of these, as many may stay in the prefix cache; 0: no cache"
    )
    memory.add_argument(
        "--disk-directory",
        type=path_text,
        metavar="DIR",
        help="also keep the cache in files there, for later and for the next start",
    )
    memory.add_argument("--disk-bytes", type=int, metavar="N", help="how much that directory may hold (default: 4 GiB)")
    memory.add_argument(
        "--snapshot-directory", type=path_text, metavar="DIR", help="where snapshots are exported to and imported from"
    )
    memory.add_argument(
        "--snapshot-bytes", type=int, metavar="N", help="how much that directory may hold (default: 16 GiB)"
    )
    memory.add_argument(
        "--max-sequences", type=int, metavar="N", help="as many requests may run at a time (default: 64)"
    )
    parser.add_argument("--no-metrics", action="store_true", help="serve no metrics, in no process")
    parser.add_argument("--log-dir", type=path_of, metavar="DIR", help="keep one log per process there")
    parser.add_argument("--log-level", choices=LOG_LEVELS, help="how much each process logs (default: info)")


def planned_cluster(
    options: argparse.Namespace, progress: Callable[[str], None], broker: BrokerSpec | None = None
) -> LocalCluster:
    """The cluster of the flags, not started yet."""
    from dataclasses import replace
    from pathlib import Path

    from stagewire.cluster.local import LocalCluster
    from stagewire.cluster.notices import text_notices
    from stagewire.cluster.spec import BrokerSpec, StageLimits

    if options.no_metrics:
        broker = replace(broker or BrokerSpec(), metrics_port="off")
    disk, snapshots = (
        name and str(Path(name).absolute()) for name in (options.disk_directory, options.snapshot_directory)
    )
    limits = StageLimits(
        kv_tokens=options.kv_tokens,
        cache_tokens=options.cache_tokens,
        disk_directory=disk,
        disk_bytes=options.disk_bytes,
        snapshot_directory=snapshots,
        snapshot_bytes=options.snapshot_bytes,
        max_sequences=options.max_sequences,
    )
    _check(limits, options.threads)
    limits = replace(limits, log_level=options.log_level)
    broker = replace(broker or BrokerSpec(), log_level=options.log_level)
    if options.no_metrics:
        limits = replace(limits, metrics_port="off")
    cluster = LocalCluster(
        options.model,
        stages=options.stages,
        split=options.split,
        replicas=options.replicas,
        threads=options.threads,
        device=options.device,
        precision=options.precision,
        conditions=dict(options.wire_condition),
        broker=broker,
        limits=limits,
        log_dir=options.log_dir,
        progress=progress,
    )
    _check_backends(cluster)
    for remark in text_notices(cluster.model.card):
        progress(f"note: {printable(remark)}")
    return cluster


def _check(limits: StageLimits, threads: int | list[int] | None) -> None:
    """Before any process is started.

    Raises:
        SettingsError: a stage would not take one of these.
    """
    from dataclasses import asdict

    from stagewire.stage.settings import StageSettings

    given = {name: value for name, value in asdict(limits).items() if value is not None}
    for count in threads if isinstance(threads, list) else [1 if threads is None else threads]:
        StageSettings(model="any", control_endpoint="tcp://127.0.0.1:1", threads=count, **given)


def _check_backends(cluster: LocalCluster) -> None:
    """That something here can compute the layers of each stage.

    Raises:
        SettingsError: a stage would find that nothing can.
    """
    from stagewire.stage.backend import choose_backend
    from stagewire.stage.settings import StageSettings

    for stage in (stage for pipeline in cluster.spec.pipelines for stage in pipeline):
        settings = StageSettings(
            model=cluster.spec.model,
            control_endpoint="tcp://127.0.0.1:1",
            layer_start=stage.layers.start,
            layer_end=stage.layers.end,
            precision=stage.precision or "auto",
            device=stage.device or "cpu",
        )
        choose_backend(cluster.model.path, cluster.model.card.config, settings, stage.layers.end)


def _names(text: str) -> str | list[str]:
    return text.split(",") if "," in text else text


def _numbers(text: str) -> int | list[int]:
    try:
        return [int(part) for part in text.split(",")] if "," in text else int(text)
    except ValueError:
        raise SettingsError(f"threads={text}: expected a number, or one for each stage, as in 4,2") from None


def _condition(text: str) -> tuple[str, WireCondition]:
    link, equals, condition = text.partition("=")
    if not equals or not condition:
        raise SettingsError(f"wire_condition={text}: expected LINK=CONDITION, as in hop=delay=10ms")
    return link, WireCondition.parse(condition)
