"""One answer as an asyncio caller iterates over it: the socket thread delivers into the caller's event loop."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TypeAlias

from stagewire.client.answer import Answer, Transcript
from stagewire.client.client import Client
from stagewire.client.delivery import Deliveries, Delivery
from stagewire.client.result import RequestFailed, Result, TokenEvent
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import Generate

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
    """Iterate over it with `async for` for `TokenEvent`s; then `result` is there.

    Leaving its `async with` early cancels the request, as does cancelling the task that waits for a token, and dropping
    the last reference to it. Iteration raises `RequestRefused` if the request was not accepted, and `RequestFailed` if
    it could not be finished; then, too, `result` (also the error's) holds what came before.
    """

    def __init__(self, client: Client, mailbox: Mailbox, generate: Generate, transcript: Transcript) -> None:
        self.request_id = generate.request_id
        self._queue: _Queue = asyncio.Queue()
        self._answer = Answer(client, client.loop, generate, transcript, Deliveries(mailbox.into(self._queue)))
        weakref.finalize(self, self._answer.cancel, discard=True).atexit = False

    def __repr__(self) -> str:
        return f"<AsyncGeneration {self._answer.describe()}>"

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
        """The result of an answer that has ended.

        Raises:
            RequestFailed: it has not ended yet.
        """
        if self._answer.result is None:
            raise RequestFailed("the answer has not ended yet; iterate over it or await wait()", ErrorCode.INTERNAL)
        return self._answer.result

    async def wait(self, timeout_s: float | None = None, *, check: bool = True) -> Result:
        """Take all tokens that still come and return the result.

        Args:
            timeout_s: how long to wait at most; None is as long as it takes.
            check: raise what the request failed with. Without it a failed result is returned, and its `error` says why.

        Raises:
            RequestRefused, RequestFailed: as iteration does, with `check`.
            TimeoutError: it did not end in time; it goes on.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._answer.is_over:
            if self._answer.take_next() is not None:
                continue
            try:
                await self._wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except asyncio.TimeoutError:
                detail = f"request {self.request_id} has not ended within {timeout_s} s"
                raise TimeoutError(detail) from None
        if check:
            self._answer.raise_error()
        return self.result

    def cancel(self) -> None:
        """Ask for an end: iteration goes on with what was on its way and ends as `cancelled`."""
        self._answer.cancel(discard=False)

    def pause(self) -> None:
        """Have the pipeline stop computing this request until `resume`."""
        self._answer.hold(paused=True)

    def resume(self) -> None:
        """Let a paused request go on."""
        self._answer.hold(paused=False)

    async def aclose(self) -> None:
        """Cancel, unless it has ended; `result` then holds what has come so far, as `cancelled`."""
        self._answer.cancel(discard=True)

    async def __aenter__(self) -> AsyncGeneration:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
