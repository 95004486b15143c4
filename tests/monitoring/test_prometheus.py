"""A real Prometheus server scrapes a live cluster: what it shows is what happened, and its alerts fire and resolve."""

from __future__ import annotations

import json
import math
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.watching import PrometheusServer, Shown, fetch, series_of, shown, tool

from stagewire.client import Client
from stagewire.cluster.local import LocalCluster
from stagewire.cluster.spec import BrokerSpec, StageLimits
from stagewire.monitoring.metric import Kind
from stagewire.monitoring.metrics import METRICS
from stagewire.wire.errors import ErrorCode
from stagewire.wire.request import SnapshotRequest
from stagewire.wire.sampling import SamplingParams

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

GREEDY = SamplingParams(temperature=0.0)
STAGES = ("stage-0", "stage-1")
BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two stages with a small KV pool and files; a lost one is noticed within a second."""
    disk, snapshots = (str(tmp_path_factory.mktemp(name)) for name in ("kv", "snapshots"))
    limits = StageLimits(kv_tokens=1024, disk_directory=disk, snapshot_directory=snapshots)
    with LocalCluster(split="0:13,13:30", limits=limits, broker=BrokerSpec(stage_silence_s=1.0)) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    tool("prometheus")
    server = PrometheusServer(tmp_path_factory.mktemp("prometheus"), cluster.metrics_address)
    try:
        server.wait(lambda: server.value('sum(up{job="stagewire"})') == 3, 30, "all three processes are scraped")
        yield server
    finally:
        server.close()


def ask(client: Client, prompt: list[int], max_tokens: int = 4) -> int:
    """Run one request to its end; returns the tokens that caches held."""
    generation = client.session().generate(
        prompt_token_ids=prompt, sampling=GREEDY, max_tokens=max_tokens, ignore_eos=True
    )
    result = generation.wait(60)
    assert result.error is None, result.error
    return result.usage.cached_tokens


class Book:
    """What caches that hold all prompts so far give a prompt; the answers are too short to fill a block."""

    def __init__(self) -> None:
        self._prompts: list[list[int]] = []

    def found(self, prompt: list[int]) -> int:
        """Full blocks, and then the longest end of an earlier prompt that goes on behind them."""
        common = [_num_common(prompt, earlier) for earlier in self._prompts]
        num_full = max((length // BLOCK_SIZE * BLOCK_SIZE for length in common), default=0)
        ends = [len(p) for p, length in zip(self._prompts, common, strict=True) if length == len(p)]
        reach = max([num_full, *(end for end in ends if end // BLOCK_SIZE * BLOCK_SIZE == num_full)])
        self._prompts.append(prompt)
        return min(reach, len(prompt) - 1)


def _num_common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def test_hit_rates_shown_are_those_that_we_counted_ourselves(
    cluster: LocalCluster, prometheus: PrometheusServer
) -> None:
    """Exactly: in tokens at each stage, and as the share that the dashboards show."""
    rng = random.Random(5)
    base = [rng.randrange(300, 40_000) for _ in range(70)]
    prompts = [
        base,
        base,
        [*base[:40], 9],
        base[:33],
        base[:64],
        [*base, 17, 18],
        [11, 12, 13],
        base[:50],
        [11, 12, 13],
    ]
    book, found = Book(), []
    with cluster.client() as client:
        for prompt in prompts:
            found.append(book.found(prompt))
            assert ask(client, prompt) == found[-1]
    num_prompt, num_cached = sum(map(len, prompts)), sum(found)
    num_asked = num_prompt - len(prompts)  # of each prompt the last token is always computed
    assert 0.3 < num_cached / num_prompt < 0.95
    expected = {
        "stagewire_prompt_tokens_total": num_prompt,
        "stagewire_prompt_tokens_cached_total": num_cached,
        'stagewire_prefix_cache_queries_total{stage="stage-0"}': num_asked,
        'sum(stagewire_prefix_cache_hits_total{stage="stage-0"})': num_cached,
        'stagewire_prefix_cache_misses_total{stage="stage-0"}': num_asked - num_cached,
        'stagewire_prefix_cache_queries_total{stage="stage-1"}': num_cached,
        'sum(stagewire_prefix_cache_hits_total{stage="stage-1"})': num_cached,
        'stagewire_prefix_cache_misses_total{stage="stage-1"}': 0,
        'stagewire_request_success_total{finished_reason="length"}': len(prompts),
        "stagewire_generation_tokens_total": 4 * len(prompts),
    }
    values = dict.fromkeys(expected, math.nan)

    def is_up_to_date() -> bool:
        values.update({key: prometheus.value(key) for key in expected})
        return values == expected

    prometheus.wait(is_up_to_date, 20, f"{expected}, but {values}")
    rates = [one.expression for one in shown() if one.panel in {"Prompt tokens from caches", "Hit rate by stage"}]
    assert len(rates) == 3
    shares = {"": num_cached / num_prompt, "stage-0": num_cached / num_asked, "stage-1": 1.0}
    for expression in rates:
        for labels, value in prometheus.query(_concrete(expression, ".*", "10m")):
            assert value == pytest.approx(shares[labels.get("stage", "")], rel=1e-9), expression


def test_discovery_lists_all_processes_and_their_pages_are_as_promtool_wants_them(
    cluster: LocalCluster, prometheus: PrometheusServer
) -> None:
    """Each target is up, under the labels that dashboards use."""
    groups = json.loads(fetch(cluster.metrics_address, "/sd"))
    assert [group["labels"] for group in groups] == [
        {"role": "broker"},
        *({"role": "stage", "stage": stage, "instance": stage} for stage in STAGES),
    ]

    def healthy() -> set[str]:
        targets = prometheus.ask("targets", state="active")["activeTargets"]
        return {one["labels"]["instance"] for one in targets if one["health"] == "up"}

    prometheus.wait(lambda: healthy() == {cluster.metrics_address, *STAGES}, 20, "all targets are up")
    for group in groups:
        page = fetch(group["targets"][0], "/metrics")
        done = subprocess.run(
            [tool("promtool"), "check", "metrics"], input=page, capture_output=True, text=True, check=False, timeout=30
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_killed_stage_fires_its_alert_and_a_restart_resolves_it(
    cluster: LocalCluster, prometheus: PrometheusServer
) -> None:
    """So does the missing pipeline. What ran on it ends with an error, which is counted."""
    prometheus.wait(lambda: prometheus.firing() == set(), 30, "all is well")
    with cluster.client() as client:
        generation = client.session().generate(
            prompt_token_ids=[500, 501], sampling=GREEDY, max_tokens=900, ignore_eos=True
        )
        next(iter(generation))
        cluster.kill(1)
        result = generation.wait(30, check=False)
    assert result.error is not None
    assert result.error.code is ErrorCode.STAGE_LOST
    fired = {("StageDown", "stage-1"), ("NoPipeline", "")}
    prometheus.wait(lambda: fired <= prometheus.firing(), 30, f"{fired} fire")
    assert ("StageDown", "stage-0") not in prometheus.firing()
    cluster.restart(1)
    cluster.wait_until_serving()
    prometheus.wait(lambda: not fired & prometheus.firing(), 30, "they are resolved")
    assert prometheus.value('stagewire_request_failures_total{code="stage_lost"}') == 1


def _concrete(expression: str, stage: str, window: str) -> str:
    """As Grafana would send it."""
    return expression.replace("$__rate_interval", window).replace("$stage", stage)


def _stages_of(expression: str) -> tuple[str, ...]:
    """What the variable stands for in turn: a row's own stage, or all that are chosen."""
    if "$stage" not in expression:
        return ("",)
    return ("|".join(STAGES),) if 'stage=~"$stage"' in expression else STAGES


