"""The same for asyncio: the socket thread delivers into the caller's event loop."""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from stagewire.client.answer import Answer
from stagewire.client.client import Client
from stagewire.client.delivery import Finished, QueueSink, Tokens
from stagewire.client.loop import ClientLoop
from stagewire.client.prompt import Message, prompt_of
from stagewire.client.result import Result, TokenEvent
from stagewire.client.settings import ClientSettings
from stagewire.client.transcript import Transcript
from stagewire.wire.errors import ErrorCode, RequestFailed
from stagewire.wire.frontend import Generate
from stagewire.wire.sampling import SamplingParams
from stagewire.wire.status import Status


class AsyncGeneration:
    """`async for` over it gives `TokenEvent`s; see `Generation` for what it raises. Leaving early cancels."""

    def __init__(self, loop: ClientLoop, generate: Generate, transcript: Transcript) -> None:
        self.request_id = generate.request_id
        deliveries: asyncio.Queue[Tokens | Finished] = asyncio.Queue()
        event_loop = asyncio.get_running_loop()

        def put(delivery: Tokens | Finished) -> None:
            # An event loop that is closed has nobody who waits. It must not hold `self`: being forgotten cancels.
            with suppress(RuntimeError):
                event_loop.call_soon_threadsafe(deliveries.put_nowait, delivery)

        self._deliveries = deliveries
        self._answer = Answer(loop, generate, transcript, QueueSink(put))
        self._finalizer = weakref.finalize(self, self._answer.cancel, discard=True)

    def __aiter__(self) -> AsyncGeneration:
        return self

    async def __anext__(self) -> TokenEvent:
        while True:
            event = self._answer.take_next()
            if event is not None:
                return event
            if self._answer.is_over:
                self._answer.raise_error()
                raise StopAsyncIteration
            await self._wait()

    async def _wait(self) -> None:
        """The core gives every request an ending, so this ends; cancelled, it cancels the request."""
        try:
            self._answer.deliver(await self._deliveries.get())
        except asyncio.CancelledError:
            self._answer.cancel(discard=True)
            raise

    @property
    def result(self) -> Result:
        """See `Generation.result`."""
        if self._answer.result is None:
            raise RequestFailed("the answer has not ended yet; iterate over it or await wait()", ErrorCode.INTERNAL)
        return self._answer.result

    async def wait(self) -> Result:
        """Take all tokens that still come and return the result, also a failed one."""
        while not self._answer.is_over:
            if self._answer.take_next() is None:
                await self._wait()
        return self.result

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        self._answer.cancel(discard=False)

    async def aclose(self) -> None:
        """Cancel, unless it has ended."""
        self._answer.cancel(discard=True)

    async def __aenter__(self) -> AsyncGeneration:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncClient:
    """`Client` for asyncio; same arguments, same errors."""

    def __init__(self, endpoint: str = "tcp://127.0.0.1:7070", *, settings: ClientSettings | None = None) -> None:
        self._client = Client(endpoint, settings=settings)

    async def status(self) -> Status:
        """See `Client.status`."""
        return await asyncio.to_thread(self._client.status)

    def session(self, session_id: str | None = None, model: str | None = None) -> AsyncSession:
        """See `Client.session`."""
        return AsyncSession(self._client, session_id or secrets.token_hex(8), model)

    async def close(self) -> None:
        """See `Client.close`."""
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSession:
    """See `Session`."""

    def __init__(self, client: Client, session_id: str, model: str | None) -> None:
        self._client, self.session_id, self._model = client, session_id, model

    async def generate(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        prompt_token_ids: Sequence[int] | None = None,
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        ignore_eos: bool = False,
    ) -> AsyncGeneration:
        """See `Session.generate`."""
        prompt = prompt_of(text, messages, prompt_token_ids, sampling, max_tokens, stop, stop_token_ids, ignore_eos)
        # Fetching a card and tokenizing may take a while: not in the event loop.
        generate, transcript = await asyncio.to_thread(self._client.prepare, prompt, self.session_id, self._model)
        return AsyncGeneration(self._client.loop, generate, transcript)
