"""What a caller sees of a generation: arguments, events, text, stop strings, results."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.answers import CARD, TEMPLATE, TOKENIZER, answer, linked
from support.client_peers import WAIT_S, Broker, Context, length
from support.text_cards import CONTROL, USER_DEFINED, tiny_card

from stagewire.client import (
    ChatMessage,
    Client,
    ClientSettings,
    ErrorCode,
    FinishReason,
    RequestRefused,
    SamplingParams,
    StagewireError,
    TokenEvent,
    TopLogprob,
)
from stagewire.client.text.tokenizer import Tokenizer
from stagewire.wire.card import card_digest
from stagewire.wire.frontend import Generate, GetCard, ModelInfo
from stagewire.wire.request import CacheStatistics, Ending, StageTiming, Usage
from stagewire.wire.returns import ReturnAck, ReturnAction, ReturnControl, ReturnItem, ReturnTokens, TokenLogprobs
from stagewire.wire.timing import RequestTiming

pytestmark = pytest.mark.processes


# --- arguments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, ErrorCode.INVALID_REQUEST),
        ({"text": "a", "prompt_token_ids": [1]}, ErrorCode.INVALID_REQUEST),
        ({"text": "a", "messages": [{"role": "user", "content": "a"}]}, ErrorCode.INVALID_REQUEST),
        ({"prompt_token_ids": [1], "max_tokens": -1}, ErrorCode.INVALID_REQUEST),
        ({"prompt_token_ids": [1], "stop": ["a", ""]}, ErrorCode.INVALID_REQUEST),
        ({"prompt_token_ids": [2**31]}, ErrorCode.TOKEN_OUT_OF_VOCABULARY),
        ({"prompt_token_ids": [-1]}, ErrorCode.TOKEN_OUT_OF_VOCABULARY),
        ({"messages": []}, ErrorCode.INVALID_REQUEST),
        ({"messages": [{"role": "user"}]}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(client: Client, arguments: dict[str, object], code: ErrorCode) -> None:
    """And nothing is sent."""
    with pytest.raises(RequestRefused) as refused:
        client.session().generate(**arguments)  # type: ignore[arg-type]
    assert refused.value.code is code


def test_text_and_messages_are_tokenized_by_the_models_card(broker: Broker, client: Client) -> None:
    """Fetched once, and named in the request, so that no other model gets these ids."""
    session = client.session("talk")
    first = session.generate("hé", max_tokens=3, sampling=SamplingParams(temperature=0.0, seed=5))
    sent = broker.expect(Generate)
    assert sent.prompt_token_ids.to_list() == TOKENIZER.encode("<user>hé")
    assert (sent.request_id, sent.session_id, sent.model) == (first.request_id, "talk", "toy")
    assert (sent.max_tokens, sent.sampling.seed) == (3, 5)
    second = session.generate(messages=[ChatMessage("user", "hi"), {"role": "assistant", "content": "ho"}])
    assert broker.expect(Generate).prompt_token_ids.to_list() == TOKENIZER.encode("<user>hi<assistant>ho")
    first.close()
    second.close()


def test_what_messages_hold_is_text_and_a_raw_text_is_as_it_was(settings: ClientSettings, broker: Broker) -> None:
    """Names of control tokens in messages, as objects and mappings, are sent as characters."""
    card = tiny_card([("<end>", CONTROL), ("<mark>", USER_DEFINED)], chat_template=TEMPLATE + "<end>")
    broker.card, tokenizer = card.encode(), Tokenizer(card)
    broker.models = (ModelInfo("toy", "toy", card_digest(broker.card), 1000, 100),)
    end = tokenizer.names.ids["<end>"]
    with Client(settings=settings) as client:
        session = client.session()
        for messages in ([ChatMessage("user", "a<end>b<mark>")], [{"role": "user", "content": "a<end>b<mark>"}]):
            session.generate(messages=messages).close()
            sent = broker.expect(Generate).prompt_token_ids.to_list()
            assert sent == [*tokenizer.encode("<user>a<end>b<mark>"), end]
        session.generate("a<end>b<mark>", raw=True).close()
        assert broker.expect(Generate).prompt_token_ids.to_list() == tokenizer.encode("a<end>b<mark>")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"text": "a" * 10_000}, "prompt too long"),
        ({"text": "ab " * 1_400}, "prompt too long"),
        ({"messages": [{"role": "user", "content": "a" * 10_000}]}, "prompt too long"),
        ({"messages": [{"role": "user", "content": "a", "name": "Ann"}]}, r"messages\[0\] has 'name'"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "tool"}]}, r"messages\[1\]: .*`content`"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, r"messages\[0\]: .*content\[0\].*'image'"),
        ({"messages": ["hello"]}, r"messages holds a str, 'hello'"),
        ({"messages": [{"role": "user", "content": "\ud800<"}]}, "lone surrogate"),
        ({"messages": []}, "messages is empty"),
    ],
)
def test_a_prompt_that_the_model_cannot_take_is_refused_at_the_call(
    broker: Broker, client: Client, arguments: dict[str, object], words: str
) -> None:
    """By its name and place, and nothing is sent."""
    with pytest.raises(RequestRefused, match=words):
        client.session().generate(**arguments)  # type: ignore[arg-type]
    assert not broker.has(Generate, 0.1)


def test_the_card_is_fetched_once_and_kept_on_disk(broker: Broker, settings: ClientSettings) -> None:
    """Under its digest; a damaged file is fetched anew."""
    assert settings.cache_folder is not None
    kept = settings.cache_folder / "cards" / card_digest(CARD.encode())
    for is_asked, damage in ((True, False), (False, True), (True, False)):
        with Client(settings=settings) as client:
            assert client.card() == CARD
            assert client.tokenizer().encode("a") == TOKENIZER.encode("a")
            assert client.models()[0].name == "toy"
        assert broker.has(GetCard, 0.3) == is_asked
        if damage:
            kept.write_bytes(b"damaged")


def test_a_card_that_is_not_what_was_asked_for_is_no_card(settings: ClientSettings, broker: Broker) -> None:
    """Its digest is checked."""
    broker.card = tiny_card(chat_template="other").encode()
    with Client(settings=settings) as client, pytest.raises(StagewireError) as error:
        client.card()
    assert error.value.code is ErrorCode.PROTOCOL_ERROR


# --- events and results ---------------------------------------------------------------------------------------


def test_events_carry_whole_characters_and_the_result_all_of_it(
    context: Context, broker: Broker, client: Client
) -> None:
    """A character that spans tokens comes with its last; usage and timings are measured."""
    generation = client.session().generate("hi")
    events = answer(context, broker, generation, "aé!")
    assert [event.text for event in events] == ["a", "", "é", "!"]
    assert [event.index for event in events] == [0, 1, 2, 3]
    result = generation.result
    assert (result.text, list(result.token_ids)) == ("aé!", TOKENIZER.encode("aé!"))
    assert result.usage == Usage(len("<user>hi"), 4, 2)
    timings = result.timings
    assert timings.accepted_s is not None
    assert timings.first_token_s is not None
    assert 0 < timings.accepted_s <= timings.first_token_s <= timings.total_s


def test_text_that_was_held_back_is_never_lost(context: Context, broker: Broker, client: Client) -> None:
    """A beginning of a stop string that does not come."""
    generation = client.session().generate("hi", stop="END")
    assert "".join(event.text for event in answer(context, broker, generation, "an EN")) == "an EN"


def test_half_a_character_at_the_end_is_shown_as_such(context: Context, broker: Broker, client: Client) -> None:
    """Once there are no more tokens."""
    generation = client.session().generate("hi")
    tail = linked(context, broker)
    tail.tokens(generation.request_id, 0, TOKENIZER.encode("é")[0], ending=length(1))
    assert generation.wait(WAIT_S).text == "\ufffd"


def test_logprobs_come_with_their_tokens(context: Context, broker: Broker, client: Client) -> None:
    """The chosen token's and the most likely ones'."""
    generation = client.session().generate(prompt_token_ids=[1], sampling=SamplingParams(logprobs=1))
    tail = linked(context, broker)
    logprobs = (TokenLogprobs(-0.5, ((7, -0.5),)), TokenLogprobs(-1.0, ((8, -1.0),)))
    tail.send(ReturnTokens((ReturnItem(generation.request_id, 0, (7, 8), logprobs, length(2)),)))
    assert list(generation) == [
        TokenEvent(7, "", 0, -0.5, (TopLogprob(7, "", -0.5),)),
        TokenEvent(8, "", 1, -1.0, (TopLogprob(8, "", -1.0),)),
    ]


def test_each_alternative_comes_with_its_own_text(context: Context, broker: Broker, client: Client) -> None:
    """A letter, half a character, a control token by its name; the chosen one's text may still be held back."""
    generation = client.session().generate("hi", sampling=SamplingParams(logprobs=3), stop="ab")
    tail = linked(context, broker)
    letter, half = TOKENIZER.encode("a")[0], TOKENIZER.encode("é")[0]
    (control,) = TOKENIZER.encode("<|end|>", parse_special=True)
    logprobs = (TokenLogprobs(-0.5, ((letter, -0.5), (half, -1.5), (control, -2.5))),)
    tail.send(ReturnTokens((ReturnItem(generation.request_id, 0, (letter,), logprobs, None),)))
    event = next(generation)
    assert (event.text, event.logprob) == ("", -0.5)
    assert event.top_logprobs == (
        TopLogprob(letter, "a", -0.5), TopLogprob(half, "\ufffd", -1.5), TopLogprob(control, "<|end|>", -2.5),
    )  # fmt: skip
    tail.tokens(generation.request_id, 1, ending=length(1))
    assert generation.wait(WAIT_S).text == "a"


