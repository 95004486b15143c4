"""Forks beside a real cluster: the parent's streams go on to their end, and the child asks through its own client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.parent_process import FORK, MULTIPROCESSING, run
from support.short_form import short

from stagewire.cluster.local import LocalCluster
from stagewire.cluster.spec import BrokerSpec

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

STREAMING = """
from stagewire import SamplingParams
greedy = SamplingParams(temperature=0)
streaming = session.generate(prompt_token_ids=[504, 3575, 282], sampling=greedy, max_tokens=200, ignore_eos=True)
first = [next(streaming).token_id for _ in range(5)]
"""
OWN_CLIENT = """
refused(client.status)
refused(lambda: next(streaming))
with Client({endpoint!r}) as own:
    answer = own.session().generate(prompt_token_ids=[504, 3575, 282], sampling=greedy, max_tokens=5, ignore_eos=True)
    assert [token.token_id for token in answer] == first
    assert len(own.models()) == 1

async def ask():
    async with AsyncClient({endpoint!r}) as own:
        answer = await own.session().generate(prompt_token_ids=[504, 3575], sampling=greedy, max_tokens=3)
        assert [token.index async for token in answer] == [0, 1, 2]
asyncio.run(ask())
"""
GOES_ON = """
rest = [token.token_id for token in streaming]
assert len(rest) == 195 and streaming.result.finish_reason.value == "length"
again = session.generate(prompt_token_ids=[504, 3575, 282], sampling=greedy, max_tokens=200, ignore_eos=True)
assert [token.token_id for token in again] == [*first, *rest]
waiting.wait(30)
client.close()
asyncio.run(async_client.close())
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(stages=2, threads=1, broker=BrokerSpec(grace_s=0.2)) as running:
        yield running


@pytest.mark.parametrize(
    "fork", short([FORK, MULTIPROCESSING, FORK + FORK], keep=1), ids=["os.fork", "multiprocessing", "two"]
)
def test_a_child_asks_through_its_own_client_while_its_parent_streams(cluster: LocalCluster, fork: str) -> None:
    """Both get the tokens that they would get alone."""
    child = OWN_CLIENT.format(endpoint=cluster.endpoint)
    run(STREAMING, fork, GOES_ON, child=child, endpoint=cluster.endpoint, child_s=40)
