"""Chat templates: the prompt that the model's authors meant, refusals in the template's words, no way out."""

from __future__ import annotations

from datetime import datetime

import pytest
from support.text_cards import CONTROL, tiny_card

from stagewire.client.text.message import ChatMessage
from stagewire.client.text.template import ChatTemplate
from stagewire.client.text.tokenizer import Tokenizer
from stagewire.model.card import build_card
from stagewire.model.gguf import GgufFile
from stagewire.wire.errors import ErrorCode, RequestRefused

HELLO = [ChatMessage("user", "Hello")]


def render(template: str, messages: list[ChatMessage] = HELLO) -> str:
    return ChatTemplate(tiny_card(chat_template=template)).render(messages)


def test_the_default_models_template_gives_its_prompt(gguf_file: GgufFile) -> None:
    card = build_card(gguf_file, "smollm2-135m")
    template = ChatTemplate(card)
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    expected = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    assert template.render(HELLO, add_generation_prompt=False) == expected
    assert template.render(HELLO) == expected + "<|im_start|>assistant\n"
    ids = Tokenizer(card).encode(template.render(HELLO), parse_special=True)
    assert [ids.count(special) for special in (1, 2)] == [3, 2]


def test_a_system_message_takes_the_place_of_the_models_own(gguf_file: GgufFile) -> None:
    template = ChatTemplate(build_card(gguf_file, "smollm2-135m"))
    prompt = template.render([ChatMessage("system", "Be brief."), *HELLO], add_generation_prompt=False)
    assert prompt == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}", "user\n"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hello"}]'),
        ("{{ {'a': '<é>'} | tojson(indent=1) }}", '{\n "a": "<é>"\n}'),
        ("{{ '<b>' }}", "<b>"),
        ("{{ bos_token }}{{ eos_token }}", ""),
        ("{{ strftime_now('%Y') }}", str(datetime.now().astimezone().year)),
    ],
)
def test_templates_have_what_they_are_written_for(template: str, prompt: str) -> None:
    assert render(template) == prompt


def test_special_tokens_have_their_names() -> None:
    card = tiny_card([("<s>", CONTROL)], bos="<s>", chat_template="{{ bos_token }}{{ messages[0].content }}")
    prompt = ChatTemplate(card).render(HELLO)
    assert prompt == "<s>Hello"
    assert Tokenizer(card).encode(prompt, parse_special=True, as_prompt=True).count(256) == 1


def test_a_model_without_a_template_says_what_to_send_instead() -> None:
    with pytest.raises(RequestRefused, match="no chat template; send text or token ids") as caught:
        ChatTemplate(tiny_card())
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content }}", "no element 7"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'a' + 1 }}", "concatenate"),
        ("{{ none | length }}", "has no len"),
        ("{% for i in range(1000000000) %}{% endfor %}", "Range too big"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "__mro__|unsafe|undefined"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe|undefined"),
        ("{% include 'other' %}", "no loader"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_a_template_that_refuses_or_fails_is_an_invalid_request_with_its_words(template: str, words: str) -> None:
    with pytest.raises(RequestRefused, match=words) as caught:
        render(template)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_a_template_that_is_none_is_named_at_once() -> None:
    with pytest.raises(RequestRefused, match="chat template of 'tiny' is damaged"):
        ChatTemplate(tiny_card(chat_template="{% if %}"))


def test_messages_are_checked() -> None:
    with pytest.raises(RequestRefused, match="messages is empty"):
        render("x", [])
    with pytest.raises(RequestRefused, match="role is empty"):
        ChatMessage("", "x")
    with pytest.raises(RequestRefused, match="content is a text, not NoneType"):
        ChatMessage("user", None)
