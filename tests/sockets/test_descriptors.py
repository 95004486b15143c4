"""What a process may still open: counted truly, in a process of its own under each limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stagewire.sockets import descriptors
from stagewire.sockets.open_files import open_file_limit

_COUNT = """
import os, resource, sys
from stagewire.sockets import descriptors
from stagewire.sockets.open_files import open_file_limit, raise_open_file_limit
soft, hard, num_open = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
before = descriptors.num_free()
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(num_open)]
after = descriptors.num_free()
while True:
    try:
        held.append(os.dup(0))
    except OSError:
        break
print(before - after, len(held) - num_open - after, descriptors.num_free(), descriptors.has_room(0))
for descriptor in held:
    os.close(descriptor)
raise_open_file_limit()
print(open_file_limit(), descriptors.num_free() - before, descriptors.has_room(0))
raise_open_file_limit()
"""


def in_a_process(code: str, *arguments: int) -> list[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(("soft", "hard", "num_open"), [(64, 64, 0), (100, 200, 17), (33, 1000, 5)])
def test_what_is_free_is_what_can_be_opened(soft: int, hard: int, num_open: int) -> None:
    """To the last one; at the limit nothing is, and raised is as far as the system lets it."""
    first, second = in_a_process(_COUNT, soft, hard, num_open)
    assert first == f"{num_open} 0 0 False"
    assert second == f"{hard} {hard - soft} True"


def test_where_the_system_does_not_tell_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without /proc nobody could be served otherwise."""
    monkeypatch.setattr(descriptors, "_LISTING", str(tmp_path / "none"))
    assert descriptors.num_free() == open_file_limit()
    descriptors.require(24, "a client")


_REQUIRE = """
import resource, sys
from stagewire.sockets import descriptors
from stagewire.sockets.open_files import open_file_limit, raise_open_file_limit
from stagewire.wire.errors import SettingsError
resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
free = descriptors.num_free()
descriptors.require(free, "a thing")
try:
    with descriptors.room_for(free + 1, "a thing"):
        print("entered")
except SettingsError as error:
    print(error.code.value, error.retryable)
    print(error.detail.replace(str(free + 1), "N+1").replace(str(free), "N"))
with descriptors.room_for(1, "another"):
    print("free again")
"""


def test_what_cannot_be_had_is_refused_with_what_to_do() -> None:
    """And whoever comes next is not kept out by it."""
    assert in_a_process(_REQUIRE) == [
        "descriptor_limit False",
        "a thing needs N+1 more open files, and N of 80 are left: raise the limit (ulimit -n)",
        "free again",
    ]


_FORK = """
import os, threading
from stagewire.sockets import descriptors
from stagewire.sockets.open_files import open_file_limit, raise_open_file_limit
inside, leave = threading.Event(), threading.Event()
def hold():
    with descriptors.room_for(1, "a thread"):
        inside.set(); leave.wait()
thread = threading.Thread(target=hold)
thread.start(); inside.wait()
child = os.fork()
if child == 0:
    with descriptors.room_for(1, "a child"):
        os._exit(7)
leave.set(); thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_while_somebody_opens_does_not_stop_the_child() -> None:
    """It has a copy of the lock that nobody will ever release."""
    assert in_a_process(_FORK) == ["7"]
