"""The folders of clusters: gone with them, and where one was killed, gone with the next."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stagewire.cluster.scratch import ScratchFolder, remove_abandoned
from stagewire.model.shipped import TINY_MODEL
from stagewire.wire.errors import ClusterError

HOLD = "from stagewire.cluster.scratch import ScratchFolder; s = ScratchFolder(); print(s.path, flush=True); input()"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of our own, here and in child processes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path
    tempfile.tempdir = None


def hold() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.processes
def test_the_folder_of_a_killed_process_goes_and_that_of_a_living_one_stays() -> None:
    killed, abandoned = hold()
    living, kept = hold()
    (abandoned / "stage-0.log").write_text("half a line")
    end(killed)
    try:
        assert abandoned.is_dir()
        assert remove_abandoned() == [abandoned]
        assert kept.is_dir()
        assert remove_abandoned() == []
    finally:
        end(living)
    assert remove_abandoned() == [kept]


def test_our_own_folder_stays_as_long_as_it_is_open(temporary: Path) -> None:
    folder = ScratchFolder()
    assert remove_abandoned() == []
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.close()
    folder.close()
    assert list(temporary.iterdir()) == []


def test_what_is_not_surely_ours_and_abandoned_is_left_alone(temporary: Path) -> None:
    """A folder in the making, a link, a file, another user's folder, another program's."""
    prefix = f"stagewire-up-{os.getuid()}-"
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "owner.lock").touch()
    (temporary / f"{prefix}link").symlink_to(elsewhere)
    (temporary / f"{prefix}file").touch()
    (temporary / f"{prefix}making").mkdir()
    for name in (f"{prefix}foreign", "stagewire-up-12345-x", "stagewire-other"):
        (temporary / name).mkdir()
        (temporary / name / "owner.lock").touch()
    if os.geteuid() == 0:
        os.chown(temporary / f"{prefix}foreign", 65534, 65534)
    else:
        (temporary / f"{prefix}foreign" / "owner.lock").unlink()
    before = sorted(temporary.iterdir())
    assert remove_abandoned() == []
    assert sorted(temporary.iterdir()) == before
    assert (elsewhere / "owner.lock").exists()


def test_where_files_cannot_be_locked_nothing_is_taken_for_abandoned(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_file: object, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    folder = ScratchFolder()
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert remove_abandoned() == []
    assert folder.path.is_dir()
    folder.close()
    assert list(temporary.iterdir()) == []


def test_without_a_folder_for_it_a_cluster_says_what_to_set(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "gone"))
    with pytest.raises(ClusterError, match=r"no temporary folder can be made: .*/gone/.*; set TMPDIR"):
        ScratchFolder()


@pytest.mark.slow
@pytest.mark.processes
def test_a_killed_up_leaves_nothing_for_long(temporary: Path) -> None:
    """Its processes end by themselves, and the next `up` removes its folder, as it does its own at Ctrl-C."""
    command = [sys.executable, "-m", "stagewire", "up", "--model", TINY_MODEL, "--frontend-port", "0"]

    def serve(number: signal.Signals) -> tuple[int, list[Path]]:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("serving")
            held = list(temporary.glob("stagewire-up-*"))
            children = psutil.Process(process.pid).children()
            process.send_signal(number)
            process.stdout.read()
            code = process.wait(20)
            assert not psutil.wait_procs(children, timeout=10)[1]
            return code, held

    code, first = serve(signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert len(first) == 1
    assert first[0].is_dir()
    code, second = serve(signal.SIGINT)
    assert code == 130
    assert len(second) == 1
    assert second != first
    assert list(temporary.glob("stagewire-up-*")) == []