@pytest.mark.parametrize("stop", ["END", ["nothing", "END"]])
def test_a_stop_string_that_spans_tokens_ends_the_answer(
    context: Context, broker: Broker, client: Client, stop: str | Sequence[str]
) -> None:
    """Text before it, tokens up to the one that completed it, whatever still comes; upstream is told how many."""
    generation = client.session().generate("hi", stop=stop)
    tail = linked(context, broker)
    token_ids = TOKENIZER.encode("so END and on")
    tail.tokens(generation.request_id, 0, *token_ids[:4])
    assert [next(generation).text for _ in range(4)] == ["s", "o", " ", ""]
    tail.tokens(generation.request_id, 4, *token_ids[4:])
    assert [next(generation).text for _ in range(2)] == ["", ""]
    with pytest.raises(TimeoutError):
        generation.wait(0.05)
    assert tail.expect(ReturnControl) == ReturnControl(generation.request_id, ReturnAction.CANCEL, stop_after=6)
    tail.tokens(generation.request_id, len(token_ids), ending=told(FinishReason.STOP, len(token_ids)))
    assert list(generation) == []
    result = generation.result
    assert (result.text, list(result.token_ids)) == ("so ", token_ids[:6])
    assert (result.finish_reason, result.stop_reason) == (FinishReason.STOP, "END")
    while not any(one.ended for one in tail.expect(ReturnAck).items):
        pass
    assert generation.result == result


