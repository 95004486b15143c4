"""How a generation ends for its caller: refused, failed, cancelled, closed; and what is printed of it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.answers import TOKENIZER, linked
from support.client_peers import CLIENT, WAIT_S, Broker, Context, length

from stagewire.client import (
    Client,
    ClientSettings,
    ErrorCode,
    FinishReason,
    RequestFailed,
    RequestRefused,
    StagewireError,
)
from stagewire.wire.frontend import Ended, Generate, Refused
from stagewire.wire.request import Ending, Usage
from stagewire.wire.returns import ReturnAction, ReturnControl

pytestmark = pytest.mark.processes


def test_a_refusal_is_raised_by_the_iterator(broker: Broker, client: Client) -> None:
    """With the broker's code, and whether to try again."""
    broker.on_generate = lambda one: [Refused(one.request_id, ErrorCode.QUEUE_FULL, "too many")]
    generation = client.session().generate(prompt_token_ids=[1])
    with pytest.raises(RequestRefused) as refused:
        next(generation)
    assert (refused.value.code, refused.value.retryable) == (ErrorCode.QUEUE_FULL, True)
    assert isinstance(generation.result.error, RequestRefused)


def test_a_failure_in_mid_stream_keeps_what_came_before(context: Context, broker: Broker, client: Client) -> None:
    """The error carries the partial result."""
    generation = client.session().generate(prompt_token_ids=[1])
    tail = linked(context, broker)
    tail.tokens(generation.request_id, 0, 5)
    assert next(generation).token_id == 5
    lost = Ending(FinishReason.FAILED, None, Usage(1, 0), (), ErrorCode.STAGE_LOST, "gone")
    broker.send(Ended(generation.request_id, lost))
    with pytest.raises(RequestFailed) as failed:
        next(generation)
    assert failed.value.code is ErrorCode.STAGE_LOST
    assert failed.value.result is not None
    assert failed.value.result.token_ids == (5,)
    assert generation.result is failed.value.result


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (Refused("r", ErrorCode.QUEUE_FULL, "too many"), RequestRefused),
        (Refused("r", ErrorCode.UNKNOWN_MODEL, "who?"), RequestRefused),
        (Ended("r", Ending(FinishReason.FAILED, None, Usage(1, 0), (), ErrorCode.STAGE_LOST, "gone")), RequestFailed),
        (Ended("r", Ending(FinishReason.FAILED, None, Usage(1, 0), (), ErrorCode.NO_PIPELINE, "no")), RequestFailed),
    ],
)
def test_waiting_raises_what_failed_unless_it_is_only_looked_at(
    broker: Broker, client: Client, said: Refused | Ended, kind: type[StagewireError]
) -> None:
    """As iterating does; `check=False` gives the result that says it, before and after."""
    broker.on_generate = lambda one: [replace(said, request_id=one.request_id)]
    generation = client.generate(prompt_token_ids=[1])
    looked_at = generation.wait(WAIT_S, check=False)
    with pytest.raises(kind) as failed:
        generation.wait(WAIT_S)
    assert looked_at.error is failed.value and looked_at.finish_reason is FinishReason.FAILED
    assert generation.wait(check=False) is generation.result is looked_at
    if isinstance(failed.value, RequestFailed):
        assert failed.value.result is looked_at


def test_requests_without_a_session_have_one_each(broker: Broker, client: Client) -> None:
    """So that they spread over pipelines; the model may be named."""
    generations = [client.generate("hi", model=model) for model in (None, None, "toy")]
    sent = [broker.expect(Generate) for _ in generations]
    assert len({one.session_id for one in sent}) == 3
    assert [one.request_id for one in sent] == [one.request_id for one in generations]
    assert {one.model for one in sent} == {"toy"}
    with pytest.raises(RequestRefused) as refused:
        client.generate("hi", model="other")
    assert refused.value.code is ErrorCode.UNKNOWN_MODEL


