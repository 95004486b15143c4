"""What an answer is drawn with: the caller's values, or the model's own; and what a text means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.answers import CARD, TEMPLATE, TOKENIZER, linked
from support.client_peers import CLIENT, WAIT_S, Broker, Context, dispatched, length
from support.text_cards import CONTROL, tiny_card

from stagewire.client import Client, ClientSettings, RequestRefused, SamplingParams
from stagewire.wire.card import ModelCard
from stagewire.wire.codec import Message
from stagewire.wire.frontend import Generate, GetCard
from stagewire.wire.sampling import UNTOLD_SAMPLING

pytestmark = pytest.mark.processes
TOLD = SamplingParams(temperature=0.6, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.05)
PROMPTS = [{"text": "hi"}, {"messages": [{"role": "user", "content": "hi"}]}, {"prompt_token_ids": [1]}]


def asked(card: ModelCard, folder: Path, **arguments: Any) -> Generate:
    """What a client sends to a broker that serves this model."""
    broker = Broker(card=card)
    try:
        settings = ClientSettings(endpoint=broker.endpoint, client_id=CLIENT, cache_folder=folder)
        with Client(settings=settings) as client, client.session().generate(**arguments):
            return broker.expect(Generate)
    finally:
        broker.close()


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("sampling", [UNTOLD_SAMPLING, TOLD, SamplingParams()])
def test_where_nothing_is_said_the_models_own_values_count(
    prompt: dict[str, Any], sampling: SamplingParams, tmp_path: Path
) -> None:
    """Whatever kind of prompt it is; with a seed, new each time."""
    card = replace(CARD, sampling=sampling)
    sent = [asked(card, tmp_path, **prompt).sampling for _ in range(2)]
    assert [replace(one, seed=None) for one in sent] == [sampling, sampling]
    assert None not in {one.seed for one in sent}
    assert sent[0].seed != sent[1].seed


def test_a_model_that_wants_no_draws_gets_none(tmp_path: Path) -> None:
    greedy = SamplingParams(temperature=0)
    assert asked(replace(CARD, sampling=greedy), tmp_path, text="hi").sampling == greedy


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(top_k=3), SamplingParams(temperature=0)])
def test_what_the_caller_says_is_all_that_counts(sampling: SamplingParams, tmp_path: Path) -> None:
    """Fields that it leaves alone are neutral, not the model's."""
    sent = asked(replace(CARD, sampling=TOLD), tmp_path, text="hi", sampling=sampling).sampling
    assert replace(sent, seed=None) == sampling


@pytest.mark.parametrize("stop", [(), "!"])
@pytest.mark.parametrize("sampling", [None, SamplingParams(temperature=0), SamplingParams(seed=5), SamplingParams()])
def test_the_result_tells_what_the_tokens_were_drawn_with(
    context: Context, broker: Broker, client: Client, sampling: SamplingParams | None, stop: str | tuple[str, ...]
) -> None:
    """The seed, too; wherever the answer ends."""
    sent: list[Generate] = []

    def on_generate(one: Generate) -> list[Message]:
        sent.append(one)
        return dispatched()(one)

    broker.on_generate = on_generate
    generation = client.session().generate("hi", sampling=sampling, stop=stop)
    linked(context, broker).tokens(generation.request_id, 0, *TOKENIZER.encode("a!b"), ending=length(3))
    told = generation.wait(WAIT_S).sampling
    assert told == sent[0].sampling
    assert replace(told, seed=None) == replace(sampling or UNTOLD_SAMPLING, seed=None)
    assert (told.seed is None) == told.is_greedy
    assert sampling is None or sampling.seed in (None, told.seed)


def test_what_draws_nothing_asks_for_no_card(broker: Broker, client: Client) -> None:
    """A prompt in tokens that is only computed, or comes with its own values."""
    for arguments in ({"max_tokens": 0}, {"sampling": SamplingParams()}):
        with client.session().generate(prompt_token_ids=[1], **arguments):
            broker.expect(Generate)
    assert not broker.has(GetCard, 0.2)


TEXTS = ["hi", "hé <user>", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_a_users_message(text: str, tmp_path: Path) -> None:
    """The same as saying so."""
    sent = asked(CARD, tmp_path, text=text)
    same = asked(CARD, tmp_path, messages=[{"role": "user", "content": text}])
    assert sent.prompt_token_ids == same.prompt_token_ids
    assert TOKENIZER.decode(sent.prompt_token_ids.to_list()) == f"<user>{text}"


@pytest.mark.parametrize("text", TEXTS)
def test_a_raw_text_is_continued_and_so_is_any_without_a_template(text: str, tmp_path: Path) -> None:
    """From the start token on, where the vocabulary has one; a template writes its own."""
    started = tiny_card([("<s>", CONTROL)], chat_template=TEMPLATE, bos="<s>")
    assert asked(CARD, tmp_path, text=text, raw=True).prompt_token_ids.to_list() == TOKENIZER.encode(text)
    plain = [started.tokenizer.bos_token_id, *TOKENIZER.encode(text)] if started.tokenizer else []
    assert asked(started, tmp_path, text=text, raw=True).prompt_token_ids.to_list() == plain
    assert asked(replace(started, chat_template=None), tmp_path, text=text).prompt_token_ids.to_list() == plain
    assert asked(started, tmp_path, text=text).prompt_token_ids.to_list() == TOKENIZER.encode(f"<user>{text}")


def test_what_is_no_text_cannot_be_raw(client: Client) -> None:
    for prompt in PROMPTS[1:]:
        with pytest.raises(RequestRefused, match="raw=True needs a text"):
            client.session().generate(raw=True, **prompt)  # type: ignore[arg-type]
