"""The protocol's page lists every message as it is."""

from __future__ import annotations

from stagewire.wire.codec import VERSION, registered
from stagewire.wire.reference import PAGE, rendered


def test_the_page_is_up_to_date() -> None:
    """Otherwise run `python -m stagewire.wire.reference`."""
    page = PAGE.read_text(encoding="utf-8")
    assert rendered(page) == page


def test_the_page_names_every_message() -> None:
    """Number and name of each, in a table."""
    page = PAGE.read_text(encoding="utf-8")
    for kind, cls in registered().items():
        assert f"| {kind} | `{cls.__name__}` |" in page


def test_the_page_is_of_this_version() -> None:
    """Its first line says which version it describes."""
    assert f"\nVersion {VERSION}. " in PAGE.read_text(encoding="utf-8")
