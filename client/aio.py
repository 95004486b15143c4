"""The same for asyncio: the socket thread delivers into the caller's event loop."""

from __future__ import annotations

import asyncio
import secrets
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

from stagewire.client.answer import Answer, Transcript
from stagewire.client.client import Client
from stagewire.client.delivery import Deliveries, Delivery
from stagewire.client.prompt import GenerateOptions, Message, Prompt, snapshot_prompt
from stagewire.client.result import RequestFailed, Result, TokenEvent, kept_tokens
from stagewire.client.settings import ClientSettings
from stagewire.wire.cache_reports import Caches
from stagewire.wire.card import ModelCard
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import Generate, ModelInfo
from stagewire.wire.request import SnapshotWish
from stagewire.wire.snapshots import SnapshotInfo, Snapshots
from stagewire.wire.status import Status

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stagewire.client.text.tokenizer import Tokenizer

_Queue: TypeAlias = "asyncio.Queue[Delivery]"


class Mailbox:
    """From the socket thread into one event loop: a step's tokens for a thousand streams wake it once."""

    def __init__(self, event_loop: asyncio.AbstractEventLoop) -> None:
        self.event_loop = event_loop
        self._waiting: deque[tuple[_Queue, Delivery]] = deque()
        self._is_called = False

    def into(self, queue: _Queue) -> Callable[[Delivery], None]:
        """What puts into `queue`, from any thread."""
        return lambda delivery: self._put(queue, delivery)

    def _put(self, queue: _Queue, delivery: Delivery) -> None:
        self._waiting.append((queue, delivery))
        if not self._is_called:
            self._is_called = True
            # An event loop that is closed has nobody who waits.
            with suppress(RuntimeError):
                self.event_loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        # Before the first look: whoever puts after the last one calls again.
        self._is_called = False
        with suppress(IndexError):
            while True:
                queue, delivery = self._waiting.popleft()
                queue.put_nowait(delivery)


