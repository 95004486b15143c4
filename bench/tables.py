"""Markdown tables and numbers as the page shows them. Pure text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def number(value: float) -> str:
    """Three digits that count: 1234, 12.3, 0.00123."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