def test_what_is_printed_says_what_it_is(context: Context, broker: Broker, client: Client) -> None:
    """Short enough for a prompt, with no vocabulary and no digest of 64 characters."""
    assert repr(client) == f"<Client {CLIENT!r} of {broker.endpoint}>"
    session = client.session("talk")
    assert repr(session) == f"<Session 'talk' of {client!r}>"
    assert repr(client.session("talk", "toy")) == f"<Session 'talk' with toy of {client!r}>"
    assert repr(client.models()) == "(ModelInfo('toy', context_length=1000, vocab_size=100, digest=toy),)"
    assert repr(client.card()) == "ModelCard('tiny', 1 layers, context_length=4096, vocab_size=257)"
    generation = session.generate("hi", raw=True, stop="!")
    tail = linked(context, broker)
    tail.tokens(generation.request_id, 0, *TOKENIZER.encode("a" * 80))
    next(generation)
    assert repr(generation) == f"<Generation {generation.request_id[:8]} running, 80 tokens>"
    tail.tokens(generation.request_id, 80, TOKENIZER.encode("!")[0], ending=length(81))
    shown = repr(generation.wait(WAIT_S))
    assert re.fullmatch(
        rf"Result\('{'a' * 59}…', stop at '!', 81 tokens after 2 prompt tokens \(2 cached\) in \S+ s\)", shown
    )
    assert repr(generation) == f"<Generation {generation.request_id[:8]} stop, 81 tokens>"
    assert repr(RequestRefused("too many", ErrorCode.QUEUE_FULL)) == "RequestRefused('too many', queue_full)"
    client.close()
    assert repr(client) == f"<Client {CLIENT!r} of {broker.endpoint}, closed>"


def test_a_cancelled_request_ends_with_its_partial_tokens(context: Context, broker: Broker, client: Client) -> None:
    """The tail's ending counts: what was on its way still comes."""
    generation = client.session().generate(prompt_token_ids=[1])
    tail = linked(context, broker)
    tail.tokens(generation.request_id, 0, 5)
    assert next(generation).token_id == 5
    generation.cancel()
    assert tail.expect(ReturnControl).action is ReturnAction.CANCEL
    tail.tokens(generation.request_id, 1, 6, ending=Ending(FinishReason.CANCELLED, 2, Usage(1, 2)))
    assert [event.token_id for event in generation] == [6]
    assert (generation.result.finish_reason, generation.result.token_ids) == (FinishReason.CANCELLED, (5, 6))


def test_closing_early_leaves_a_partial_result_at_once(context: Context, broker: Broker, client: Client) -> None:
    """As leaving the `with` does; upstream hears of it."""
    with client.session().generate(prompt_token_ids=[1]) as generation:
        tail = linked(context, broker)
        tail.tokens(generation.request_id, 0, 5)
        assert next(generation).token_id == 5
    assert (generation.result.finish_reason, generation.result.token_ids) == (FinishReason.CANCELLED, (5,))
    assert tail.expect(ReturnControl).action is ReturnAction.CANCEL
    assert list(generation) == []


def test_waiting_is_bounded_and_the_request_goes_on(context: Context, broker: Broker, client: Client) -> None:
    """`TimeoutError`, and then the rest."""
    generation = client.session().generate(prompt_token_ids=[1])
    tail = linked(context, broker)
    with pytest.raises(TimeoutError):
        generation.wait(0.1)
    with pytest.raises(RequestFailed):
        _ = generation.result
    tail.tokens(generation.request_id, 0, 5, ending=length(1))
    assert generation.wait(WAIT_S).token_ids == (5,)


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.session().generate(prompt_token_ids=[1]),
        lambda client: client.session().generate("hi"),
        lambda client: client.status(),
        lambda client: client.free_snapshot("rules"),
        lambda client: client.connect(),
    ],
)
def test_a_closed_client_takes_no_requests(client: Client, ask: Callable[[Client], object]) -> None:
    """And says so; asking again is of no use."""
    client.close()
    with pytest.raises(RequestRefused, match="this client is closed") as refused:
        ask(client)
    assert (refused.value.code, refused.value.retryable) == (ErrorCode.CLIENT_CLOSED, False)


def test_a_question_that_is_open_when_its_client_closes_is_not_asked_again() -> None:
    """Nor does whoever asked it wait for its time to be up."""
    client = Client(settings=ClientSettings(endpoint="tcp://127.0.0.1:9"))
    threading.Timer(0.3, client.close).start()
    with pytest.raises(StagewireError, match="this client is closed") as closed:
        client.connect()
    assert (closed.value.code, closed.value.retryable) == (ErrorCode.CLIENT_CLOSED, False)


def test_a_tail_without_sense_fails_only_its_request(context: Context, broker: Broker, client: Client) -> None:
    """A token id outside the vocabulary."""
    generation = client.session().generate("hi")
    tail = linked(context, broker)
    tail.tokens(generation.request_id, 0, 100_000)
    with pytest.raises(RequestFailed) as failed:
        next(generation)
    assert failed.value.code is ErrorCode.PROTOCOL_ERROR
    assert client.status().num_clients == 1
