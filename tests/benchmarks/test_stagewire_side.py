"""The benchmark's own client against real processes: what it times is what it says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.prompts import PromptSource
from bench.stagewire_side import MeasurementError, StagewireSide, Stream
from bench.token_cost import token_cost
from bench.works import Phase, Work, decode
from stagewire.client import Result
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


class LateStreams(StagewireSide):
    """Two streams, of which the second starts when the first has had `late` tokens; nothing is started for them."""

    def __init__(self, late: int) -> None:
        self._spare_tokens = {}
        self._late = late
        self.prompts = PromptSource(1000, 1)
        self.asked: list[int] = []

    def generate_together(self, prompts: Sequence[list[int]], max_tokens: int) -> list[Stream]:
        self.asked.append(max_tokens)
        first = tuple(float(number) for number in range(max_tokens))
        result = Result.__new__(Result)  # nobody looks into it
        return [Stream(0.0, tuple(at + start for at in first), result) for start in (0.0, self._late + 0.5)]


def test_streams_that_did_not_run_together_for_long_are_tried_again_longer() -> None:
    """80 spare tokens are too few for a second stream that comes 200 later; the length that was enough is kept."""
    side = LateStreams(late=200)
    work = decode(2)
    assert side.tokens_per_s(work) == pytest.approx(2.0)
    assert side.asked == [65 + 80, 65 + 160, 65 + 320]
    side.tokens_per_s(work)
    assert side.asked[-1] == 65 + 320


def test_streams_that_never_run_together_cannot_be_measured() -> None:
    with pytest.raises(MeasurementError, match="64 are to be timed"):
        LateStreams(late=10_000).tokens_per_s(decode(2))
