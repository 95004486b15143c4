"""Real processes, real sockets, the real model: exact over cuts, crowds and failures, in its own memory only."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from support.in_process import request
from support.whole_model import DEFAULT_PRECISION, whole_model

from stagewire.client import AsyncClient, Client, ClientSettings
from stagewire.cluster.local import LocalCluster
from stagewire.cluster.spec import BrokerSpec, StageLimits
from stagewire.model.catalogue import DEFAULT_MODEL
from stagewire.stage.tail.philox import Place
from stagewire.stage.tail.sampler import PenaltyCounts, Sampled, sample
from stagewire.wire.errors import ErrorCode, RequestFailed, RequestRefused, StagewireError
from stagewire.wire.request import FinishReason
from stagewire.wire.sampling import SamplingParams

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=0.8, top_p=0.9, seed=99)
PROMPT = [504, 3575, 282, 260, 905, 314, 253, 2366, 1194, 335, 18, 4093]
LIMITS = StageLimits(kv_tokens=16384)
FRESH = BrokerSpec(grace_s=0.2)
"""Nothing stands when it starts, so that there is nothing to wait for."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(split="0:13,13:30", limits=LIMITS, broker=FRESH) as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with cluster.client() as connected:
        yield connected


def tokens(client: Client, prompt: list[int], sampling: SamplingParams = GREEDY, max_tokens: int = 10) -> list[int]:
    generation = client.session().generate(
        prompt_token_ids=prompt, sampling=sampling, max_tokens=max_tokens, ignore_eos=True
    )
    result = generation.wait(60)
    assert result.error is None, result.error
    return list(result.token_ids)


def expected(prompt: list[int], sampling: SamplingParams = GREEDY, max_tokens: int = 10) -> list[int]:
    """What the unsplit model says, in this process."""
    pipeline = whole_model().pipeline()
    pipeline.start(request("r", prompt, max_tokens, sampling))
    return pipeline.run()["r"].token_ids


@pytest.mark.parametrize("split", ["0:1,1:30", "0:29,29:30", "0:10,10:20,20:30"])
def test_processes_of_any_cut_give_the_unsplit_models_tokens(split: str) -> None:
    """Greedy and seeded, over real sockets."""
    with LocalCluster(split=split, limits=LIMITS, broker=FRESH) as running, running.client() as client:
        assert tokens(client, PROMPT) == expected(PROMPT)
        assert tokens(client, PROMPT, SEEDED) == expected(PROMPT, SEEDED)


def test_32_sessions_at_once_get_the_tokens_that_each_gets_alone(client: Client) -> None:
    """Different prompts and lengths, greedy and seeded, in one batch or none."""
    work = [([*PROMPT[i % 5 :], 100 + i], SEEDED if i % 2 else GREEDY, 3 + i % 4) for i in range(32)]
    alone = [tokens(client, *one) for one in work]
    together = [
        client.session().generate(prompt_token_ids=p, sampling=s, max_tokens=n, ignore_eos=True) for p, s, n in work
    ]
    assert [list(g.wait(120).token_ids) for g in together] == alone


def test_1000_streams_of_one_client_end_well_over_one_return_link(cluster: LocalCluster) -> None:
    """One link carries them all: the tail's process has a handful of TCP connections, not a thousand."""
    with cluster.client() as client:
        session = client.session()
        streams = [
            session.generate(prompt_token_ids=[500 + i % 50], sampling=GREEDY, max_tokens=2, ignore_eos=True)
            for i in range(1000)
        ]
        results = [stream.wait(180) for stream in streams]
        # The link stands until the client closes.
        num_connections = len(psutil.Process(cluster.pids["stage-1"]).net_connections("tcp"))
    assert num_connections < 20
    assert [r.finish_reason for r in results] == [FinishReason.LENGTH] * 1000
    first = {i % 50: r.token_ids for i, r in enumerate(results[:50])}
    assert all(r.token_ids == first[i % 50] for i, r in enumerate(results))


