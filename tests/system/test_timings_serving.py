"""Where the time of real requests went, on two processes with the default model: measured parts, and a small rest."""

from __future__ import annotations

import random
import re
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from stagewire.client import Client, ClientSettings, FinishReason, Result, SamplingParams, SnapshotRequest
from stagewire.client.result import TimeParts
from stagewire.cluster.local import LocalCluster
from stagewire.cluster.spec import BrokerSpec, StageLimits
from stagewire.sockets.condition import WireCondition
from stagewire.wire.counters import StageCounters

pytestmark = [pytest.mark.processes, pytest.mark.alone, pytest.mark.timeout(180)]

GREEDY = SamplingParams(temperature=0)
MAX_TOKENS = 24
NUM_REQUESTS = 7
LARGEST_REST = 0.05
FRESH = BrokerSpec(grace_s=0.2)
"""Nothing stands when it starts, so that there is nothing to wait for."""


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def cluster(log_dir: Path) -> Iterator[LocalCluster]:
    limits = StageLimits(log_level="debug")
    with LocalCluster(stages=2, threads=1, broker=FRESH, log_dir=log_dir, limits=limits) as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with cluster.client() as connected:
        yield connected


@pytest.fixture
def company(cluster: LocalCluster) -> Iterator[None]:
    """Two others, who prefill and decode all the time."""
    stop = threading.Event()

    def ask(seed: int) -> None:
        draw = random.Random(seed)
        with cluster.client() as other:
            while not stop.is_set():
                generate(other, prompt(draw, draw.choice([16, 200])), 16)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    yield
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def prompt(draw: random.Random, num_tokens: int) -> list[int]:
    return [draw.randrange(1000, 40000) for _ in range(num_tokens)]


def generate(client: Client, prompt_token_ids: list[int], max_tokens: int = MAX_TOKENS) -> Result:
    session = client.session()
    with session.generate(
        prompt_token_ids=prompt_token_ids, sampling=GREEDY, max_tokens=max_tokens, ignore_eos=True
    ) as generation:
        return generation.wait(60)


def parts_of(result: Result) -> TimeParts:
    parts = result.timings.parts
    assert parts is not None
    assert sum(seconds for _, seconds in parts.rows()) == pytest.approx(result.timings.total_s, abs=1e-9)
    assert all(seconds > -1e-9 for _, seconds in parts.rows()), parts
    return parts


def assert_small_rest(results: list[Result]) -> None:
    """By the median: a request whose process the system has put to sleep says nothing of the engine."""
    rests = [abs(parts_of(result).remainder_s) / result.timings.total_s for result in results]
    assert statistics.median(rests) < LARGEST_REST, rests


def cold_and_warm(client: Client, seed: int) -> tuple[list[Result], list[Result]]:
    draw = random.Random(seed)
    generate(client, prompt(draw, 20), 2)  # the link to the tail is there then
    prompts = [prompt(draw, 120) for _ in range(NUM_REQUESTS)]
    return [generate(client, one) for one in prompts], [generate(client, one) for one in prompts]


def test_alone_the_parts_are_measured_and_the_rest_is_small(client: Client) -> None:
    """Cold prompts are prefilled, warm ones restored; both decode on both stages, over links that take time."""
    cold, warm = cold_and_warm(client, seed=1)
    assert_small_rest(cold)
    assert_small_rest(warm)
    for result in cold:
        parts = parts_of(result)
        assert parts.prefill_s > 0 and parts.restore_s == 0
    for result in warm:
        parts = parts_of(result)
        assert result.usage.cached_tokens == 119
        assert parts.restore_s > 0 and parts.prefill_s == 0
    for result in cold + warm:
        parts = parts_of(result)
        assert len(parts.compute_s) == 2 and min(parts.compute_s) > 0
        assert min(parts.plan_s, parts.sample_s, parts.codec_s, parts.hops_s, parts.return_s) > 0
        assert sum(parts.compute_s) + parts.prefill_s < result.timings.total_s
        assert parts.paused_s == 0


@pytest.mark.usefixtures("company")
def test_in_company_the_rest_is_small_too(client: Client) -> None:
    """Steps are shared, and the others' prompts are waited for: that is queue."""
    cold, warm = cold_and_warm(client, seed=2)
    assert_small_rest(cold)
    assert_small_rest(warm)
    assert statistics.median(parts_of(result).queue_s for result in cold + warm) > 0.002


def test_a_caller_who_does_not_read_is_paused_and_nothing_else(client: Client) -> None:
    """Half a second in which nobody wants its tokens is not the pipeline's."""
    session = client.session()
    draw = random.Random(3)
    with session.generate(
        prompt_token_ids=prompt(draw, 20), sampling=GREEDY, max_tokens=MAX_TOKENS, ignore_eos=True
    ) as generation:
        next(generation)
        generation.pause()
        time.sleep(0.7)
        generation.resume()
        result = generation.wait(60)
    parts = parts_of(result)
    assert 0.5 < parts.paused_s < 1.0
    assert parts.hops_s < 0.2 and parts.queue_s < 0.2