def _returns_data(prometheus: PrometheusServer, one: Shown) -> bool:
    """A number for at least one series; not only NaN, which is a quantile of nothing."""
    answers = [prometheus.query(_concrete(one.expression, stage, "2m")) for stage in _stages_of(one.expression)]
    return any(math.isfinite(value) for answer in answers for _, value in answer)


def _exercise(cluster: LocalCluster) -> None:
    """Everything that a panel shows, once: crowds, long prompts, misses, evictions, snapshots, refusals."""
    rng = random.Random(1)

    def fresh(length: int) -> list[int]:
        return [rng.randrange(300, 40_000) for _ in range(length)]

    with cluster.client() as client:
        session = client.session()
        shared = fresh(80)
        too_long = session.generate(prompt_token_ids=fresh(300), sampling=GREEDY, max_tokens=100_000)
        refused = too_long.wait(10, check=False)
        assert refused.error is not None
        assert refused.error.code is ErrorCode.CONTEXT_OVERFLOW
        for prompt in [shared, [*shared, 5], *(fresh(300) for _ in range(4))]:
            ask(client, prompt, 8)
        crowd = [
            session.generate(prompt_token_ids=fresh(40), sampling=GREEDY, max_tokens=30, ignore_eos=True)
            for _ in range(8)
        ]
        for generation in crowd:
            assert generation.wait(60).error is None
        wish = SnapshotRequest("kept")
        session.generate(prompt_token_ids=shared, sampling=GREEDY, max_tokens=1, snapshot=wish).wait(30)
        assert [one.name for one in client.snapshots().items] == ["kept"]
        client.export_snapshot("kept", "kept-v1")
        client.free_snapshot("kept")
        client.clear_caches()
        assert ask(client, shared) == len(shared) - 1, "from files"


_MAY_STAY_AT_ZERO = {
    "stagewire_num_preemptions_total",  # admission keeps room for all
    "stagewire_bad_messages_total",
    "stagewire_undelivered_messages_total",
    "stagewire_kv_key_collisions_total",
    "stagewire_broker_queue_time_seconds_sum",
}


