"""What one greedy token costs: the client's whole, and what the stages compute of it."""

from __future__ import annotations

from dataclasses import dataclass

from bench.stagewire_side import StagewireSide, Stream

_OVERHEAD_TOKENS = 200


@dataclass(frozen=True, slots=True)
class TokenCost:
    """Of one greedy token of a single sequence, in seconds: the client's whole, and what the stages spent of it."""

    total_s: float
    forward_s: float
    sample_s: float

    @property
    def overhead_s(self) -> float:
        """Everything but forward passes and sampling."""
        return self.total_s - self.forward_s - self.sample_s


def token_cost(stream: Stream) -> TokenCost:
    """From a stream whose prompt is one token, so that each of its steps is like the others."""
    num_tokens = len(stream.arrivals)
    stages = stream.result.timings.stages
    return TokenCost(
        total_s=(stream.arrivals[-1] - stream.arrivals[0]) / (num_tokens - 1),
        forward_s=sum(stage.compute_s / stage.steps for stage in stages),
        sample_s=sum(stage.sample_s / stage.steps for stage in stages),
    )


def measure_token_cost(side: StagewireSide, runs: int) -> TokenCost:
    """The run with the median overhead."""
    costs = [token_cost(side.generate_together([side.prompts.draw(1)], _OVERHEAD_TOKENS)[0]) for _ in range(runs)]
    return sorted(costs, key=lambda cost: cost.overhead_s)[len(costs) // 2]
