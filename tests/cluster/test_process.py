"""Child processes: readiness, early death, hangs, stubborn children, and a parent that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from stagewire.cluster.announcement import announce, read_announcement
from stagewire.cluster.process import ChildProcess, stop_all, wait_until_ready
from stagewire.cluster.watchdog import end_with_parent
from stagewire.wire.errors import ClusterError, ErrorCode, SettingsError

pytestmark = pytest.mark.processes

# Stands for a stage: takes the two flags, watches its parent, and then does what the test asks.
PRELUDE = """
import signal, sys, time
from pathlib import Path
from stagewire.cluster.announcement import announce
from stagewire.cluster.watchdog import end_with_parent
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
end_with_parent(int(flags["--parent-pipe"]))
def ready(**facts):
    announce(Path(flags["--announce"]), facts)
"""
# In short naps: a signal that comes just before a long one would be seen at its end only.
READY = "ready(port='1'); [time.sleep(0.05) for _ in range(1200)]"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); time.sleep(60)"

MakeChild = Callable[..., ChildProcess]


@pytest.fixture
def make_child(tmp_path: Path) -> Iterator[MakeChild]:
    made: list[ChildProcess] = []

    def make(body: str = READY, name: str = "stage-0", started: bool = True) -> ChildProcess:
        command = [sys.executable, "-c", PRELUDE + body]
        child = ChildProcess(name, command, tmp_path, tmp_path / f"{name}.log")
        made.append(child)
        if started:
            child.start()
        return child

    yield make
    for child in made:
        child.kill()


def wait_for(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_child_is_ready_once_it_has_announced_itself(make_child: MakeChild) -> None:
    child = make_child()
    wait_until_ready([child], timeout_s=10)
    assert child.announcement == {"port": "1"}
    assert child.is_running
    assert child.exit_code is None


def test_an_announcement_of_an_earlier_run_does_not_count(make_child: MakeChild) -> None:
    child = make_child()
    wait_until_ready([child], timeout_s=10)
    child.kill()
    child.start()
    assert child.announcement is None
    wait_until_ready([child], timeout_s=10)


def test_early_death_names_the_child_its_exit_code_and_its_last_lines(make_child: MakeChild) -> None:
    healthy, dying = make_child(), make_child("print('error: no layer 40'); sys.exit(7)", name="stage-1")
    began = time.monotonic()
    with pytest.raises(ClusterError) as caught:
        wait_until_ready([healthy, dying], timeout_s=30)
    assert time.monotonic() - began < 10, "noticed at death, not at the deadline"
    assert caught.value.code is ErrorCode.STAGE_START_FAILED
    detail = caught.value.detail
    assert "stage-1 ended with exit code 7 while starting" in detail
    assert "error: no layer 40" in detail


def test_death_by_a_signal_is_named(make_child: MakeChild) -> None:
    child = make_child("import os; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(ClusterError, match="stage-0 was ended by SIGSEGV"):
        wait_until_ready([child], timeout_s=10)


def test_a_child_that_hangs_while_starting_is_named_at_the_deadline(make_child: MakeChild) -> None:
    child = make_child("print('loading', flush=True); time.sleep(60)")
    with pytest.raises(ClusterError, match=r"stage-0 was not ready within 1 s"):
        wait_until_ready([child], timeout_s=1)


def test_a_command_that_does_not_exist_is_a_cluster_error(tmp_path: Path) -> None:
    child = ChildProcess("stage-0", ["/does/not/exist"], tmp_path, tmp_path / "log")
    with pytest.raises(ClusterError, match="stage-0 cannot be started"):
        child.start()
    child.kill()  # harmless


def test_stopping_asks_first_and_kills_who_does_not_listen(make_child: MakeChild) -> None:
    polite = make_child("signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); " + READY)
    stubborn = make_child(STUBBORN, name="stage-1")
    wait_until_ready([polite, stubborn], timeout_s=10)
    stop_all([polite, stubborn], timeout_s=0.5)
    assert polite.exit_code == 0
    assert stubborn.exit_code == -signal.SIGKILL
    assert polite.pid is None


def test_a_paused_child_stops_as_politely_as_any(make_child: MakeChild) -> None:
    child = make_child("signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); " + READY)
    wait_until_ready([child], timeout_s=10)
    child.signal(signal.SIGSTOP)
    stop_all([child], timeout_s=5)
    assert child.exit_code == 0


def test_killing_takes_along_what_the_child_started(make_child: MakeChild) -> None:
    child = make_child(
        "import subprocess; p = subprocess.Popen(['sleep', '60']); ready(pid=str(p.pid)); time.sleep(60)"
    )
    wait_until_ready([child], timeout_s=10)
    child.kill()
    grandchild = int((child.announcement or {})["pid"])
    wait_for(lambda: is_gone(grandchild))


PARENT = """
import sys, time
from pathlib import Path
from stagewire.cluster.process import ChildProcess, wait_until_ready
prelude, folder = sys.argv[1], Path(sys.argv[2])
bodies = [
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); time.sleep(60)",
    "time.sleep(60)",  # never ready, as if it were loading
]
children = [
    ChildProcess(f"stage-{i}", [sys.executable, "-c", prelude + body], folder, folder / f"{i}.log")
    for i, body in enumerate(bodies)
]
for child in children:
    child.start()
wait_until_ready(children[:1], 10)
print(*(child.pid for child in children), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_children_do_not_outlive_a_parent_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", PARENT, PRELUDE, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert not any(is_gone(pid) for pid in pids)
        parent.send_signal(number)
    wait_for(lambda: all(is_gone(pid) for pid in pids))


def test_a_watchdog_on_a_descriptor_that_is_not_open_is_a_settings_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    os.close(write_end)
    with pytest.raises(SettingsError, match=f"parent_pipe={write_end}"):
        end_with_parent(write_end)


def test_an_announcement_reads_back_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    assert read_announcement(path) is None
    announce(path, {"frontend": "tcp://127.0.0.1:7070"})
    assert read_announcement(path) == {"frontend": "tcp://127.0.0.1:7070"}
    assert list(tmp_path.iterdir()) == [path]
