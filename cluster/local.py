"""A cluster of real processes on this machine: started, watched, hurt on purpose, and always ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stagewire.client import AsyncClient, Client, ClientSettings
from stagewire.cluster.command import broker_command, stage_command
from stagewire.cluster.plan import projection_layers
from stagewire.cluster.process import ChildProcess, stop_all, wait_until_ready
from stagewire.cluster.resources import check_packages, check_resources
from stagewire.cluster.scratch import ScratchFolder, remove_abandoned
from stagewire.cluster.spec import BrokerSpec, ClusterSpec, StageLimits, plan_pipelines
from stagewire.model.catalogue import DEFAULT_MODEL, resolve
from stagewire.model.check import check_model
from stagewire.sockets.condition import WireCondition
from stagewire.wire.errors import ClusterError, SettingsError, StagewireError
from stagewire.wire.printable import printable
from stagewire.wire.status import Status

Progress = Callable[[str], None]

START_TIMEOUT_S = 180.0
SERVING_TIMEOUT_S = 30.0
_BROKER_TIMEOUT_S = 30.0
_POLL_S = 0.05


class LocalCluster:
    """A broker and the stages of every pipeline, each a process of its own, on free ports of loopback.

    A context manager: entered, every pipeline serves; left, no process is. The arguments up to `limits` are
    those of `plan_pipelines`. A stage is addressed by its index in the split, and by its pipeline. `model` is what the
    file was found to be: its card, and what is odd about it.

    Args:
        model: a name from the catalogue (fetched when it is not there yet), or a path.
        broker: the broker's settings, fixed ports among them.
        log_dir: keeps one log per process; without it they go when the cluster does.
        start_timeout_s: how long stages may take to load.
        progress: is given one line per step.

    Raises:
        ModelError: on construction, the model is not known, or a stage could not load its part of it.
        SettingsError: on construction, the plan does not fit the model; on entering, a fixed port is taken.
        ClusterError: an extra is missing, a process ended or was not ready in time; none is left running.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        stages: int | None = None,
        split: str | Sequence[str] | None = None,
        replicas: int = 1,
        device: str | Sequence[str] | None = None,
        threads: int | Sequence[int] | None = None,
        precision: str | None = None,
        conditions: Mapping[str, WireCondition] | None = None,
        limits: StageLimits | None = None,
        broker: BrokerSpec | None = None,
        log_dir: Path | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        progress: Progress | None = None,
    ) -> None:
        self._progress = progress or (lambda _line: None)
        model = os.fspath(model)
        check_packages()  # before the model is fetched
        self.model = check_model(model, resolve(model, self._progress))
        for remark in self.model.remarks:
            self._progress(f"note: {printable(remark)}")
        config = self.model.card.config
        pipelines = plan_pipelines(
            config.num_layers, last_extra=projection_layers(config), stages=stages, split=split, replicas=replicas,
            device=device, threads=threads, precision=precision, conditions=conditions,
            limits=limits or StageLimits(),
        )  # fmt: skip
        broker = broker or BrokerSpec()
        if broker.feed_condition is None and conditions:
            broker = replace(broker, feed_condition=conditions.get("feed"))
        self.spec = ClusterSpec(model=model, pipelines=pipelines, broker=broker)
        self._log_dir, self._start_timeout_s = log_dir, start_timeout_s
        self._scratch: ScratchFolder | None = None
        self._broker: ChildProcess | None = None
        self._stages: list[list[ChildProcess]] = []
        self._status_client: Client | None = None

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # --- start and end --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts all and returns when every pipeline serves; after an exception nothing runs."""
        check_resources(self.spec)
        remove_abandoned()
        self._scratch, self._stages = ScratchFolder(), []
        try:
            self._start_broker()
            self._start_stages()
            self.wait_until_serving()
            self._leave_broker()
        except BaseException:  # Ctrl-C as well
            self.close()
            raise

    def _start_broker(self) -> None:
        self._progress("starting the broker")
        self._broker = self._child("broker", broker_command(self.spec.broker.first()))
        self._broker.start()
        wait_until_ready([self._broker], _BROKER_TIMEOUT_S)
        # From now on its ports are fixed: stages and clients must find it again after a restart.
        port = self.metrics_address.rpartition(":")[2]
        here = replace(
            self.spec.broker,
            frontend_endpoint=self.endpoint,
            control_endpoint=self.control_endpoint,
            metrics_port=int(port) if port else "off",
        )
        self._broker.command = tuple(broker_command(here))

    def _start_stages(self) -> None:
        for replica, pipeline in enumerate(self.spec.pipelines):
            self._stages.append([])
            for index, stage in enumerate(pipeline):
                name = f"stage-{index}" if len(self.spec.pipelines) == 1 else f"stage-{replica}.{index}"
                command = stage_command(self.spec.model, name, self.control_endpoint, stage)
                self._stages[replica].append(self._child(name, command))
                self._progress(f"{name}: loading layers {stage.layers}")
        children = [child for pipeline in self._stages for child in pipeline]
        for child in children:
            child.start()
        wait_until_ready(children, self._start_timeout_s, lambda child: self._progress(f"{child.name}: ready"))

    def close(self) -> None:
        """Ends all processes, stages first so that they can say goodbye. Doing it again is harmless."""
        self._leave_broker()
        try:
            stop_all([child for pipeline in self._stages for child in pipeline])
        finally:
            if self._broker is not None:
                stop_all([self._broker])
            if self._scratch is not None:
                self._scratch.close()

    def _leave_broker(self) -> None:
        """Who only keeps a cluster is no client of it; `status` comes back when it is asked."""
        if self._status_client is not None:
            self._status_client.close()
            self._status_client = None

    def _child(self, name: str, command: Sequence[str]) -> ChildProcess:
        assert self._scratch is not None, "the cluster has not been started"
        log_dir = self._scratch.path if self._log_dir is None else self._log_dir
        try:
            log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"log_dir={log_dir}: {error.strerror}; choose one that can be written") from None
        return ChildProcess(name, command, self._scratch.path, log_dir / f"{name}.log")

    # --- talking to it --------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """Where clients connect."""
        return self._announced("frontend")

    @property
    def control_endpoint(self) -> str:
        """Where further stages connect."""
        return self._announced("control")

    @property
    def metrics_address(self) -> str:
        """`host:port` of the broker's `/metrics` and `/sd`, which lists all processes; empty when switched off."""
        return self._announced("metrics")

    def _announced(self, name: str) -> str:
        if (announcement := self._broker_child().announcement) is None:
            raise ClusterError("the broker does not listen")
        return announcement[name]

    def client(self, settings: ClientSettings | None = None) -> Client:
        """A new client of this cluster, with these settings but for their endpoint; the caller closes it."""
        return Client(settings=self._settings(settings))

    def async_client(self, settings: ClientSettings | None = None) -> AsyncClient:
        """The same for asyncio; `async with` closes it."""
        return AsyncClient(settings=self._settings(settings))

    def _settings(self, settings: ClientSettings | None) -> ClientSettings:
        return replace(settings or ClientSettings(), endpoint=self.endpoint)

    def status(self) -> Status:
        """The broker's report.

        Raises:
            StagewireError: UNREACHABLE, the broker does not answer.
        """
        self._status_client = self._status_client or self.client()
        return self._status_client.status()

    def wait_until_serving(self, timeout_s: float = SERVING_TIMEOUT_S) -> Status:
        """Returns the report in which every pipeline serves and holds its stages.

        Raises:
            ClusterError: a process has ended, or the time is up; the message says what is missing.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            for child in self.ended:
                raise child.failure(f"{child.describe_end()} before the cluster served")
            try:
                status = self.status()
                if not (missing := self._missing(status)):
                    return status
            except StagewireError as error:
                missing = error.detail
            if time.monotonic() > deadline:
                raise ClusterError(f"the cluster did not serve within {timeout_s:g} s: {missing}")
            time.sleep(_POLL_S)

    def _missing(self, status: Status) -> str:
        num_serving, expected = sum(one.state == "serving" for one in status.pipelines), len(self.spec.pipelines)
        return "" if num_serving >= expected else f"{num_serving} of {expected} serve; {status.waiting_for}"

    @property
    def ended(self) -> list[ChildProcess]:
        """Processes that were started and do not run any more, however they ended."""
        return [child for child in self._children() if child.exit_code is not None]

    @property
    def pids(self) -> dict[str, int]:
        """Of the running processes, by name: `broker`, `stage-0`, or `stage-1.0` in the second pipeline."""
        return {child.name: child.pid for child in self._children() if child.pid is not None}

    def logs(self, stage: int, replica: int = 0) -> str:
        """All that a stage has written, its earlier runs included."""
        return self._stages[replica][stage].log_path.read_text(encoding="utf-8", errors="replace")

    # --- hurting it on purpose ------------------------------------------------------------------------------

    def kill(self, stage: int, replica: int = 0) -> None:
        """SIGKILL; the stage is gone when this returns."""
        self._stages[replica][stage].kill()

    def stop(self, stage: int, replica: int = 0) -> None:
        """SIGTERM: the stage says goodbye and is gone when this returns."""
        stop_all([self._stages[replica][stage]])

    def pause(self, stage: int, replica: int = 0) -> None:
        """SIGSTOP: the stage keeps its connections and does nothing."""
        self._stages[replica][stage].signal(signal.SIGSTOP)

    def resume(self, stage: int, replica: int = 0) -> None:
        self._stages[replica][stage].signal(signal.SIGCONT)

    def restart(self, stage: int, replica: int = 0) -> None:
        """Kills the stage if it runs and starts it anew; returns when it has registered.

        Raises:
            ClusterError: it did not get so far; the others go on.
        """
        self.restart_child(self._stages[replica][stage])

    def kill_broker(self) -> None:
        """SIGKILL; stages and running requests stay."""
        self._broker_child().kill()

    def restart_broker(self) -> None:
        """Kills the broker if it runs and starts it anew on the same ports; returns when it listens."""
        self.restart_child(self._broker_child())

    def relaunch(self, child: ChildProcess) -> None:
        """Start a process anew and return at once: a stage cannot get ready while the broker is away as well."""
        child.kill()
        child.start()

    def restart_child(self, child: ChildProcess) -> None:
        """As `restart`, for any of the processes that `ended` names."""
        self.relaunch(child)
        wait_until_ready([child], self._start_timeout_s)

    def _broker_child(self) -> ChildProcess:
        if self._broker is None:
            raise ClusterError("the cluster has not been started")
        return self._broker

    def _children(self) -> list[ChildProcess]:
        stages = [child for pipeline in self._stages for child in pipeline]
        return stages if self._broker is None else [self._broker, *stages]
