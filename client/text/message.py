"""One message of a conversation, checked: what a template is given of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeGuard, cast

from stagewire.wire.errors import RequestRefused

JsonValue: TypeAlias = bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"] | None
Fields: TypeAlias = dict[str, JsonValue]
_MAX_DEPTH = 64
_OWN_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation. `role` is what the model's template knows: system, user, assistant, tool.

    Attributes:
        content: a text, or parts of it: `{"type": "text", "text": ...}`. None beside `tool_calls`.
        name: who speaks, or which tool answers.
        tool_calls: what the model has called, as its template wants it.
        tool_call_id: which call a tool answers.
        extra: further fields that the template knows, such as `reasoning_content`.

    Raises:
        RequestRefused: INVALID_REQUEST, on construction, naming the field. A field that the template does not write
            is refused when it renders.
    """

    role: str
    content: str | Sequence[Mapping[str, JsonValue]] | None
    name: str | None = None
    tool_calls: Sequence[Mapping[str, JsonValue]] | None = None
    tool_call_id: str | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_text("role", self.role)
        if not self.role:
            raise RequestRefused("a message's role is empty")
        if isinstance(self.content, Sequence) and not isinstance(self.content, (str, bytes)):
            _check_parts(self.content)
        elif self.content is not None or not self.tool_calls:
            _check_text("content", self.content)
        for name in ("name", "tool_call_id"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
        if self.tool_calls is not None and not _is_array(self.tool_calls):
            raise RequestRefused(f"a message's tool_calls is a list, not {type(self.tool_calls).__name__}")
        if taken := sorted(set(self.extra) & set(_OWN_FIELDS)):
            raise RequestRefused(f"a message's extra holds {taken[0]!r}, which is a field of its own")
        self.fields()

    @staticmethod
    def of(message: Mapping[str, object]) -> ChatMessage:
        """The message that a mapping describes.

        Raises:
            RequestRefused: INVALID_REQUEST, naming the field.
        """
        has_content = "content" in message or bool(message.get("tool_calls"))
        if "role" not in message or not has_content:
            raise RequestRefused("a message needs `role` and `content`")
        for name in message:
            if not isinstance(name, str):
                raise RequestRefused(f"a message has a field {name!r:.80}, which is no text")
        values = {name: message.get(name) for name in _OWN_FIELDS}
        extra = {name: value for name, value in message.items() if name not in values}
        return ChatMessage(**values, extra=extra)  # type: ignore[arg-type]  # the constructor checks every field

    def fields(self) -> Fields:
        """What a template is given: role, content, and of the other fields those that hold something."""
        others = {"name": self.name, "tool_calls": self.tool_calls, "tool_call_id": self.tool_call_id, **self.extra}
        fields: Fields = {"role": self.role, "content": _copied("content", self.content)}
        return fields | {
            name: _copied(name, value) for name, value in others.items() if value is not None and value != []
        }

    @property
    def has_parts(self) -> bool:
        return not isinstance(self.content, (str, type(None)))


def joined_parts(content: JsonValue) -> JsonValue:
    """The texts of a content of parts, a line break between them; a content that is a text as it is."""
    if not isinstance(content, list):
        return content
    return "\n".join(cast("str", part["text"]) for part in content if isinstance(part, Mapping))


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise RequestRefused(f"a message's {name} is a text, not {type(value).__name__}")


def _check_parts(parts: Sequence[object]) -> None:
    for number, part in enumerate(parts):
        where = f"a message's content[{number}]"
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise RequestRefused(f"{where} is no part such as {{'type': 'text', 'text': ...}}")
        if part["type"] != "text":
            raise RequestRefused(f"{where} has the type {part['type']!r:.80}; only 'text' can be read here")
        if not isinstance(part.get("text"), str):
            raise RequestRefused(f"{where} has no `text` that is one")
        if unknown := sorted(map(str, set(part) - {"type", "text"})):
            raise RequestRefused(f"{where} has a field {unknown[0]!r:.80}, which would not be used; leave it out")


def _copied(name: str, value: object, depth: int = 0) -> JsonValue:
    """The value in lists and dicts of one's own."""
    if depth > _MAX_DEPTH:
        raise RequestRefused(f"a message's {name:.200} is nested more than {_MAX_DEPTH} deep")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise RequestRefused(f"a message's {name:.200} has a key {key!r:.80}, which is no text")
        return {key: _copied(f"{name}.{key}", item, depth + 1) for key, item in value.items()}
    if _is_array(value):
        return [_copied(f"{name}[{number}]", item, depth + 1) for number, item in enumerate(value)]
    raise RequestRefused(f"a message's {name:.200} is {type(value).__name__}; texts, numbers, lists and mappings go")


def _is_array(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))
