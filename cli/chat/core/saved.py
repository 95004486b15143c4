"""A conversation as a file holds it: a JSON list of messages, each with `role` and `content`."""

from __future__ import annotations

import json
from dataclasses import asdict

from stagewire.cli.chat.core.conversation import Conversation, Message

_ROLES = ("system", "user", "assistant")


class NotAConversation(ValueError):
    """A text is no saved conversation; says what is wrong and where. Nothing of it was taken."""


def to_text(conversation: Conversation, question: str | None = None) -> str:
    """As JSON, and a last question that has no answer yet."""
    messages = [asdict(message) for message in conversation.messages(question)]
    return json.dumps(messages, ensure_ascii=False, indent=2) + "\n"


def from_text(text: str) -> tuple[Conversation, str | None]:
    """The conversation, and the question at its end if that has no answer.

    Raises:
        NotAConversation: naming the message, counted from 1.
    """
    messages = [_message(number, item) for number, item in enumerate(_items(text), start=1)]
    system = messages.pop(0).content if messages and messages[0].role == "system" else None
    offset = 1 if system is None else 2
    for index, message in enumerate(messages):
        expected = ("user", "assistant")[index % 2]
        if message.role != expected:
            raise NotAConversation(f"message {index + offset}: role {message.role!r} where {expected!r} is expected")
    question = messages.pop().content if len(messages) % 2 else None
    conversation = Conversation(system)
    for asked, answered in zip(messages[::2], messages[1::2], strict=True):
        conversation = conversation.with_turn(asked.content, answered.content)
    return conversation, question


def _items(text: str) -> list[object]:
    try:
        items = json.loads(text)
    except json.JSONDecodeError as error:
        raise NotAConversation(f"line {error.lineno}: not JSON: {error.msg}") from None
    except (RecursionError, ValueError):  # nested too deeply; a number of too many digits
        raise NotAConversation("not a list of messages") from None
    if not isinstance(items, list):
        raise NotAConversation(f"expected a list of messages, not {_kind(items)}")
    return items


def _message(number: int, item: object) -> Message:
    if not isinstance(item, dict):
        raise NotAConversation(f"message {number}: expected an object with role and content, not {_kind(item)}")
    if unknown := [key for key in item if key not in ("role", "content")]:
        raise NotAConversation(f"message {number}: {unknown[0]!r:.40} is neither role nor content")
    for name in ("role", "content"):
        if not isinstance(item.get(name), str):
            told = f"is {_kind(item[name])}" if name in item else "is missing"
            raise NotAConversation(f"message {number}: {name} {told}; expected a text")
    message = Message(item["role"], item["content"])
    if message.role not in _ROLES:
        raise NotAConversation(f"message {number}: role {message.role!r:.40} is none of {', '.join(_ROLES)}")
    if any("\ud800" <= character <= "\udfff" for character in message.content):
        raise NotAConversation(f"message {number}: content holds half a character (a lone surrogate)")
    return message


def _kind(value: object) -> str:
    """In JSON's words."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
