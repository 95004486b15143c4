"""What kind each argument of `generate` must be; of a wrong kind it says which argument is meant instead."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches

from stagewire.wire.errors import ErrorCode, RequestRefused
from stagewire.wire.sampling import SamplingParams

_MAX_TOKEN_ID = 2**31 - 1
_SAMPLING = frozenset(field.name for field in fields(SamplingParams))


def check_names(given: Iterable[str], known: Collection[str]) -> None:
    """Every name must be an argument of `generate`.

    Raises:
        TypeError: one is none; it says where it belongs, or which one is alike.
    """
    for name in given:
        if name in _SAMPLING:
            raise TypeError(f"generate() has no {name!r}: give it as sampling=SamplingParams({name}=...)")
        if name == "model":
            raise TypeError("a session's generate() has no 'model': client.session(model=...) and client.generate have")
        if name not in known:
            alike = get_close_matches(name, known, n=1)
            raise TypeError(f"generate() has no {name!r}" + (f": {alike[0]!r} is meant, maybe" if alike else ""))


def check_text(text: object) -> None:
    """One text, or none.

    Raises:
        RequestRefused: INVALID_REQUEST.
    """
    if text is None or isinstance(text, str):
        return
    kind = type(text).__name__
    items = _items(text)
    if isinstance(text, (bytes, bytearray)):
        hint = "decode it: text.decode()"
    elif isinstance(text, Mapping) or _is_message(text):
        hint = "messages are given as messages=[...]"
    elif not items:
        hint = "give a text, messages=[...] or prompt_token_ids=[...]"
    elif all(_token_id(item) is not None for item in items):
        hint = "token ids are given as prompt_token_ids=[...]"
    elif all(isinstance(item, str) for item in items):
        hint = "one call takes one text; call generate once for each"
    elif all(isinstance(item, Mapping) or _is_message(item) for item in items):
        hint = "messages are given as messages=[...]"
    else:
        hint = "give a text, messages=[...] or prompt_token_ids=[...]"
    raise RequestRefused(f"text must be a str, not {kind}: {hint}")


def check_messages(messages: object) -> None:
    """A sequence of messages, or none; each is looked at when it is rendered.

    Raises:
        RequestRefused: INVALID_REQUEST.
    """
    if messages is None:
        return
    if isinstance(messages, str):
        raise RequestRefused("messages must be a list, not str: a text is given as the first argument")
    if isinstance(messages, Mapping) or _is_message(messages):
        raise RequestRefused("messages must be a list, also of one message: messages=[...]")
    if not isinstance(messages, Sequence):
        raise RequestRefused(f"messages must be a list of messages, not {type(messages).__name__}")
    for message in messages:
        if isinstance(message, str):
            raise RequestRefused(f'messages holds a str, {message!r:.40}: write {{"role": "user", "content": ...}}')


def token_ids(name: str, values: object) -> list[int]:
    """Integers of any kind, NumPy's included, as token ids.

    Raises:
        RequestRefused: INVALID_REQUEST, it is no sequence; TOKEN_OUT_OF_VOCABULARY, it holds what no token id can be.
    """
    if isinstance(values, (str, bytes)):
        what = "a text is given as the first argument" if name == "prompt_token_ids" else "it takes integers"
        raise RequestRefused(f"{name} must be a list of integers, not {type(values).__name__}: {what}")
    items = _items(values)
    if items is None:
        raise RequestRefused(f"{name} must be a list of integers, not {type(values).__name__}")
    if all(type(item) is int and 0 <= item <= _MAX_TOKEN_ID for item in items):
        return items  # type: ignore[return-value]  # a long prompt is looked at quickly
    found = [_token_id(item) for item in items]
    wrong = next((item for item, token_id in zip(items, found, strict=True) if token_id is None), None)
    if None in found:
        raise RequestRefused(f"{name} holds {wrong!r:.40}{_why_no_id(name, wrong)}", ErrorCode.TOKEN_OUT_OF_VOCABULARY)
    return [token_id for token_id in found if token_id is not None]


def stop_strings(stop: object) -> tuple[str, ...]:
    """One stop string or several, as a tuple; None is none.

    Raises:
        RequestRefused: INVALID_REQUEST, it is something else, or one is empty.
    """
    if isinstance(stop, str):
        stop = (stop,)
    items = () if stop is None else None if isinstance(stop, (bytes, Mapping)) else _items(stop)
    if items is None:
        raise RequestRefused(f"stop must be a str or a list of str, not {type(stop).__name__}")
    for item in items:
        if not isinstance(item, str):
            hint = ": a token is given in stop_token_ids" if _token_id(item) is not None else ""
            raise RequestRefused(f"stop holds {item!r:.40}, which is no str{hint}")
        if not item:
            raise RequestRefused("a stop string is empty")
    return tuple(item for item in items if isinstance(item, str))


def check_kind(name: str, value: object, kind: type, example: str) -> None:
    """`value` must be of this kind, or None where nothing was given.

    Raises:
        RequestRefused: INVALID_REQUEST, with an example.
    """
    if value is not None and not isinstance(value, kind):
        raise RequestRefused(f"{name}={value!r:.40} must be {kind.__name__}, such as {name}={example}")


def _token_id(value: object) -> int | None:
    """An integer in the range of token ids; None for anything else, truth values included."""
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # asking is how one finds out
    except TypeError:
        return None
    return number if 0 <= number <= _MAX_TOKEN_ID else None


def _why_no_id(name: str, value: object) -> str:
    if isinstance(value, str):
        return ", a str: token ids are integers" + (", a text is given alone" if name == "prompt_token_ids" else "")
    if isinstance(value, Sequence):
        return ", a list: one call takes one prompt; call generate once for each"
    return ", which is no token id"


def _items(values: object) -> list[object] | None:
    """What an iterable holds; None for what is none."""
    try:
        return list(values)  # type: ignore[call-overload,no-any-return]  # as above
    except TypeError:
        return None


def _is_message(value: object) -> bool:
    """A `ChatMessage`, whose module needs an extra."""
    return hasattr(value, "role") and hasattr(value, "content")
