"""The benchmark's own client against real processes: what it times is what it says."""

from __future__ import annotations

import pytest

from bench.stagewire_side import StagewireSide
from bench.token_cost import token_cost
from bench.works import Phase, Work
from stagewire.cluster.local import LocalCluster
from stagewire.cluster.spec import StageLimits


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(240)
def test_prefill_decode_and_the_cost_of_a_token_are_measured() -> None:
    """Rates are positive; a token's parts are not more than the whole; every stream brings all its tokens."""
    with LocalCluster(stages=2, limits=StageLimits(kv_tokens=4096)) as cluster, StagewireSide(cluster, seed=1) as side:
        assert side.tokens_per_s(Work("prefill_32", Phase.PREFILL, 1, 32, 1)) > 0
        assert side.tokens_per_s(Work("decode_3", Phase.DECODE, 3, 8, 4)) > 0
        (stream,) = side.generate_together([side.prompts.draw(1)], 12)
    assert len(stream.arrivals) == 12 == stream.result.usage.completion_tokens
    assert list(stream.arrivals) == sorted(stream.arrivals)
    assert stream.sent < stream.arrivals[0]
    cost = token_cost(stream)
    assert cost.forward_s > 0
    assert 0 <= cost.sample_s < cost.total_s