def _unmoved(prometheus: PrometheusServer) -> set[str]:
    """Counters, and sums of histograms, that have not counted anything."""
    counted = [metric for metric in METRICS.values() if metric.kind is not Kind.GAUGE]
    names = [metric.name if metric.kind is Kind.COUNTER else f"{metric.name}_sum" for metric in counted]
    return {name for name in names if not prometheus.value(f"sum({name})") > 0} - _MAY_STAY_AT_ZERO


def test_every_panel_of_every_dashboard_returns_data(cluster: LocalCluster, prometheus: PrometheusServer) -> None:
    """After work that has moved all counters; a stage was lost before. Otherwise panels might show zeros only."""
    _exercise(cluster)
    panels = list(shown())
    assert len(panels) > 60
    empty: list[object] = []

    def is_all_there() -> bool:
        empty[:] = _unmoved(prometheus) or [one for one in panels if not _returns_data(prometheus, one)]
        return not empty

    try:
        prometheus.wait(is_all_there, 30, "data in all panels")
    finally:
        assert empty == []


def test_a_killed_broker_fires_its_alert_and_is_found_again_at_the_same_address(
    cluster: LocalCluster, prometheus: PrometheusServer
) -> None:
    """Its stages come back to it, and so they do to discovery."""
    address = cluster.metrics_address
    cluster.kill_broker()
    prometheus.wait(lambda: ("BrokerDown", "") in prometheus.firing(), 30, "BrokerDown fires")
    cluster.restart_broker()
    cluster.wait_until_serving()
    assert cluster.metrics_address == address
    prometheus.wait(lambda: prometheus.firing() == set(), 30, "all is well again")
    assert len(json.loads(fetch(address, "/sd"))) == 3


@pytest.mark.slow
def test_metrics_can_be_switched_off() -> None:
    """In all processes; everything else works."""
    limits, broker = StageLimits(metrics_port="off"), BrokerSpec(metrics_port="off")
    with LocalCluster(split="0:29,29:30", limits=limits, broker=broker) as cluster, cluster.client() as client:
        assert cluster.metrics_address == ""
        assert [stage.info.metrics_address for stage in cluster.status().stages] == ["", ""]
        ask(client, [500, 501])
        cluster.restart_broker()
        assert cluster.metrics_address == ""


NUM_KILLS, NUM_STOPS = 60, 140


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_200_restarts_leave_no_series_behind_and_no_longer_page(tmp_path: Path) -> None:
    """A stage that comes back continues its series, killed or stopped, on whatever port."""
    with LocalCluster(split="0:1,1:30", broker=BrokerSpec(stage_silence_s=0.8)) as cluster:
        server = PrometheusServer(tmp_path, cluster.metrics_address)
        try:
            before = _pages(cluster)
            num_series = sum(map(len, before)) + _SERIES_OF_A_TARGET * len(before)
            server.wait(lambda: len(_live(server)) == num_series, 30, "all processes are scraped")
            live, head = _live(server), _head_series(server)
            addresses = set()
            for number in range(NUM_KILLS + NUM_STOPS):
                (cluster.stop if number % 10 < NUM_STOPS // 20 else cluster.kill)(0)
                cluster.restart(0)
                addresses.add(_address_of(cluster, "stage-0"))
            cluster.wait_until_serving()
            assert len(addresses) > 100
            lost = server.value("max_over_time(stagewire_stages_lost_total[15m])")
            assert NUM_KILLS - 1 <= lost <= NUM_KILLS
            after = _pages(cluster)
            assert [set(page) for page in after] == [set(page) for page in before]
            # Prometheus takes up to ten seconds to take notice of what discovery lists.
            server.wait(lambda: _live(server) == live, 30, "the series are those of the beginning")
            assert _head_series(server) - head < 50
        finally:
            server.close()


def _pages(cluster: LocalCluster) -> list[dict[str, float]]:
    groups = json.loads(fetch(cluster.metrics_address, "/sd"))
    return [series_of(fetch(group["targets"][0], "/metrics")) for group in groups]


def _address_of(cluster: LocalCluster, stage: str) -> str:
    groups = json.loads(fetch(cluster.metrics_address, "/sd"))
    return next(str(group["targets"][0]) for group in groups if group["labels"].get("stage") == stage)


_SERIES_OF_A_TARGET = 5
"""Prometheus adds `up` and four more about each scrape."""


def _live(server: PrometheusServer) -> set[tuple[tuple[str, str], ...]]:
    """All series of our job that have a value now."""
    return {tuple(sorted(labels.items())) for labels, _ in server.query('{job="stagewire"}')}


def _head_series(server: PrometheusServer) -> float:
    """How many series Prometheus holds, those that have ended included."""
    return series_of(fetch(server.address, "/metrics"))["prometheus_tsdb_head_series"]