@pytest.mark.parametrize("precision", dict.fromkeys([DEFAULT_PRECISION, "bf16"]))
def test_a_stage_holds_its_own_tensors_and_little_else(precision: str) -> None:
    """The report is exact, and RSS above a process with all but the layers (card, imports) is within 15% of it."""
    bare = _rss_of_bare_process(_BARE_TORCH if precision == "bf16" else _BARE_NATIVE)
    limits = StageLimits(kv_tokens=2048)
    with LocalCluster(split="0:15,15:30", precision=precision, limits=limits, broker=FRESH) as running:
        stages = {s.info.layer_start: s.info for s in running.status().stages}
        tensors = whole_model().gguf.tensors
        for index, (start, end) in enumerate([(0, 15), (15, 30)]):
            info = stages[start]
            names = [n for n in tensors if n.startswith("blk.") and start <= int(n.split(".")[1]) < end]
            names += ["token_embd.weight"] if start == 0 else ["output_norm.weight", "token_embd.weight"]
            assert info.file_bytes == sum(tensors[n].num_bytes for n in names)
            rss = psutil.Process(running.pids[f"stage-{index}"]).memory_info().rss
            assert abs(rss - bare - info.weight_bytes) <= 0.15 * info.weight_bytes, (rss, bare, info.weight_bytes)


_BARE = (
    "import psutil, stagewire.cli.stage, stagewire.stage.worker\n"
    "from stagewire.model.card import build_card\n"
    "from stagewire.model.catalogue import resolve\n"
    "from stagewire.model.config import read_config\n"
    "from stagewire.model.gguf import GgufFile\n"
    "from stagewire.stage.compute.memory import return_freed_memory\n"
    "import gguf.quants\n"
    f"with GgufFile.open(resolve({DEFAULT_MODEL!r})) as file:\n"
    "    config = read_config(file)\n"
    "    card = build_card(file, 'm').encode()\n"
)
_BARE_TORCH = (
    "import torch, stagewire.stage.pytorch.loader\n"
    "from stagewire.stage.pytorch.selftest import run_selftest\n"
    "torch.set_num_threads(1)\n"
    "run_selftest(config, 'bf16', torch.device('cpu'))\n"
)
_BARE_NATIVE = (
    "from stagewire.stage.native.kernel import best_kernel\n"
    "from stagewire.stage.native.selftest import run_native_selftest\n"
    "run_native_selftest(best_kernel()[1], config, 'stored', 'f16')\n"
)


def _rss_of_bare_process(code: str) -> int:
    code = f"{_BARE}{code}return_freed_memory()\nprint(psutil.Process().memory_info().rss)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


def test_tokens_come_straight_from_the_last_stage(cluster: LocalCluster) -> None:
    """There is a connection between this process and the tail's."""
    with cluster.client() as client:
        tokens(client, PROMPT)
        mine = {c.laddr.port for c in psutil.Process().net_connections("tcp")}
        tail = psutil.Process(cluster.pids["stage-1"]).net_connections("tcp")
        assert {c.raddr.port for c in tail if c.status == psutil.CONN_ESTABLISHED} & mine


def test_a_client_that_asks_for_it_is_served_through_the_broker(cluster: LocalCluster) -> None:
    """Same tokens, same order, no direct connection wanted."""
    settings = ClientSettings(endpoint=cluster.endpoint, return_path="broker")
    with Client(settings=settings) as client:
        assert tokens(client, PROMPT) == expected(PROMPT)


def test_a_cancel_between_tokens_keeps_the_partial_answer(client: Client) -> None:
    """The ending says cancelled; what came before it is a prefix of the whole answer."""
    whole = tokens(client, PROMPT, max_tokens=60)
    generation = client.session().generate(prompt_token_ids=PROMPT, sampling=GREEDY, max_tokens=200, ignore_eos=True)
    taken = [next(generation).token_id for _ in range(5)]
    generation.cancel()
    result = generation.wait(20)
    assert result.finish_reason is FinishReason.CANCELLED
    assert taken == whole[:5]
    assert list(result.token_ids[:60]) == whole[: len(result.token_ids)]
    assert len(result.token_ids) < 200


def test_a_cancel_between_chunks_ends_a_long_prompt(client: Client) -> None:
    """No token was drawn yet; the answer is empty and cancelled, long before the prompt would be through."""
    generation = client.session().generate(prompt_token_ids=[7] * 8000, sampling=GREEDY, max_tokens=5)
    time.sleep(1.0)
    generation.cancel()
    result = generation.wait(15)
    assert (result.finish_reason, result.token_ids) == (FinishReason.CANCELLED, ())


