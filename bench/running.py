"""Streams that run on while something else is looked at, until nobody needs them any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bench.stagewire_side import MeasurementError, RunningStream, StagewireSide

_PATIENCE_S = 300.0
_LOOK_S = 0.005


class RunningStreams:
    """Streams under way, and the jobs that follow them."""

    def __init__(self, streams: Sequence[RunningStream], jobs: Sequence[asyncio.Future[None]]) -> None:
        self.streams, self._jobs = streams, jobs

    @property
    def longest(self) -> int:
        return max(len(stream.arrivals) for stream in self.streams)

    @property
    def num_tokens(self) -> int:
        """Of all together."""
        return sum(len(stream.arrivals) for stream in self.streams)

    async def until_each_has(self, num_tokens: int, look_s: float = _LOOK_S) -> None:
        """Looks every `look_s` seconds.

        Raises:
            TimeoutError: not within five minutes.
            RequestFailed: a stream did not end well.
            MeasurementError: a stream has ended with less.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while any(len(stream.arrivals) < num_tokens for stream in self.streams):
            for job, stream in zip(self._jobs, self.streams, strict=True):
                if job.done():
                    job.result()  # raises what ended it
                    if len(stream.arrivals) < num_tokens:
                        raise MeasurementError(f"a stream ended after {len(stream.arrivals)} tokens")
            if time.monotonic() > deadline:
                raise TimeoutError(f"not every stream had {num_tokens} tokens within {_PATIENCE_S:g} s")
            await asyncio.sleep(look_s)

    async def end(self) -> None:
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)


@asynccontextmanager
async def running_streams(
    side: StagewireSide, num_sequences: int, prompt_tokens: int, max_tokens: int
) -> AsyncIterator[RunningStreams]:
    """So many streams of new prompts; left, none runs. `max_tokens` is to be more than will be waited for."""
    streams = [RunningStream(0.0) for _ in range(num_sequences)]
    prompts = [side.prompts.draw(prompt_tokens) for _ in streams]
    jobs = [
        asyncio.ensure_future(side.follow(one, prompt, max_tokens))
        for one, prompt in zip(streams, prompts, strict=True)
    ]
    running = RunningStreams(streams, jobs)
    try:
        yield running
    finally:
        await running.end()
