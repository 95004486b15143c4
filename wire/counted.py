"""Numbers of things as people say them: `1 thread`, `2 threads`."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`number` and the noun in its form; `noun` is one of them, and regular."""
    plural = f"{noun}es" if noun.endswith(("s", "x", "ch")) else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
