"""Stagewire as its users have it: broker, stages and client are real processes and sockets; times are the client's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from bench.prompts import PromptSource
from bench.streams import decode_window_s
from bench.works import Phase, Work
from stagewire.client import AsyncClient, Result, SamplingParams
from stagewire.cluster.local import LocalCluster

if TYPE_CHECKING:
    from stagewire.client.aio import AsyncSession

GREEDY = SamplingParams(temperature=0.0)
_TIMEOUT_S = 300.0
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Stream:
    """One finished generation. `sent` and `arrivals` are on this process's clock."""

    sent: float
    arrivals: tuple[float, ...]
    result: Result

    @property
    def first_token_s(self) -> float:
        return self.arrivals[0] - self.sent


@dataclass
class RunningStream:
    """A generation under way: `arrivals` grows."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    result: Result | None = None

    def finished(self) -> Stream:
        assert self.result is not None, "the stream has not ended"
        return Stream(self.sent, tuple(self.arrivals), self.result)


class MeasurementError(Exception):
    """What was measured is not what was to be measured."""


class StagewireSide:
    """A client of a running cluster that measures `Work`s. A context manager, with an event loop of its own."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self.cluster = cluster
        self._spare_tokens: dict[Work, int] = {}
        self.loop = asyncio.new_event_loop()
        self._client = AsyncClient(cluster.endpoint)
        self._session: AsyncSession = self._client.session()
        vocab_size = min(stage.info.vocab_size for stage in cluster.status().stages)
        self.prompts = PromptSource(vocab_size, seed)

    def __enter__(self) -> StagewireSide:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loop.run_until_complete(self._client.close())
        self.loop.close()

    def tokens_per_s(self, work: Work) -> float:
        """One run: tokens of the timed phase, all sequences together, per second of the client's time.

        Raises:
            MeasurementError: the sequences never ran together for long enough, however long their streams.
        """
        if work.phase is Phase.PREFILL:
            streams = self.generate_together(self._prompts(work), 1)
            return work.timed_tokens / max(stream.first_token_s for stream in streams)
        # Whoever is prefilled first decodes already while others are prefilled, so everyone generates some more.
        spare = self._spare_tokens.get(work, 0 if work.num_sequences == 1 else work.num_sequences * 8 + 64)
        for _ in range(_TRIES):
            streams = self.generate_together(self._prompts(work), work.generate_tokens + 1 + spare)
            try:
                return work.timed_tokens / decode_window_s([s.arrivals for s in streams], work.generate_tokens)
            except ValueError as error:
                failure = MeasurementError(str(error))
                spare = self._spare_tokens[work] = 2 * spare
        raise failure

    def generate_together(self, prompts: Sequence[list[int]], max_tokens: int) -> list[Stream]:
        """Sends all prompts at once and returns when all have ended."""
        return self.loop.run_until_complete(self._generate_together(prompts, max_tokens))

    async def _generate_together(self, prompts: Sequence[list[int]], max_tokens: int) -> list[Stream]:
        running = [RunningStream(0.0) for _ in prompts]
        jobs = [self.follow(one, prompt, max_tokens) for one, prompt in zip(running, prompts, strict=True)]
        await asyncio.wait_for(asyncio.gather(*jobs), _TIMEOUT_S)
        return [one.finished() for one in running]

    def first(self, prompt: list[int], session_id: str | None, num_cached: int, max_tokens: int = 1) -> Stream:
        """One prompt alone, of this session or a new one, of which so many tokens are to come from the cache."""
        stream, session = RunningStream(0.0), self._client.session(session_id)
        job = self.follow(stream, prompt, max_tokens, session, num_cached)
        self.loop.run_until_complete(asyncio.wait_for(job, _TIMEOUT_S))
        return stream.finished()

    async def follow(
        self,
        stream: RunningStream,
        prompt: list[int],
        max_tokens: int,
        session: AsyncSession | None = None,
        num_cached: int = 0,
    ) -> None:
        """Generates greedily and notes when each token arrives.

        Raises:
            RequestFailed: it did not end well.
            MeasurementError: more or less of the prompt came from a cache than was to.
        """
        stream.sent = time.perf_counter()
        generation = await (session or self._session).generate(
            prompt_token_ids=prompt, sampling=GREEDY, max_tokens=max_tokens, ignore_eos=True
        )
        async for _event in generation:
            stream.arrivals.append(time.perf_counter())
        stream.result = generation.result
        if (found := stream.result.usage.cached_tokens) != num_cached:
            raise MeasurementError(f"{found} tokens of a prompt came from a cache, not {num_cached}")

    def _prompts(self, work: Work) -> list[list[int]]:
        return [self.prompts.draw(work.prompt_tokens) for _ in range(work.num_sequences)]
