"""The asyncio client: the same events and results, and nothing runs on that nobody waits for."""

from __future__ import annotations

import asyncio
import gc
import inspect

import pytest
from support.answers import CARD, TOKENIZER, linked, run
from support.client_peers import Broker, Context, dispatched, length

from stagewire.client import (
    AsyncClient,
    AsyncGeneration,
    AsyncSession,
    Client,
    ClientSettings,
    ErrorCode,
    FinishReason,
    Generation,
    RequestRefused,
    Session,
)
from stagewire.wire.codec import Message
from stagewire.wire.frontend import Cancel, Generate, Refused
from stagewire.wire.returns import ReturnAck, ReturnItem, ReturnTokens

pytestmark = pytest.mark.processes


def test_asyncio_gives_the_same_events_and_result(context: Context, broker: Broker, settings: ClientSettings) -> None:
    """`async for`, `wait`, `result`."""

    async def story(client: AsyncClient) -> None:
        await client.connect()
        assert (await client.card()) == CARD
        assert [info.name for info in await client.models()] == ["toy"]
        generation = await client.session().generate("hi", stop="END")
        tail = await asyncio.to_thread(linked, context, broker)
        tail.tokens(generation.request_id, 0, *TOKENIZER.encode("so END and"), ending=length(10))
        assert "".join([event.text async for event in generation]) == "so "
        assert generation.result.stop_reason == "END"
        with pytest.raises(RequestRefused):
            await client.session().generate()

    run(settings, story)


def test_a_cancelled_task_cancels_its_request_upstream(broker: Broker, settings: ClientSettings) -> None:
    """The cancellation itself goes on to whoever awaits the task."""

    async def read(client: AsyncClient) -> None:
        async for _event in await client.session().generate(prompt_token_ids=[1]):
            pass

    async def story(client: AsyncClient) -> None:
        task = asyncio.create_task(read(client))
        request = await asyncio.to_thread(broker.expect, Generate)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await asyncio.to_thread(broker.expect, Cancel)).request_id == request.request_id

    run(settings, story)


def test_an_async_generation_that_is_left_or_dropped_is_cancelled(broker: Broker, settings: ClientSettings) -> None:
    """By `aclose`, and by the garbage collector; a wait that times out cancels nothing."""

    async def story(client: AsyncClient) -> None:
        generation = await client.session().generate(prompt_token_ids=[1])
        with pytest.raises(TimeoutError):
            await generation.wait(0.05)
        await generation.aclose()
        assert generation.result.finish_reason is FinishReason.CANCELLED
        assert (await asyncio.to_thread(broker.expect, Cancel)).request_id == generation.request_id
        request_id = (await client.session().generate(prompt_token_ids=[1])).request_id
        gc.collect()
        assert (await asyncio.to_thread(broker.expect, Cancel)).request_id == request_id

    run(settings, story)


def test_asyncio_waits_names_and_asks_as_the_other_client_does(broker: Broker, settings: ClientSettings) -> None:
    """Without a session, with what failed raised or looked at, and with the same words for people."""
    broker.on_generate = lambda one: [Refused(one.request_id, ErrorCode.QUEUE_FULL, "too many")]

    async def story(client: AsyncClient) -> None:
        assert repr(client) == f"<AsyncClient {settings.client_id!r} of {broker.endpoint}>"
        assert repr(client.session("talk")) == f"<AsyncSession 'talk' of {client!r}>"
        generations = [await client.generate("hi", model="toy") for _ in range(2)]
        sent = [await asyncio.to_thread(broker.expect, Generate) for _ in generations]
        assert len({one.session_id for one in sent}) == 2 and {one.model for one in sent} == {"toy"}
        for generation in generations:
            looked_at = await generation.wait(check=False)
            with pytest.raises(RequestRefused) as refused:
                await generation.wait()
            assert looked_at.error is refused.value and refused.value.retryable
            assert repr(generation) == f"<AsyncGeneration {generation.request_id[:8]} failed, 0 tokens>"
        for wrong in (["a", "b"], 5):
            with pytest.raises(RequestRefused, match="text must be a str"):
                await client.generate(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="sampling=SamplingParams"):
            await client.generate("hi", temperature=0)  # type: ignore[call-arg]

    run(settings, story)


@pytest.mark.parametrize(
    ("sync", "other"), [(Client, AsyncClient), (Session, AsyncSession), (Generation, AsyncGeneration)]
)
def test_the_asyncio_side_takes_the_same_arguments_and_says_what_it_does(sync: type, other: type) -> None:
    """Whoever reads its help need not look at the other one."""
    renamed = {"close": "aclose"} if other is AsyncGeneration else {}
    methods = [name for name, value in vars(sync).items() if not name.startswith("_") and name != "prepare"]
    assert len(methods) >= 3
    for name in methods:
        there = getattr(other, renamed.get(name, name))
        documentation = inspect.getdoc(there)
        assert documentation and not documentation.startswith("See "), name
        if callable(there):
            parameters = [
                [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]
                for method in (getattr(sync, name), there)
            ]
            assert parameters[0] == parameters[1], name


def test_a_thousand_streams_share_one_link(context: Context, broker: Broker, settings: ClientSettings) -> None:
    """All get their tokens in order, and all are acknowledged to the end."""
    num_streams, num_tokens = 1000, 10

    async def read(client: AsyncClient) -> tuple[int, ...]:
        generation = await client.session().generate(prompt_token_ids=[1])
        return (await generation.wait(60)).token_ids

    async def story(client: AsyncClient) -> None:
        tasks = [asyncio.create_task(read(client)) for _ in range(num_streams)]
        acknowledged = await asyncio.to_thread(serve)
        assert await asyncio.gather(*tasks) == [tuple(range(num_tokens))] * num_streams
        assert acknowledged == num_streams

    def serve() -> int:
        tail = linked(context, broker)
        while len(request_ids) < num_streams:
            broker.expect(Generate)
        for number in range(num_tokens):
            ending = length(num_tokens) if number == num_tokens - 1 else None
            tail.send(ReturnTokens(tuple(ReturnItem(one, number, (number,), (), ending) for one in request_ids)))
        ended: set[str] = set()
        while len(ended) < num_streams:
            ended |= {one.request_id for one in tail.expect(ReturnAck).items if one.ended}
        return len(ended)

    request_ids: list[str] = []

    def on_generate(one: Generate) -> list[Message]:
        request_ids.append(one.request_id)
        return dispatched()(one)

    broker.on_generate = on_generate
    run(settings, story)
