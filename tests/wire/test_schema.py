"""The text that packs and unpacks a record: what the page says, and refused for fields that no message may have."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import pytest

from stagewire.wire import schema
from stagewire.wire.request import SnapshotRequest
from stagewire.wire.schema import record_codec


@dataclass(frozen=True, slots=True)
class Untyped:
    names: dict[str, int]


@dataclass(frozen=True, slots=True)
class Shadowing:
    len: int


def test_the_text_is_what_the_module_shows() -> None:
    """The example for newcomers is the text that is generated today."""
    assert textwrap.indent(record_codec(SnapshotRequest).text, "    ") in str(schema.__doc__)


def test_a_field_that_no_message_may_have_is_refused() -> None:
    """An annotation outside the schema is our own bug and is found when the class is compiled."""
    with pytest.raises(TypeError, match="no message may have"):
        record_codec(Untyped)


def test_a_field_may_not_hide_what_the_text_uses() -> None:
    """Fields are variables of the text; a builtin of the same name would be gone."""
    with pytest.raises(TypeError, match="len"):
        record_codec(Shadowing)
