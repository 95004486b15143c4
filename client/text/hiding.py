"""Hides in messages what could be, or become part of, the name of a control token, from the template that writes them.

A hidden character is replaced by a private one of its own, its twin, which no message and no template has. So the names
that a template writes without a twin are its own, wherever it cuts, trims and joins what the messages hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from stagewire.client.text.message import Fields, JsonValue
from stagewire.client.text.special_names import SpecialNames
from stagewire.wire.errors import RequestRefused

_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
# For letters: those of a script that hardly anybody writes, so that a template can change their case. Deseret has its
# capitals here, and its small letters forty further on.
_CAPITALS, _SMALL = range(0x10400, 0x10428), 40
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
        self._twins = _twins(alphabet, _Unused(known))

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
        if "\\u" in text or "\\U" in text:
            for twin in self._twins.values():
                for escape in _escapes(twin):
                    text = text.replace(escape, twin)
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
            if any(name.endswith(head) and name != head for name in self._folded):
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


class _Unused:
    """Tells the characters that none of the texts has, nor the number of."""

    def __init__(self, known: Sequence[str]) -> None:
        self._used: set[str] = set()
        for text in known:
            for start in range(0, len(text), _SET_CHARS):
                self._used.update(text[start : start + _SET_CHARS])
        self._escaped = "".join(text for text in known if "\\u" in text or "\\U" in text).lower()

    def is_free(self, character: str) -> bool:
        return character not in self._used and not any(one.lower() in self._escaped for one in _escapes(character))


def _twins(alphabet: set[str], unused: _Unused) -> dict[str, str]:
    """A character of its own for each.

    Raises:
        RequestRefused: INVALID_REQUEST, there are not enough.
    """
    pairs = ((chr(code), chr(code + _SMALL)) for code in _CAPITALS)
    free_pairs = (pair for pair in pairs if all(map(unused.is_free, pair)))
    private = (chr(code) for codes in _PRIVATE for code in codes)
    free = (character for character in private if unused.is_free(character))
    letters = sorted({(one.upper(), one.lower()) for one in alphabet if len(one.upper() + one.lower()) == 2})
    cased = [(upper, lower) for upper, lower in letters if upper != lower and upper.lower() == lower]
    twins: dict[str, str] = {}
    for (upper, lower), (capital, small) in zip(cased, free_pairs, strict=False):
        twins |= {upper: capital, lower: small}
    twins |= dict(zip(sorted(alphabet - twins.keys()), free, strict=False))
    if alphabet - twins.keys():
        raise RequestRefused("the messages hold every private character of Unicode; one must be free")
    return twins


def _escapes(character: str) -> set[str]:
    """The character's number, as JSON and as Python write it."""
    return {json.dumps(character)[1:-1], repr(character)[1:-1]} - {character}
