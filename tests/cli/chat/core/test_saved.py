"""Conversations as files hold them: what is written can be read, and what is wrong is named."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagewire.cli.chat.core.conversation import Conversation, Turn
from stagewire.cli.chat.core.saved import NotAConversation, from_text, to_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def test_the_file_is_a_plain_list_of_messages() -> None:
    text = to_text(Conversation("kurz", (Turn("Grüße?", "你好\n\x1b"),)), "and now?")
    assert json.loads(text) == [
        {"role": "system", "content": "kurz"},
        {"role": "user", "content": "Grüße?"},
        {"role": "assistant", "content": "你好\n\x1b"},
        {"role": "user", "content": "and now?"},
    ]
    assert "Grüße" in text and "\x1b" not in text


@given(
    system=st.none() | TEXT,
    turns=st.lists(st.builds(Turn, TEXT, TEXT), max_size=4),
    question=st.none() | TEXT,
)
def test_what_is_written_is_read_again(system: str | None, turns: list[Turn], question: str | None) -> None:
    conversation = Conversation(system, tuple(turns))
    assert from_text(to_text(conversation, question)) == (conversation, question)


USER, ANSWER, SYSTEM = ({"role": role, "content": "x"} for role in ("user", "assistant", "system"))


@pytest.mark.parametrize(
    ("items", "told"),
    [
        ({"messages": []}, "expected a list of messages, not an object"),
        ("hello", "expected a list of messages, not a text"),
        (None, "expected a list of messages, not null"),
        ([USER, "hi"], "message 2: expected an object with role and content, not a text"),
        ([{"role": "user"}], "message 1: content is missing; expected a text"),
        ([{"content": "x"}], "message 1: role is missing; expected a text"),
        ([{"role": "user", "content": ["x"]}], "message 1: content is a list; expected a text"),
        ([{"role": 3, "content": "x"}], "message 1: role is a number; expected a text"),
        ([{"role": True, "content": "x"}], "message 1: role is true or false; expected a text"),
        ([USER, ANSWER, USER | {"name": "Ada"}], "message 3: 'name' is neither role nor content"),
        ([USER | {"role": "tool"}], "message 1: role 'tool' is none of system, user, assistant"),
        ([ANSWER], "message 1: role 'assistant' where 'user' is expected"),
        ([SYSTEM, USER, USER], "message 3: role 'user' where 'assistant' is expected"),
        ([USER, ANSWER, SYSTEM], "message 3: role 'system' where 'user' is expected"),
        ([SYSTEM, SYSTEM], "message 2: role 'system' where 'user' is expected"),
        ([USER | {"content": "\udcff"}], "message 1: content holds half a character (a lone surrogate)"),
    ],
)
def test_what_is_no_conversation_says_what_and_where(items: object, told: str) -> None:
    with pytest.raises(NotAConversation) as error:
        from_text(json.dumps(items))
    assert str(error.value) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1: not JSON"), ("[\n{]", "line 2: not JSON"), ("Dear diary", "line 1: not JSON"),
        ("[" * 100_000, "not a list of messages"), ("[" + "1" * 10_000 + "]", "not a list of messages"),
    ],
)  # fmt: skip
def test_what_is_no_json_says_so(text: str, told: str) -> None:
    with pytest.raises(NotAConversation, match=told):
        from_text(text)


@given(st.text() | st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=8).map(json.dumps))
def test_whatever_a_file_holds_only_that_error_comes(text: str) -> None:
    with contextlib.suppress(NotAConversation):
        from_text(text)


def test_an_empty_list_is_an_empty_conversation() -> None:
    assert from_text("[]") == (Conversation(), None)
