"""A model card of few words, and answers of a tail to what the client under test has asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from support.client_peers import Broker, Context, Tail, length
from support.text_cards import CONTROL, tiny_card

from stagewire.client import AsyncClient, ClientSettings, Generation, TokenEvent
from stagewire.client.text.tokenizer import Tokenizer
from stagewire.wire.frontend import Generate
from stagewire.wire.request import Ending
from stagewire.wire.returns import ReturnHello

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
CARD = tiny_card([("<|end|>", CONTROL)], chat_template=TEMPLATE)
TOKENIZER = Tokenizer(CARD)


def linked(context: Context, broker: Broker) -> Tail:
    broker.expect(Generate)
    assert broker.offer is not None
    tail = Tail(context, broker.offer)
    tail.greet()
    tail.expect(ReturnHello)
    return tail


def answer(
    context: Context, broker: Broker, generation: Generation, text: str, ending: Ending | None = None
) -> list[TokenEvent]:
    """Have a tail say `text`, a byte at a time, and collect what the caller sees."""
    tail = linked(context, broker)
    token_ids = TOKENIZER.encode(text)
    for number, token_id in enumerate(token_ids):
        tail.tokens(generation.request_id, number, token_id)
    tail.tokens(generation.request_id, len(token_ids), ending=ending or length(len(token_ids)))
    return list(generation)


def run(settings: ClientSettings, story: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncClient(settings=settings) as client:
            await story(client)

    asyncio.run(main())