def test_the_tail_logs_the_same_parts(client: Client, log_dir: Path) -> None:
    """One line for the request, found by its id."""
    session = client.session()
    with session.generate(
        prompt_token_ids=prompt(random.Random(4), 50), sampling=GREEDY, max_tokens=5, ignore_eos=True
    ) as generation:
        request_id, result = generation.request_id, generation.wait(60)
    parts = parts_of(result)
    line = logged(log_dir, request_id)
    (pipeline,) = client.status().pipelines
    assert f" client={client.settings.client_id} session={session.session_id} epoch={pipeline.epoch} " in line
    assert "ending=length prompt_tokens=50 cached_tokens=0 completion_tokens=5" in line
    assert f"prefill_ms={1000 * parts.prefill_s:.2f}" in line
    assert f"hops_ms={1000 * parts.hops_s:.2f}" in line
    assert f"compute_ms={','.join(f'{1000 * seconds:.2f}' for seconds in parts.compute_s)}" in line


def test_the_head_logs_each_restore(client: Client, log_dir: Path) -> None:
    """Found by the request, with what it brought, at debug level; a cold prompt has none."""
    session, draw = client.session(), random.Random(9)
    one = prompt(draw, 50)
    for number in range(2):
        with session.generate(prompt_token_ids=one, sampling=GREEDY, max_tokens=2, ignore_eos=True) as generation:
            request_id, result = generation.request_id, generation.wait(60)
        assert result.usage.cached_tokens == 49 * number
        logged(log_dir, request_id)
        lines = [line for path in log_dir.rglob("*.log") for line in path.read_text().splitlines()]
        found = [line for line in lines if "event=restore " in line and f"request={request_id} " in line]
        assert len(found) == number
    (line,) = found
    assert f"level=DEBUG event=restore request={request_id} session={session.session_id} epoch=" in line
    assert " outcome=hit missed_at=- asked=49 tokens=49 fetched=0 bytes=" in line
    num_bytes, elapsed_ms = (re.search(f" {name}=([0-9.]+)", line) for name in ("bytes", "elapsed_ms"))
    assert num_bytes and elapsed_ms
    caches = client.caches().stages
    assert int(num_bytes[1]) == sum(49 * stage.block_bytes // stage.block_size for stage in caches)
    assert 0 < float(elapsed_ms[1]) < 1000 * result.timings.total_s


def logged(log_dir: Path, request_id: str) -> str:
    """The timing line of a request; written a moment after its tokens were sent."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        lines = [line for path in log_dir.rglob("*") if path.is_file() for line in path.read_text().splitlines()]
        found = [line for line in lines if "event=request_timing" in line and f"request={request_id} " in line]
        if found:
            assert len(found) == 1
            return found[0]
        time.sleep(0.05)
    raise AssertionError(f"no timing line for {request_id}")


@pytest.mark.parametrize(("stop", "return_path"), [("13", "direct"), (", 14, 1", "broker"), ("5,", "direct")])
def test_a_stop_string_ends_an_answer_as_the_tail_would_have(
    cluster: LocalCluster, log_dir: Path, stop: str, return_path: Literal["direct", "broker"]
) -> None:
    """Tokens, usage, cached and kept ones are those of a budget of the same length; parts, log and metrics tell."""
    with Client(settings=ClientSettings(endpoint=cluster.endpoint, return_path=return_path)) as client:
        stop_while_counting(cluster, client, log_dir, stop)


def stop_while_counting(cluster: LocalCluster, client: Client, log_dir: Path, stop: str) -> None:
    session, text = client.session(), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,"
    session.generate(text, raw=True, sampling=GREEDY, max_tokens=0).wait(60)
    before = num_ended(cluster)
    wish = SnapshotRequest("counting")
    with session.generate(
        text, raw=True, sampling=GREEDY, max_tokens=100, stop=["never", stop], snapshot=wish
    ) as generation:
        request_id, stopped = generation.request_id, generation.wait(60)
    client.free_snapshot("counting")
    num_tokens = stopped.usage.completion_tokens
    budget = session.generate(text, raw=True, sampling=GREEDY, max_tokens=num_tokens, snapshot=wish).wait(60)
    client.free_snapshot("counting")
    assert (stopped.finish_reason, stopped.stop_reason) == (FinishReason.STOP, stop)
    assert (stopped.token_ids, stopped.usage) == (budget.token_ids, budget.usage)
    assert stopped.usage.cached_tokens == stopped.usage.prompt_tokens - 1 > 16
    assert stopped.kept_tokens == budget.kept_tokens == stopped.usage.prompt_tokens
    assert stopped.cache.hits == 2 and len(stopped.timings.stages) == 2
    parts_of(stopped)
    assert f"ending=stop prompt_tokens={stopped.usage.prompt_tokens} " in (line := logged(log_dir, request_id))
    assert f"completion_tokens={num_tokens} " in line
    after = num_ended(cluster)
    assert {reason: after[reason] - before[reason] for reason in after} == {"stop": 1, "length": 1, "cancelled": 0}


def test_an_iterator_that_is_left_early_is_a_cancel(cluster: LocalCluster, client: Client) -> None:
    """Whoever stops reading has his reasons; nothing has ended the answer."""
    before = num_ended(cluster)
    with client.session().generate(
        "Count: 1, 2, 3,", raw=True, sampling=GREEDY, max_tokens=400, stop="never"
    ) as generation:
        for token in generation:
            if "5" in token.text:
                break
    assert generation.result.finish_reason is FinishReason.CANCELLED
    deadline = time.monotonic() + 10
    while (after := num_ended(cluster))["cancelled"] == before["cancelled"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {reason: after[reason] - before[reason] for reason in after} == {"stop": 0, "length": 0, "cancelled": 1}


def num_ended(cluster: LocalCluster) -> dict[str, int]:
    """Requests that the broker has counted as ended, by reason, once it has heard of all."""
    deadline = time.monotonic() + 10
    while sum(pipeline.num_requests for pipeline in cluster.status().pipelines) and time.monotonic() < deadline:
        time.sleep(0.02)
    with urllib.request.urlopen(f"http://{cluster.metrics_address}/metrics", timeout=10) as page:
        found = re.findall(r'request_success_total\{.*finished_reason="(\w+)".*\} ([\d.]+)', page.read().decode())
    return {"stop": 0, "length": 0, "cancelled": 0} | {reason: int(float(value)) for reason, value in found}


def test_the_status_tells_what_the_stages_have_done(cluster: LocalCluster, client: Client) -> None:
    """Tokens, prompts and cached ones are exactly what was asked for; times fit into the time that has passed."""
    time.sleep(1.2)  # two heartbeats, so that nothing of an earlier request is still to be told
    before = told(cluster)
    draw = random.Random(5)
    one = prompt(draw, 64)
    results = [generate(client, one, 8), generate(client, one, 8)]
    after = told(cluster, num_generated=before[0] + 16)
    assert after[0] - before[0] == 16
    assert after[1] - before[1] == 128
    assert after[2] - before[2] == sum(result.usage.cached_tokens for result in results) == 63
    for counters in at_rest(cluster):
        busy_s = counters.prefill_s + counters.decode_s + counters.plan_s + counters.sample_s + counters.codec_s
        assert 0 < busy_s + counters.idle_s <= counters.uptime_s
        assert counters.num_cached_blocks > 0
        if counters.head:
            assert counters.head.num_round_trips > 0 and 0 < counters.head.hops_s < counters.head.round_trips_s
            assert (counters.head.num_waiting, counters.head.num_running) == (0, 0)


def at_rest(cluster: LocalCluster) -> list[StageCounters]:
    """Of both stages, once they have told that no block is in use any more."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = [stage.counters for stage in cluster.status().stages if stage.counters]
        if [counters.num_used_blocks for counters in found] == [0, 0]:
            return found
        time.sleep(0.1)
    raise AssertionError("blocks stay in use")


def told(cluster: LocalCluster, num_generated: int | None = None) -> tuple[int, int, int]:
    """Generated, prompt and cached tokens, by the tail; heartbeats tell them within a second or so."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        tails = [stage.counters.tail for stage in cluster.status().stages if stage.counters and stage.counters.tail]
        if len(tails) == 1 and num_generated in (None, tails[0].num_generated_tokens):
            return tails[0].num_generated_tokens, tails[0].num_prompt_tokens, tails[0].num_cached_tokens
        time.sleep(0.1)
    raise AssertionError("the counters do not come")


def test_a_slow_link_shows_as_hops() -> None:
    """Each of the two hops of a step, there and back, takes 20 ms more than it would."""
    slow = {"hop": WireCondition(delay_s=0.02), "feed": WireCondition(delay_s=0.02)}
    with LocalCluster(stages=2, threads=1, broker=FRESH, conditions=slow) as cluster, cluster.client() as client:
        generate(client, prompt(random.Random(6), 20), 2)
        result = generate(client, prompt(random.Random(7), 20), 9)
        status = cluster.status()
    parts = parts_of(result)
    assert 8 * 0.04 <= parts.hops_s < 8 * 0.06
    assert parts.queue_s < 0.1
    head = next(stage.counters.head for stage in status.stages if stage.counters and stage.counters.head)
    assert head.hops_s / head.num_round_trips > 0.035


def test_the_documents_show_the_line_with_the_names_that_it_has() -> None:
    """Who searches the log by them finds them."""
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if "event=request_timing" in line)
    names = re.findall(r"(\w+)=", line)
    assert names[-10:] == [
        "admission_ms", "queue_ms", "paused_ms", "restore_ms", "prefill_ms", "plan_ms", "sample_ms", "codec_ms",
        "hops_ms", "compute_ms",
    ]  # fmt: skip