class AsyncGeneration:
    """`async for` over it gives `TokenEvent`s; see `Generation` for what it raises. Leaving early cancels."""

    def __init__(self, client: Client, mailbox: Mailbox, generate: Generate, transcript: Transcript) -> None:
        self.request_id = generate.request_id
        self._queue: _Queue = asyncio.Queue()
        self._answer = Answer(client, client.loop, generate, transcript, Deliveries(mailbox.into(self._queue)))
        weakref.finalize(self, self._answer.cancel, discard=True).atexit = False

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
            await self._wait(None)

    async def _wait(self, timeout_s: float | None) -> None:
        """The core gives every request an ending, so this ends; cancelled, it cancels the request."""
        try:
            self._answer.deliver(await asyncio.wait_for(self._queue.get(), timeout_s))
        except asyncio.CancelledError:
            self._answer.cancel(discard=True)
            raise

    @property
    def result(self) -> Result:
        """See `Generation.result`."""
        if self._answer.result is None:
            raise RequestFailed("the answer has not ended yet; iterate over it or await wait()", ErrorCode.INTERNAL)
        return self._answer.result

    async def wait(self, timeout_s: float | None = None) -> Result:
        """See `Generation.wait`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._answer.is_over:
            if self._answer.take_next() is not None:
                continue
            try:
                await self._wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except asyncio.TimeoutError:
                detail = f"request {self.request_id} has not ended within {timeout_s} s"
                raise TimeoutError(detail) from None
        return self.result

    def cancel(self) -> None:
        """See `Generation.cancel`."""
        self._answer.cancel(discard=False)

    def pause(self) -> None:
        """See `Generation.pause`."""
        self._answer.hold(paused=True)

    def resume(self) -> None:
        """See `Generation.resume`."""
        self._answer.hold(paused=False)

    async def aclose(self) -> None:
        """See `Generation.close`."""
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
        self._mailbox: Mailbox | None = None

    async def models(self) -> tuple[ModelInfo, ...]:
        """See `Client.models`."""
        return await asyncio.to_thread(self._client.models)

    async def status(self) -> Status:
        """See `Client.status`."""
        return await asyncio.to_thread(self._client.status)

    async def caches(self) -> Caches:
        """See `Client.caches`."""
        return await asyncio.to_thread(self._client.caches)

    async def clear_caches(self) -> Caches:
        """See `Client.clear_caches`."""
        return await asyncio.to_thread(self._client.clear_caches)

    async def snapshots(self, *, owner: str = "") -> Snapshots:
        """See `Client.snapshots`."""
        return await asyncio.to_thread(self._client.snapshots, owner=owner)

    async def all_snapshots(self) -> Snapshots:
        """See `Client.all_snapshots`."""
        return await asyncio.to_thread(self._client.all_snapshots)

    async def snapshot_info(self, name: str) -> SnapshotInfo | None:
        """See `Client.snapshot_info`."""
        return await asyncio.to_thread(self._client.snapshot_info, name)

    async def rename_snapshot(self, name: str, new_name: str) -> Snapshots:
        """See `Client.rename_snapshot`."""
        return await asyncio.to_thread(self._client.rename_snapshot, name, new_name)

    async def export_snapshot(self, name: str, file: str | None = None) -> Snapshots:
        """See `Client.export_snapshot`."""
        return await asyncio.to_thread(self._client.export_snapshot, name, file)

    async def free_snapshot(self, name: str, *, owner: str = "") -> Snapshots:
        """See `Client.free_snapshot`."""
        return await asyncio.to_thread(self._client.free_snapshot, name, owner=owner)

    async def free_all_snapshots(self, *, owner: str = "") -> Snapshots:
        """See `Client.free_all_snapshots`."""
        return await asyncio.to_thread(self._client.free_all_snapshots, owner=owner)

    async def connect(self) -> None:
        """See `Client.connect`."""
        await asyncio.to_thread(self._client.connect)

    async def card(self, model: str | None = None) -> ModelCard:
        """See `Client.card`."""
        return await asyncio.to_thread(self._client.card, model)

    async def tokenizer(self, model: str | None = None) -> Tokenizer:
        """See `Client.tokenizer`."""
        return await asyncio.to_thread(self._client.tokenizer, model)

    def session(self, session_id: str | None = None, model: str | None = None) -> AsyncSession:
        """See `Client.session`."""
        return AsyncSession(self, session_id or secrets.token_hex(8), model)

    async def start(self, prompt: Prompt, session_id: str, model: str | None) -> AsyncGeneration:
        """See `Client.start`."""
        if prompt.needs_tokenizer:
            # Fetching a card and tokenizing may take a while: not in the event loop.
            request = await asyncio.to_thread(self._client.prepare, prompt, session_id, model)
        else:
            request = self._client.prepare(prompt, session_id, model)
        event_loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.event_loop is not event_loop:
            self._mailbox = Mailbox(event_loop)
        return AsyncGeneration(self._client, self._mailbox, *request)

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

    def __init__(self, client: AsyncClient, session_id: str, model: str | None) -> None:
        self._client, self.session_id, self._model = client, session_id, model

    async def generate(self, text: str | None = None, **options: Unpack[GenerateOptions]) -> AsyncGeneration:
        """See `Session.generate`."""
        return await self._client.start(Prompt(text=text, **options), self.session_id, self._model)

    async def snapshot(
        self,
        name: str,
        text: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        prompt_token_ids: Sequence[int] | None = None,
    ) -> int:
        """See `Session.snapshot`."""
        prompt = snapshot_prompt(name, text, messages, prompt_token_ids)
        async with await self._client.start(prompt, self.session_id, self._model) as generation:
            return kept_tokens(await generation.wait(), name)

    async def import_snapshot(self, name: str, file: str) -> int:
        """See `Session.import_snapshot`."""
        wish = SnapshotWish(name, file=file)
        async with await self.generate(prompt_token_ids=[], max_tokens=0, snapshot=wish) as generation:
            return kept_tokens(await generation.wait(), name)