def test_leaving_the_iterator_cancels(cluster: LocalCluster, client: Client) -> None:
    """The pipeline is free again, since nobody reads on."""
    with client.session().generate(prompt_token_ids=PROMPT, max_tokens=4000, ignore_eos=True) as generation:
        next(generation)
    deadline = time.monotonic() + 10
    while client.status().num_requests_running:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_draw_that_fails_ends_its_own_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in one sequence's sampling, the others of its step get their tokens."""

    def fails(row: NDArray[np.float32], params: SamplingParams, counts: PenaltyCounts, place: Place) -> Sampled:
        if params.seed == 13:
            raise IndexError("made up")
        return sample(row, params, counts, place)

    monkeypatch.setattr("stagewire.stage.tail.core.sample", fails)
    pipeline = whole_model().pipeline(15)
    unlucky = SamplingParams(temperature=0.0, seed=13)
    pipeline.start(request("good", PROMPT, 3, GREEDY), request("bad", PROMPT, 3, unlucky))
    outputs = pipeline.run()
    assert len(outputs["good"].token_ids) == 3
    ending = outputs["bad"].ending
    assert ending is not None
    assert (ending.finish_reason, ending.code) == (FinishReason.FAILED, ErrorCode.DECODE_FAILED)


@pytest.mark.slow
def test_a_client_that_slept_is_told_that_it_was_given_up(cluster: LocalCluster) -> None:
    """A machine that slept longer than the broker waits: a typed failure, not a stream that just stops."""
    code = (
        "from stagewire.client import Client\n"
        f"with Client({cluster.endpoint!r}) as client:\n"
        "    answer = client.session().generate(prompt_token_ids=[5], max_tokens=8000, ignore_eos=True)\n"
        "    next(answer); print('go', flush=True)\n"
        "    print(answer.wait(60, check=False).error.code.value)\n"
    )
    sleeper = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert sleeper.stdout is not None
    try:
        assert sleeper.stdout.readline() == "go\n"
        sleeper.send_signal(signal.SIGSTOP)
        time.sleep(13)
        sleeper.send_signal(signal.SIGCONT)
        assert sleeper.stdout.readline() == "client_gone\n"
    finally:
        sleeper.kill()
        sleeper.stdout.close()
        sleeper.wait(5)


@pytest.mark.slow
def test_a_slow_reader_pauses_only_its_own_request(client: Client) -> None:
    """It stops at its window of 256 tokens; the others run, and it loses nothing when it reads on."""
    slow = client.session().generate(prompt_token_ids=PROMPT, sampling=GREEDY, max_tokens=300, ignore_eos=True)
    next(slow)
    for _ in range(3):
        tokens(client, PROMPT, max_tokens=5)
    assert len(list(slow)) == 299
    assert len(slow.result.token_ids) == 300


def test_asyncio_serves_many_at_once(cluster: LocalCluster) -> None:
    """`async for`, and cancelling a task cancels its request."""

    async def scenario() -> tuple[list[tuple[int, ...]], int]:
        async with AsyncClient(cluster.endpoint) as client:
            session = client.session()

            async def one() -> tuple[int, ...]:
                generation = await session.generate(
                    prompt_token_ids=PROMPT, sampling=GREEDY, max_tokens=8, ignore_eos=True
                )
                return tuple([event.token_id async for event in generation])

            answers = await asyncio.gather(*[one() for _ in range(8)])
            endless = asyncio.create_task(_consume(client))
            await asyncio.sleep(0.5)
            endless.cancel()
            with pytest.raises(asyncio.CancelledError):
                await endless
            await asyncio.sleep(1.0)
            return answers, (await client.status()).num_requests_running

    async def _consume(client: AsyncClient) -> None:
        generation = await client.session().generate(prompt_token_ids=PROMPT, max_tokens=4000, ignore_eos=True)
        async for _event in generation:
            pass

    answers, num_running = asyncio.run(scenario())
    assert set(answers) == {tuple(expected(PROMPT, max_tokens=8))}
    assert num_running == 0


