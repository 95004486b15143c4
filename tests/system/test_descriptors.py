"""Few open files: who is served already is not hurt, who is too many is told so, and room comes back.

Limits belong to a process, so whoever shall have few is a process of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from support.in_process import request
from support.limited_cluster import limited_cluster
from support.short_form import short
from support.whole_model import whole_model

from stagewire.client import Client, Generation
from stagewire.wire.errors import ErrorCode, StagewireError
from stagewire.wire.sampling import SamplingParams

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

GREEDY = SamplingParams(temperature=0.0)
NUM_TOKENS = 12
WAIT_S = 60.0


def prompt(number: int) -> list[int]:
    return [504, 3575, 282, 1000 + number]


def expected_answers(num_prompts: int) -> list[list[int]]:
    """What the unsplit model says, in this process."""
    pipeline = whole_model().pipeline()
    pipeline.start(*(request(f"r{i}", prompt(i), NUM_TOKENS, GREEDY) for i in range(num_prompts)))
    outputs = pipeline.run()
    return [outputs[f"r{i}"].token_ids for i in range(num_prompts)]


def ask(client: Client, number: int) -> Generation:
    return client.session().generate(
        prompt_token_ids=prompt(number), sampling=GREEDY, max_tokens=NUM_TOKENS, ignore_eos=True
    )


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process has the clients, each of which takes some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Crowd:
    """Clients that come one after the other, each with a request."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.served: list[tuple[Client, Generation]] = []
        self.refused: list[tuple[Client, StagewireError]] = []

    def come(self, num_clients: int) -> None:
        for number in range(num_clients):
            client = Client(self._endpoint)
            try:
                client.connect()
            except StagewireError as error:
                self.refused.append((client, error))
            else:
                self.served.append((client, ask(client, number)))

    def answers(self) -> list[list[int]]:
        results = [generation.wait(WAIT_S) for _, generation in self.served]
        assert not [result.error for result in results if result.error]
        return [list(result.token_ids) for result in results]

    def leave(self, num_clients: int) -> None:
        leaving, self.served = self.served[:num_clients], self.served[num_clients:]
        for client, _ in leaving:
            client.close()

    def go(self) -> None:
        for client, _ in [*self.served, *self.refused]:
            client.close()


def num_open() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def lines(log_dir: Path, process: str, event: str) -> int:
    return (log_dir / f"{process}.log").read_text("utf-8").count(f"event={event} ")


@pytest.mark.parametrize(
    ("num_files", "num_clients", "are_refused"),
    short([(70, 40, True), (100, 40, False), (80, 50, True), (256, 62, False)], keep=1, width=3),
)
@pytest.mark.usefixtures("many_files")
def test_many_clients_of_processes_with_few_files(
    tmp_path: Path, num_files: int, num_clients: int, are_refused: bool
) -> None:
    """Those that fit get their exact tokens, some through the broker; the others a retryable refusal, at once.

    When some leave, as many may come; the tail dials again; and all have what they had at first when everybody is gone.
    """
    with limited_cluster(num_files, tmp_path) as endpoint:
        crowd = Crowd(endpoint)
        try:
            crowd.come(num_clients)
            assert bool(crowd.refused) == are_refused
            assert {error.code for _, error in crowd.refused} <= {ErrorCode.CLIENT_LIMIT}
            assert all(error.retryable and "ulimit -n" in error.detail for _, error in crowd.refused)
            num_served = len(crowd.served)
            assert num_served > 12
            assert crowd.answers() == expected_answers(num_served)
            assert lines(tmp_path, "stage-1", "no_room_to_dial") > 0
            crowd.leave(num_served - 2)
            time.sleep(1.0)
            dials = lines(tmp_path, "stage-1", "dial")
            before = len(crowd.refused)
            crowd.come(4)
            assert len(crowd.refused) == before
            assert crowd.answers()[2:] == expected_answers(4)
            assert lines(tmp_path, "stage-1", "dial") - dials >= 4
        finally:
            crowd.go()
    logs = "".join(path.read_text("utf-8") for path in tmp_path.glob("*.log"))
    assert "Traceback" not in logs and "step_failed" not in logs


@pytest.mark.slow
@pytest.mark.usefixtures("many_files")
def test_a_stream_that_began_on_the_relay_is_direct_when_there_is_room(tmp_path: Path) -> None:
    """Without a break, and without a request that is new."""
    with limited_cluster(70, tmp_path) as endpoint:
        crowd = Crowd(endpoint)
        try:
            crowd.come(10)
            last = crowd.served[-1][0]
            long = last.session().generate(
                prompt_token_ids=prompt(99), sampling=GREEDY, max_tokens=1500, ignore_eos=True
            )
            taken = [next(long).token_id for _ in range(4)]
            dials = lines(tmp_path, "stage-1", "dial")
            crowd.leave(9)
            deadline = time.monotonic() + 20
            while lines(tmp_path, "stage-1", "dial") == dials:
                taken.append(next(long).token_id)
                assert time.monotonic() < deadline
            taken += [next(long).token_id for _ in range(300)]
            long.cancel()
            assert taken == list(long.wait(WAIT_S).token_ids)[: len(taken)]
        finally:
            crowd.go()


