"""Hides in messages what could be, or become part of, the name of a control token, from the template that writes them.

A hidden character is replaced by a private one of its own, its twin, which no message and no template has. So the names
that a template writes without a twin are its own, wherever it cuts, trims and joins what the messages hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from stagewire.client.text.message import Fields, JsonValue
from stagewire.client.text.special_names import SpecialNames
from stagewire.wire.errors import RequestRefused

_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_SET_CHARS = 1 << 16

_Change = Callable[[str], str]


class Hiding:
    """For one rendering: `known` are all texts that the twins must not occur in, the template among them.

    Raises:
        RequestRefused: INVALID_REQUEST, on construction: they hold all private characters there are.
    """

    def __init__(self, names: SpecialNames, known: Sequence[str]) -> None:
        self._names = names
        guarded = names.guarded.names
        self._ends = sorted({name[0] for name in guarded} | {name[-1] for name in guarded})
        self._folded = tuple(name.casefold() for name in guarded)
        alphabet = {character for name in guarded for case in (name, name.lower(), name.upper()) for character in case}
        self._twins = dict(zip(sorted(alphabet), _unused(known), strict=False))
        if len(self._twins) < len(alphabet):
            raise RequestRefused("the messages hold every private character of Unicode; one must be free")

    def everywhere(self, messages: Sequence[Fields]) -> list[Fields]:
        """Hides each character that a name begins or ends with, so that whatever a filter makes of it is none."""
        return self._changed(messages, self._hide_ends)

    def where_needed(self, messages: Sequence[Fields]) -> list[Fields]:
        """Hides whole names, and beginnings and ends of names at a text's ends: a template sees all else."""
        return self._changed(messages, self._hide_names)

    def shown(self, text: str) -> str:
        """The text with all that was hidden, of the same length."""
        for character, twin in self._twins.items():
            text = text.replace(twin, character)
        return text

    def unescaped(self, text: str) -> str:
        """What was rendered, with a twin where the template has written its number, as JSON in ASCII does."""
        if "\\ue" not in text and "\\uf" not in text:
            return text
        for twin in self._twins.values():
            text = text.replace(f"\\u{ord(twin):04x}", twin)
        return text

    def _changed(self, messages: Sequence[Fields], change: _Change) -> list[Fields]:
        return [self._message(message, change) for message in messages]

    def _message(self, message: Fields, change: _Change) -> Fields:
        if message["role"] == "assistant":
            change = self._sparing_the_models_words(change)
        role, content = message["role"], message["content"]
        hidden = {name: _mapped(value, change) for name, value in message.items()}
        # A template may make names of roles, `<|user|>`: but not of one that is a name.
        hidden["role"] = self._at(role, self._names.guarded.starts_of_any_case(role)) if isinstance(role, str) else role
        hidden["content"] = _mapped_content(content, lambda text: self._hide_middle(change(text)))
        return hidden

    def _sparing_the_models_words(self, change: _Change) -> _Change:
        """Added tokens are shown where a model writes them: said again, they are what they were."""

        def changed(text: str) -> str:
            pieces, position = [], 0
            for start, end in self._names.looking.spans(text):
                pieces += [change(text[position:start]), text[start:end]]
                position = end
            return "".join([*pieces, change(text[position:])])

        return changed

    def _hide_ends(self, text: str) -> str:
        for character in self._ends:
            text = text.replace(character, self._twins[character])
        return text

    def _hide_names(self, text: str) -> str:
        return self._at(text, {*self._names.guarded.starts_of_any_case(text), *self._at_the_ends(text)})

    def _hide_middle(self, text: str) -> str:
        """A text that is the inside of a name, between the ends that a template might write around it."""
        start = len(text) - len(text.lstrip())
        inside = text.strip().casefold() if len(text) < start + 2 * self._names.guarded.longest else ""
        is_part = bool(inside) and any(inside in name for name in self._folded)
        return self._at(text, [start] if is_part else [])

    def _at_the_ends(self, text: str) -> Iterator[int]:
        reach = self._names.guarded.longest
        end, start = len(text.rstrip()), len(text) - len(text.lstrip())
        for position in range(max(start, end - reach), end):
            tail = text[position:end].casefold()
            if any(name.startswith(tail) for name in self._folded):
                yield position
        for position in range(start, min(end, start + reach)):
            head = text[start : position + 1].casefold()
            if any(name.endswith(head) for name in self._folded):
                yield position

    def _at(self, text: str, positions: Iterator[int] | set[int] | Sequence[int]) -> str:
        pieces, position = [], 0
        for hidden in sorted(positions):
            pieces += [text[position:hidden], self._twins.get(text[hidden], text[hidden])]
            position = hidden + 1
        return "".join([*pieces, text[position:]])


def texts_of(value: JsonValue) -> Iterator[str]:
    """All texts in a value, the keys among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from texts_of(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from texts_of(item)


def _mapped(value: JsonValue, change: _Change) -> JsonValue:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_mapped(item, change) for item in value]
    return value


def _mapped_content(content: JsonValue, change: _Change) -> JsonValue:
    """Changes the text of each part, and not the words that say what it is."""
    if not isinstance(content, list):
        return _mapped(content, change)
    parts = (part for part in content if isinstance(part, Mapping))
    return [{**part, "text": _mapped(part["text"], change)} for part in parts]


def _unused(known: Sequence[str]) -> Iterator[str]:
    used: set[str] = set()
    escapes = ""
    for text in known:
        for start in range(0, len(text), _SET_CHARS):
            used.update(text[start : start + _SET_CHARS])
        if "\\u" in text or "\\U" in text:
            escapes += text.lower()
    for code in (code for private in _PRIVATE for code in private):
        if chr(code) not in used and f"\\u{code:04x}" not in escapes:
            yield chr(code)