def test_text_stops_before_a_stop_string_that_spans_tokens(client: Client) -> None:
    """Neither a part of it nor anything after it is returned; the tokens end with the one that completed it."""
    session = client.session()
    free = session.generate("Once upon a time", sampling=GREEDY, max_tokens=30).wait(60)
    stop = free.text[12:20]
    stopped = session.generate("Once upon a time", sampling=GREEDY, max_tokens=30, stop=stop).wait(60)
    assert stopped.text == free.text[: free.text.index(stop)]
    assert (stopped.finish_reason, stopped.stop_reason) == (FinishReason.STOP, stop)
    assert list(stopped.token_ids) == list(free.token_ids[: len(stopped.token_ids)])
    assert stopped.usage.completion_tokens == len(stopped.token_ids) < 30


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "code"),
    [
        ([], 5, ErrorCode.DECODE_SEED_MISSING),
        ([1] * 8190, 5, ErrorCode.CONTEXT_OVERFLOW),
        ([1] * 9000, None, ErrorCode.CONTEXT_OVERFLOW),
        ([49152], 5, ErrorCode.TOKEN_OUT_OF_VOCABULARY),
    ],
)
def test_bad_requests_are_refused_by_name_and_harm_nobody(
    client: Client, prompt: list[int], max_tokens: int | None, code: ErrorCode
) -> None:
    """A typed error to the one who caused it."""
    generation = client.session().generate(prompt_token_ids=prompt, sampling=GREEDY, max_tokens=max_tokens)
    with pytest.raises((RequestRefused, RequestFailed)) as error:
        next(generation)
    assert error.value.code is code
    assert len(tokens(client, PROMPT, max_tokens=2)) == 2


def test_no_tokens_wanted_computes_the_prompt_and_ends(client: Client) -> None:
    """`max_tokens=0`, also for an empty prompt."""
    for prompt in (PROMPT, []):
        result = client.session().generate(prompt_token_ids=prompt, sampling=GREEDY, max_tokens=0).wait(20)
        assert (result.finish_reason, result.token_ids) == (FinishReason.LENGTH, ())


def test_an_unknown_model_and_a_taken_identity_are_refused(cluster: LocalCluster) -> None:
    """The second client of one name gets an error, the first goes on."""
    settings = ClientSettings(endpoint=cluster.endpoint, client_id="the-one")
    with Client(settings=settings) as first:
        first.connect()
        with Client(settings=settings) as second, pytest.raises(StagewireError) as taken:
            second.connect()
        assert taken.value.code is ErrorCode.IDENTITY_IN_USE
        assert len(tokens(first, PROMPT, max_tokens=2)) == 2
        generation = first.session(model="gpt-17").generate(prompt_token_ids=PROMPT, max_tokens=2, sampling=GREEDY)
        with pytest.raises(RequestRefused) as unknown:
            next(generation)
        assert unknown.value.code is ErrorCode.UNKNOWN_MODEL


@pytest.mark.slow
def test_a_killed_and_a_frozen_stage_fail_within_five_seconds_and_come_back() -> None:
    """SIGKILL and SIGSTOP, in mid-stream; a typed ending, then the same tokens again after the restart."""
    with LocalCluster(stages=2, limits=LIMITS) as running, running.client() as client:
        whole = tokens(client, PROMPT, max_tokens=8)
        for hurt, mend in ((running.kill, running.restart), (running.pause, running.resume)):
            generation = client.session().generate(prompt_token_ids=PROMPT, max_tokens=4000, ignore_eos=True)
            next(generation)
            hurt(1)
            hurt_at = time.monotonic()
            result = generation.wait(20, check=False)
            assert time.monotonic() - hurt_at < 5.0
            assert result.error is not None
            assert result.error.code is ErrorCode.STAGE_LOST
            mend(1)
            running.wait_until_serving()
            assert tokens(client, PROMPT, max_tokens=8) == whole


@pytest.mark.slow
def test_a_restarted_broker_interrupts_no_stream() -> None:
    """Tokens go on while it is away; it adopts the pipeline and serves new requests."""
    with LocalCluster(stages=2, limits=LIMITS) as running, running.client() as client:
        whole = tokens(client, PROMPT, max_tokens=100)
        generation = client.session().generate(
            prompt_token_ids=PROMPT, sampling=GREEDY, max_tokens=100, ignore_eos=True
        )
        next(generation)
        restart = threading.Thread(target=running.restart_broker)
        restart.start()
        assert list(generation.wait(60).token_ids) == whole
        restart.join(30)
        running.wait_until_serving()
        assert tokens(client, PROMPT, max_tokens=5) == whole[:5]
        assert [p.epoch for p in running.status().pipelines]