@pytest.mark.slow
@pytest.mark.usefixtures("many_files")
def test_a_flood_and_strangers_end_nobody(tmp_path: Path) -> None:
    """All files of the broker are taken at once by who never speaks: a stream goes on; afterwards others may come."""
    with limited_cluster(70, tmp_path) as endpoint, Client(endpoint) as first:
        generation = ask(first, 0)
        assert list(generation.wait(WAIT_S).token_ids) == expected_answers(1)[0]
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        strangers = [context.socket(zmq.DEALER) for _ in range(100)]
        for stranger in strangers:
            stranger.set(zmq.LINGER, 0)
            stranger.connect(endpoint)
        time.sleep(1.0)
        try:
            assert list(ask(first, 1).wait(WAIT_S).token_ids) == expected_answers(2)[1]
        finally:
            context.destroy(linger=0)
        time.sleep(0.5)
        with Client(endpoint) as second:
            assert list(ask(second, 1).wait(WAIT_S).token_ids) == expected_answers(2)[1]


# --- one client ---

_FILL = """
import json, os, resource, sys, threading
limit, endpoint = int(sys.argv[1]), sys.argv[2]
from stagewire.client import Client
from stagewire.wire.errors import StagewireError
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
count = lambda: len(os.listdir("/proc/self/fd"))
clients, told = [], None
while told is None:
    before, threads = count(), threading.active_count()
    try:
        clients.append(Client(endpoint))
        clients[-1].connect()
    except StagewireError as error:
        told = error
left = count() - before, threading.active_count() - threads
answer = clients[0].session().generate(prompt_token_ids=[504], max_tokens=3).wait(60)
num_clients = len(clients)
if clients:
    clients.pop().close()
for client in clients[:2]:
    clients.remove(client)
    client.close()
Client(endpoint).connect()
print(json.dumps([type(told).__name__, told.code.value, told.retryable, told.detail, left, num_clients,
                  len(answer.token_ids)]))
"""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with limited_cluster(1024, tmp_path_factory.mktemp("logs")) as endpoint:
        yield endpoint


def in_a_process(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("num_files", short([64, 100, 256], keep=1))
def test_the_client_that_finds_no_room_says_so_and_leaves_nothing_behind(num_files: int, endpoint: str) -> None:
    """The others go on, and when one is closed there is room for another."""
    name, code, retryable, detail, left, num_clients, num_tokens = json.loads(in_a_process(_FILL, num_files, endpoint))
    assert (name, code, retryable) == ("SettingsError", "descriptor_limit", False)
    assert f"of {num_files} are left" in detail and "ulimit -n" in detail
    assert left == [0, 0]
    assert num_clients >= (num_files - 40) // 11
    assert num_tokens == 3


_AT_ONCE = """
import resource, sys, threading
from stagewire.client import Client
from stagewire.wire.errors import SettingsError
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
made, refused = [], []
def make():
    try:
        made.append(Client(sys.argv[2]))
    except SettingsError as error:
        refused.append(error.code.value)
threads = [threading.Thread(target=make) for _ in range(24)]
for thread in threads: thread.start()
for thread in threads: thread.join()
for client in made: client.connect()
print(len(made) > 0, len(made) + len(refused), *set(refused))
"""


@pytest.mark.parametrize("num_files", short([50, 77, 128], keep=1))
def test_clients_that_are_made_by_many_threads_at_once_do_not_count_the_same_room(
    num_files: int, endpoint: str
) -> None:
    """libzmq would abort the process."""
    assert in_a_process(_AT_ONCE, num_files, endpoint) == "True 24 descriptor_limit\n"


def test_a_client_opens_few_files(endpoint: str) -> None:
    """Eleven until its first request, twenty with its return link; and none when it is closed."""

    def settled(num_files: int) -> bool:
        deadline = time.monotonic() + 5
        while num_open() - before > num_files and time.monotonic() < deadline:
            time.sleep(0.05)
        return num_open() - before <= num_files

    before = num_open()
    with Client(endpoint) as client:
        client.connect()
        client.status()
        assert settled(11)
        for number in range(3):
            ask(client, number).wait(WAIT_S)
            assert settled(20)
    assert settled(0)


# --- starting ---


@pytest.mark.parametrize("num_files", short([24, 32, 47], keep=1))
@pytest.mark.parametrize("process", ["broker", "stage"])
def test_a_process_that_could_not_serve_does_not_start(num_files: int, process: str) -> None:
    """One line says what is missing, instead of an abort in a library or a service that hangs."""
    options = {
        "broker": ["--frontend-endpoint", "tcp://127.0.0.1:*", "--control-endpoint", "tcp://127.0.0.1:*"],
        "stage": ["--model", "smollm2-135m", "--layers", "0:13"],
    }
    done = subprocess.run(
        limited(num_files, num_files, process, *options[process]),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    first, *_ = done.stderr.splitlines()
    assert first.startswith(f"error: a {process} needs 48 more open files") and "ulimit -n" in first


def limited(soft: int, hard: int, *arguments: str) -> list[str]:
    """The command line of `stagewire` with these arguments, under these limits."""
    script = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"'
    return ["sh", "-c", script, "sh", sys.executable, "-m", "stagewire", *arguments]


@pytest.mark.parametrize(("soft", "hard"), short([(64, 256), (100, 100), (40, 300)], keep=1, width=2))
def test_a_command_may_open_as_many_as_the_system_lets_it(soft: int, hard: int, tmp_path: Path) -> None:
    """Its soft limit is raised to the hard one before anything else."""
    announced = tmp_path / "broker.json"
    options = ["--frontend-endpoint=tcp://127.0.0.1:*", "--control-endpoint=tcp://127.0.0.1:*", "--announce"]
    broker = subprocess.Popen(limited(soft, hard, "broker", *options, str(announced)), stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not announced.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        broker.terminate()
        broker.wait(20)
