"""Chat templates: the prompt that the model's authors meant, refusals in the template's words, no way out."""

from __future__ import annotations

import itertools
import json
from datetime import datetime, timezone
from types import MappingProxyType, SimpleNamespace

import pytest
from support.text_cards import CONTROL, tiny_card

from stagewire.client.text import sandbox
from stagewire.client.text.message import ChatMessage, JsonValue
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
        ("{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}!", "Hello!"),
        ("{%- generation -%} a {%- endgeneration -%} b", "ab"),
        ("{% for m in messages %}{% generation %}{% if 1 %}x{% endif %}{% endgeneration %}{% endfor %}", "x"),
        ("{{ {'b': 1, 'a': [1, 2]} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":[1,2],"b":1}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}{{ 'é' | tojson }}", '"\\u00e9""é"'),
        ("{{ tools is none }}{{ documents is none }}{{ tools is defined }}", "TrueTrueTrue"),
        ("{% for i in range(9) %}{% if i % 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02468"),
        ("{{ 'a' ~ 1 ~ none ~ nothing ~ [2] }}", "a1None[2]"),
        ("{{ '%s-%05.2f' | format('a', 2) }}{{ '{} {:02d} {{}}'.format(1700000000, 3) }}", "a-02.001700000000 03 {}"),
        ("{{ 'a,a' | replace('a', 'b') }}{{ 'a,a' | replace('a', 'b', 1) }}{{ 'aa'.replace('a', '') }}", "b,bb,a"),
        (
            "{{ 3 * 'ab' }}{{ [1] * 2 }}{{ 2 ** 10 }}{{ 'x'.ljust(3) }}|{{ 'x' | center(3) }}|",
            "ababab[1, 1]1024x  | x |",
        ),
        (
            "{% macro f(x) %}<{{ x }}{{ caller() if caller }}>{% endmacro %}{{ f(1) }}{% call f(2) %}!{% endcall %}",
            "<1><2!>",
        ),
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
        ("{% for i in range(5) recursive %}{{ loop(range(5)) }}{% endfor %}", "recursion"),
        ("{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "too much"),
        ("{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}", "too much"),
        (
            "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x %}{{ n.x * 2 }}{% endset %}{% endfor %}",
            "too",
        ),
        ("{{ 'a' * 10000000000 }}", "too much"),
        ("{{ 10000000000 * [1] }}", "too much"),
        ("{{ 10 ** (10 ** 10) }}", "too much"),
        ("{{ 'a'.ljust(10000000000) }}", "too much"),
        ("{{ 'a' | center(10000000000) }}", "too much"),
        ("{{ 'a' | indent(10000000000) }}", "too much"),
        ("{{ messages | batch(10000000000, 'a') | list }}", "too much"),
        ("{{ '%10000000000d' % 1 }}", "too much"),
        ("{{ '%*d' | format(10000000000, 1) }}", "too much"),
        ("{{ '{:>{}}'.format(1, 10000000000) }}", "too much"),
        ("{{ ('a' * 10000000) | replace('a', 'b' * 10000000) }}", "too much"),
        ("{{ ('a' * 10000000).replace('a', 'b' * 10000000) }}", "too much"),
        ("{{ lipsum(10000000000) }}", "lipsum"),
    ],
)
def test_a_template_that_refuses_or_fails_is_an_invalid_request_with_its_words(template: str, words: str) -> None:
    with pytest.raises(RequestRefused, match=words) as caught:
        render(template)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% continue %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for i in range(60) recursive %}{% if loop.depth < 60 %}{{ loop(range(60)) }}{% endif %}{% endfor %}",
    ],
)
def test_a_template_does_not_run_for_ever(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which each look takes a millisecond."""
    looks = itertools.count()
    monkeypatch.setattr(sandbox, "time", SimpleNamespace(monotonic=lambda: next(looks) / 1000))
    with pytest.raises(RequestRefused, match="it ran for more than 10 s") as caught:
        render(template)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_a_text_of_millions_of_characters_is_not_too_much() -> None:
    long = "word " * 1_000_000
    assert render("{% set c = messages[0].content %}<{{ c | trim }}|{{ c }}>", [ChatMessage("user", long)]) == (
        f"<{long.strip()}|{long}>"
    )


def test_a_prompt_has_one_time() -> None:
    """However often it is rendered to find out what of it is the template's own."""
    template = ChatTemplate(tiny_card(chat_template="{{ strftime_now('%H:%M:%S.%f') }}"))
    assert template.render(HELLO) == template.render(HELLO)


def test_a_template_that_python_cannot_compile_is_damaged() -> None:
    with pytest.raises(RequestRefused, match=r"damaged.*nested"):
        ChatTemplate(tiny_card(chat_template="{% for a in [1] %}" * 25 + "{% endfor %}" * 25))


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


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, r"content\[0\].*'image_url'"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]},
            r"\[1\].*'input_audio'",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, r"content\[0\] has no `text`"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, r"content\[0\] has no `text`"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}, "'cache_control'"),
        ({"role": "user", "content": ["a"]}, r"content\[0\] is no part"),
        ({"role": "user", "content": b"a"}, "content is a text, not bytes"),
        ({"role": "user", "content": {"text": "a"}}, "content is a text, not dict"),
        ({"role": "user", "content": 5}, "content is a text, not int"),
        ({"role": "user", "content": None}, "content is a text, not NoneType"),
        ({"role": 5, "content": "a"}, "role is a text, not int"),
        ({"role": "user"}, "needs `role` and `content`"),
        ({"content": "a"}, "needs `role` and `content`"),
        ({"role": "user", "content": "a", "name": 5}, "name is a text, not int"),
        ({"role": "tool", "content": "a", "tool_call_id": 5}, "tool_call_id is a text, not int"),
        ({"role": "assistant", "content": "a", "tool_calls": "f()"}, "tool_calls is a list, not str"),
        ({"role": "assistant", "content": "a", "tool_calls": {"f": 1}}, "tool_calls is a list, not dict"),
        ({"role": "assistant", "content": None, "tool_calls": [{"a": {1: 2}}]}, r"tool_calls\[0\].a has a key 1"),
        ({"role": "assistant", "content": None, "tool_calls": [{"a": {"b"}}]}, r"tool_calls\[0\].a is set"),
        ({"role": "user", "content": "a", "when": datetime(2026, 1, 1, tzinfo=timezone.utc)}, "when is datetime"),
        ({"role": "user", "content": "a", 5: "b"}, "a field 5, which is no text"),
    ],
)
def test_what_a_message_cannot_hold_is_refused_by_name(message: dict[str, object], words: str) -> None:
    with pytest.raises(RequestRefused, match=words) as caught:
        ChatMessage.of(message)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_a_message_that_holds_itself_is_refused() -> None:
    circle: list[JsonValue] = []
    circle.append(circle)
    with pytest.raises(RequestRefused, match="nested more than 64 deep"):
        ChatMessage("assistant", "x", extra={"circle": circle})


def test_a_message_keeps_what_it_was_given() -> None:
    """Whatever becomes of the caller's lists; and a template is given lists and dicts."""
    calls = [MappingProxyType({"function": MappingProxyType({"name": "f", "arguments": ({"x": 1},)})})]
    message = ChatMessage.of({"role": "assistant", "content": None, "tool_calls": calls, "plan": "p"})
    wanted = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": [{"x": 1}]}}],
        "plan": "p",
    }
    assert message.fields() == wanted
    assert render("{{ messages | tojson }}", [message]) == json.dumps([wanted])
