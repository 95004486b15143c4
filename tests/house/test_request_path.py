"""How many modules a request enters on its way from `generate` to the caller's iterator, counted while one runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from support.broker_sockets import Sockets, pipeline_of
from support.client_peers import Tail, length, tails_context
from support.running_broker import FAST, RunningBroker

from stagewire.client import Client, ClientSettings, SamplingParams
from stagewire.wire.control import GenerateAck, RequestEnded, RequestEndedAck
from stagewire.wire.request import FinishReason, Usage
from stagewire.wire.returns import ReturnAck, ReturnHello
from stagewire.wire.ring import StartRequest

MAX_MODULES = {"client": 17, "broker": 14}


class Entered:
    """The modules of this package whose functions are called, in all threads that it has seen begin.

    What a timer does is not on a request's way: whatever `_tick` calls is left out.
    """

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.is_counting = False
        self._ticking: dict[int, FrameType] = {}

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        thread = threading.get_ident()
        if event == "return" and self._ticking.get(thread) is frame:
            del self._ticking[thread]
        if event != "call" or thread in self._ticking:
            return
        if frame.f_code.co_name == "_tick":
            self._ticking[thread] = frame
        elif self.is_counting:
            # Of the globals, and not of the file: a dataclass's methods have none.
            self.modules.add(frame.f_globals.get("__name__", ""))

    def of(self, room: str) -> list[str]:
        names = sorted(name for name in self.modules if name.startswith(f"stagewire.{room}."))
        return [name.removeprefix("stagewire.") for name in names]


@contextmanager
def entered_modules() -> Iterator[Entered]:
    entered, before = Entered(), sys.getprofile()
    threading.setprofile(entered)
    sys.setprofile(entered)
    try:
        yield entered
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


@pytest.fixture(scope="module")
def entered() -> Entered:
    """What one request enters in a client and in a broker; head and tail are sockets that the test moves."""
    sockets = Sockets()
    with entered_modules() as counted, tails_context() as context:
        broker = RunningBroker(FAST)
        try:
            head, _, epoch = pipeline_of(sockets, broker)
            settings = ClientSettings(endpoint=broker.endpoints.frontend, client_id="client-1")
            with Client(settings=settings) as client:
                client.connect()
                counted.is_counting = True
                generation = client.session().generate(
                    prompt_token_ids=[1, 2, 3], max_tokens=2, sampling=SamplingParams()
                )
                _, start = head.next_fed()
                assert isinstance(start, StartRequest) and start.offer is not None
                head.control.send(GenerateAck(start.request_id, epoch, None, ""))
                tail = Tail(context, start.offer, epoch=epoch)
                tail.greet()
                tail.expect(ReturnHello)
                tail.tokens(start.request_id, 0, 7)
                tail.tokens(start.request_id, 1, 8, ending=length(2))
                assert [event.token_id for event in generation] == [7, 8]
                while not tail.expect(ReturnAck).items[-1].ended:
                    pass
                head.control.send(RequestEnded(start.request_id, epoch, FinishReason.LENGTH, None, Usage(3, 2)))
                head.control.expect(RequestEndedAck)
                counted.is_counting = False
        finally:
            broker.stop()
            sockets.close()
    return counted


@pytest.mark.parametrize("room", MAX_MODULES)
def test_a_request_enters_few_modules(entered: Entered, room: str) -> None:
    """Those of `wire` and `sockets`, which all use, are not among them. The prompt comes in token ids."""
    found = entered.of(room)
    assert len(found) <= MAX_MODULES[room], found
