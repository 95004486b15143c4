"""Lines of several parts, broken between them where a terminal is too narrow."""

from __future__ import annotations

from dataclasses import dataclass

WIDE = 100
"""Columns where nobody says how many there are."""


@dataclass(frozen=True, slots=True)
class Line:
    """Parts that stay whole, a space between them; without parts an empty line."""

    parts: tuple[str, ...] = ()
    indent: int = 0

    def fitted(self, width: int) -> list[str]:
        """As many lines as it takes, the later ones two columns further in; a part alone may be too wide."""
        lines: list[str] = []
        for part in self.parts:
            if lines and len(f"{lines[-1]} {part}".rstrip()) <= width:
                lines[-1] += f" {part}"
            else:
                lines.append(" " * (self.indent + 2 * bool(lines)) + part)
        return [line.rstrip() for line in lines] or [""]