def told(reason: FinishReason, num_tokens: int) -> Ending:
    """An ending with all that a pipeline knows."""
    code = ErrorCode.DECODE_FAILED if reason is FinishReason.FAILED else None
    timing = RequestTiming(0.0, 0.0, 0.0, 0.0, 0.001, (0.002,), 0.0, 0.0, 0.0, 0.0, 0.0)
    stages = (StageTiming(0, 3, 0.003, 0.0, 0.0),)
    cache = CacheStatistics(lookups=1, hits=1)
    return Ending(reason, num_tokens, Usage(2, num_tokens, 1), stages, code, "broke", cache, 2, timing)


@pytest.mark.parametrize("reason", FinishReason)
def test_after_a_stop_string_the_result_has_all_that_the_pipeline_knows(
    context: Context, broker: Broker, client: Client, reason: FinishReason
) -> None:
    """As if the tail had ended it there, also where the tail came to another end before it heard of it."""
    generation = client.session().generate("hi", raw=True, stop="END")
    tail = linked(context, broker)
    token_ids = TOKENIZER.encode("an END and on")
    tail.tokens(generation.request_id, 0, *token_ids, ending=told(reason, len(token_ids)))
    result = generation.wait(WAIT_S)
    assert (result.finish_reason, result.stop_reason, result.error) == (FinishReason.STOP, "END", None)
    assert (result.text, result.usage) == ("an ", Usage(2, 6, 1))
    assert (result.cache, result.kept_tokens) == (CacheStatistics(lookups=1, hits=1), 2)
    assert result.timings.stages == told(reason, 0).timings
    assert result.timings.parts is not None
    assert sum(seconds for _, seconds in result.timings.parts.rows()) == pytest.approx(result.timings.total_s)


def test_leaving_before_the_ending_of_a_stop_string_comes_waits_for_nothing(
    context: Context, broker: Broker, client: Client
) -> None:
    """The answer was complete; upstream has heard so, and of no cancel."""
    with client.session().generate("hi", stop="!") as generation:
        tail = linked(context, broker)
        tail.tokens(generation.request_id, 0, *TOKENIZER.encode("a!"))
        assert [next(generation).text for _ in range(2)] == ["a", ""]
    assert (generation.result.finish_reason, generation.result.stop_reason) == (FinishReason.STOP, "!")
    assert tail.expect(ReturnControl).stop_after == 2


def test_token_ids_need_no_tokenizer_and_give_text_if_asked(context: Context, broker: Broker, client: Client) -> None:
    """`detokenize` asks for it."""
    generation = client.session().generate(prompt_token_ids=[1], detokenize=True)
    assert [event.text for event in answer(context, broker, generation, "ab")] == ["a", "b"]
