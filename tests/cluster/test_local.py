"""The cluster of real processes: it serves, it is hurt on purpose, it fails with a name, and leaves nothing behind."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from support.native_files import write_native_model

from stagewire.cluster.local import LocalCluster
from stagewire.cluster.spec import BrokerSpec, StageLimits
from stagewire.wire.errors import ClusterError, ErrorCode, ModelError, RequestFailed, SettingsError
from stagewire.wire.sampling import SamplingParams

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

GREEDY = SamplingParams(temperature=0.0)
PROMPT = list(range(100, 120))
LIMITS = StageLimits(kv_tokens=2048)
FRESH = BrokerSpec(grace_s=0.2)
"""Nothing stands when it starts, so that there is nothing to wait for."""


def complete(cluster: LocalCluster, prompt: Sequence[int] = PROMPT, max_tokens: int = 6) -> tuple[int, ...]:
    with cluster.client() as client:
        generation = client.session().generate(
            prompt_token_ids=prompt, sampling=GREEDY, max_tokens=max_tokens, ignore_eos=True
        )
        return generation.wait(timeout_s=60).token_ids


def wait_until(condition: Callable[[], bool], timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """The real model over two unequal stages; every test leaves it serving."""
    with LocalCluster(split="0:10,10:30", limits=LIMITS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two layers for the native kernels, loaded in no time."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_native_model(path)
    return str(path)


# --- serving ---


def test_when_entered_every_stage_serves_its_layers(cluster: LocalCluster) -> None:
    status = cluster.status()
    (pipeline,) = status.pipelines
    assert pipeline.state == "serving"
    assert pipeline.stage_ids == ("stage-0", "stage-1")
    layers = {stage.info.stage_id: (stage.info.layer_start, stage.info.layer_end) for stage in status.stages}
    assert layers == {"stage-0": (0, 10), "stage-1": (10, 30)}
    assert sorted(cluster.pids) == ["broker", "stage-0", "stage-1"]
    assert "event=loaded layers=10:30" in cluster.logs(1)


@pytest.mark.alone  # five seconds, by its own clock
def test_a_killed_stage_fails_its_requests_and_a_restarted_one_gives_the_same_tokens(cluster: LocalCluster) -> None:
    before = complete(cluster)
    with cluster.client() as client:
        generation = client.session().generate(
            prompt_token_ids=PROMPT, sampling=GREEDY, max_tokens=1000, ignore_eos=True
        )
        next(generation)
        cluster.kill(1)
        killed_at = time.monotonic()
        with pytest.raises(RequestFailed) as failed:
            list(generation)
        assert failed.value.code is ErrorCode.STAGE_LOST
        assert time.monotonic() - killed_at < 5
    with pytest.raises(ClusterError, match="stage-1 was ended by SIGKILL"):
        cluster.wait_until_serving(timeout_s=5)
    cluster.restart(1)
    cluster.wait_until_serving()
    assert complete(cluster) == before


def test_a_stopped_stage_says_goodbye_and_the_status_says_what_is_missing(cluster: LocalCluster) -> None:
    cluster.stop(0)
    assert "stage-0" not in cluster.pids
    (ended,) = cluster.ended
    assert ended.exit_code == 0
    wait_until(lambda: "0:10" in cluster.status().waiting_for, timeout_s=5)
    cluster.restart(0)
    cluster.wait_until_serving()


def test_a_paused_stage_is_lost_and_comes_back_when_resumed(cluster: LocalCluster) -> None:
    cluster.pause(1)
    wait_until(lambda: cluster.status().waiting_for != "")
    with pytest.raises(ClusterError, match=r"did not serve within 0\.1 s: 0 of 1 serve"):
        cluster.wait_until_serving(timeout_s=0.1)
    cluster.resume(1)
    cluster.wait_until_serving()
    assert len(complete(cluster)) == 6


def test_a_restarted_broker_is_found_again_at_the_same_endpoint(cluster: LocalCluster) -> None:
    endpoint, before = cluster.endpoint, complete(cluster)
    cluster.kill_broker()
    assert "broker" not in cluster.pids
    cluster.restart_broker()
    cluster.wait_until_serving()
    assert cluster.endpoint == endpoint
    assert complete(cluster) == before


def test_replicas_are_pipelines_of_their_own(tiny_model: str) -> None:
    with LocalCluster(tiny_model, stages=1, replicas=2, limits=StageLimits(kv_tokens=256), broker=FRESH) as cluster:
        assert sorted(cluster.pids) == ["broker", "stage-0.0", "stage-1.0"]
        assert len(cluster.status().pipelines) == 2
        before = complete(cluster, prompt=[3, 4, 5])
        cluster.kill(0, replica=1)
        wait_until(lambda: len(cluster.status().pipelines) == 1)
        assert complete(cluster, prompt=[3, 4, 5]) == before


def test_with_a_disk_a_new_cluster_finds_what_the_last_one_kept(tiny_model: str, tmp_path: Path) -> None:
    """Also after a kill, once the writer was through; the second stage shares the directory with the first."""
    limits, prompt = StageLimits(kv_tokens=512, disk_directory=str(tmp_path / "kv")), [3 + i % 5 for i in range(20)]
    found, counts = [], []
    for _ in range(2):
        with LocalCluster(tiny_model, stages=2, limits=limits, broker=FRESH) as cluster, cluster.client() as client:
            session = client.session()
            for _ in range(2):
                generation = session.generate(prompt_token_ids=prompt, sampling=GREEDY, max_tokens=3, ignore_eos=True)
                result = generation.wait(timeout_s=60)
                found.append((result.usage.cached_tokens, result.token_ids))
            # Two blocks of each stage: a full one, and the prompt's partial one.
            wait_until(lambda: len(list((tmp_path / "kv").glob("*.kv"))) == 4)
            disks = [stage.disk for stage in client.caches().stages if stage.disk]
            counts.append([(disk.num_written, disk.num_read, disk.num_set_aside) for disk in disks])
            cluster.kill(0)
            cluster.kill(1)
    assert counts == [[(2, 0, 0)] * 2, [(0, 2, 0)] * 2]
    assert [cached for cached, _ in found] == [0, 19, 19, 19]
    assert len({token_ids for _, token_ids in found}) == 1


# --- failing, and leaving ---


def test_after_an_exception_no_process_is_left(tiny_model: str, tmp_path: Path) -> None:
    pids: list[int] = []

    def break_off() -> None:
        with LocalCluster(tiny_model, broker=FRESH, log_dir=tmp_path / "logs") as cluster:
            pids.extend(cluster.pids.values())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        break_off()
    assert len(pids) == 3
    assert all(is_gone(pid) for pid in pids)
    assert sorted(log.name for log in (tmp_path / "logs").iterdir()) == ["broker.log", "stage-0.log", "stage-1.log"]


def fails_to_start(cluster: LocalCluster) -> ClusterError:
    """The error of a start that must fail, with nothing left running."""
    started = {child.pid for child in psutil.Process().children()}
    with pytest.raises(ClusterError) as failed, cluster:
        pass
    assert failed.value.code is ErrorCode.STAGE_START_FAILED
    assert {child.pid for child in psutil.Process().children()} <= started
    assert cluster.pids == {}
    return failed.value


def test_a_stage_whose_model_file_is_cut_short_is_named_with_its_reason(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    shutil.copyfile(model_path, path)
    cluster = LocalCluster(str(path))
    with path.open("r+b") as file:  # after the plan was made: a stage is the first to see it
        file.truncate(path.stat().st_size // 2)
    error = fails_to_start(cluster)
    assert re.match(r"stage-[01] ended with exit code 1 while starting", error.detail)
    assert "error: " in error.detail
    assert "cut.gguf" in error.detail
    with pytest.raises(ModelError) as refused:
        LocalCluster(str(path))
    assert refused.value.code is ErrorCode.MODEL_FILE_INVALID


def test_a_stage_with_a_wrong_setting_is_named_with_its_reason(tiny_model: str) -> None:
    error = fails_to_start(LocalCluster(tiny_model, precision="f7"))
    assert "while starting" in error.detail
    assert "precision='f7'" in error.detail


def test_a_port_in_use_is_said_of_the_broker(cluster: LocalCluster, tiny_model: str) -> None:
    other = LocalCluster(tiny_model, broker=BrokerSpec(frontend_endpoint=cluster.endpoint))
    with pytest.raises(SettingsError, match="where clients connect, is taken by a Stagewire broker") as refused:
        other.start()
    assert refused.value.code is ErrorCode.PORT_IN_USE and other.pids == {}
    assert cluster.status().pipelines[0].state == "serving", "the one that has the port goes on"


def test_a_plan_that_does_not_fit_the_model_starts_nothing(tiny_model: str) -> None:
    with pytest.raises(SettingsError, match="stages=3: a model of 2 layers") as refused:
        LocalCluster(tiny_model, stages=3)
    assert refused.value.code is ErrorCode.INVALID_LAYER_RANGE


def test_a_cluster_that_was_not_started_says_so(tiny_model: str) -> None:
    cluster = LocalCluster(tiny_model)
    with pytest.raises(ClusterError, match="has not been started"):
        cluster.client()
    assert cluster.pids == {}
    cluster.close()  # harmless
