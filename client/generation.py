"""One answer as a caller iterates over it."""

from __future__ import annotations

import queue
import time
import weakref
from types import TracebackType

from stagewire.client.answer import Answer, Transcript
from stagewire.client.delivery import Deliveries, Delivery
from stagewire.client.links.loop import ClientLoop
from stagewire.client.result import RequestFailed, Result, TokenEvent
from stagewire.wire.errors import ErrorCode
from stagewire.wire.frontend import Generate

_LOOK_S = 0.5


class Generation:
    """Iterate over it for `TokenEvent`s; then `result` is there. Leaving early cancels the request.

    Iteration raises `RequestRefused` if the request was not accepted, and `RequestFailed` if it could not be finished;
    then, too, `result` (also the error's) holds what came before.
    """

    def __init__(self, owner: object, loop: ClientLoop, generate: Generate, transcript: Transcript) -> None:
        self.request_id = generate.request_id
        deliveries: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._deliveries = deliveries
        self._answer = Answer(owner, loop, generate, transcript, Deliveries(deliveries.put))
        # Not this object's method: the finalizer must not keep alive what it waits for.
        weakref.finalize(self, self._answer.cancel, discard=True).atexit = False

    def __repr__(self) -> str:
        return f"<Generation {self._answer.describe()}>"

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> TokenEvent:
        while True:
            event = self._answer.take_next()
            if event is not None:
                return event
            if self._answer.is_over:
                self._answer.raise_error()
                raise StopIteration
            self._wait(None)

    def _wait(self, deadline: float | None) -> None:
        """Take the next delivery; the core gives every request an ending, so this ends."""
        while deadline is None or time.monotonic() < deadline:
            try:
                # In short waits, so that Ctrl-C is heard on every platform.
                self._answer.deliver(self._deliveries.get(timeout=_LOOK_S))
            except queue.Empty:
                continue
            return

    @property
    def result(self) -> Result:
        """The result of an answer that has ended.

        Raises:
            RequestFailed: it has not ended yet.
        """
        if self._answer.result is None:
            raise RequestFailed("the answer has not ended yet; iterate over it or call wait()", ErrorCode.INTERNAL)
        return self._answer.result

    def wait(self, timeout_s: float | None = None, *, check: bool = True) -> Result:
        """Take all tokens that still come and return the result.

        Args:
            timeout_s: how long to wait at most; None is as long as it takes.
            check: raise what the request failed with. Without it a failed result is returned, and its `error` says why.

        Raises:
            RequestRefused, RequestFailed: as iteration does, with `check`.
            TimeoutError: it did not end in time; it goes on.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            while self._answer.take_next() is not None:
                pass
            if self._answer.is_over:
                if check:
                    self._answer.raise_error()
                return self.result
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"request {self.request_id} has not ended within {timeout_s} s")
            self._wait(deadline)

    def cancel(self) -> None:
        """Ask for an end: iteration goes on with what was on its way and ends as `cancelled`."""
        self._answer.cancel(discard=False)

    def pause(self) -> None:
        """Have the pipeline stop computing this request until `resume`."""
        self._answer.hold(paused=True)

    def resume(self) -> None:
        """Let a paused request go on."""
        self._answer.hold(paused=False)

    def close(self) -> None:
        """Cancel, unless it has ended; `result` then holds what has come so far, as `cancelled`."""
        self._answer.cancel(discard=True)

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
