"""Foreign text on a terminal: control characters are shown by number, so that no terminal obeys them."""

from __future__ import annotations

import re
from collections.abc import Iterable

# In ranges: C0 but tab and line end, DEL and C1; line and paragraph separators, and what embeds, overrides or isolates
# a writing direction, so that a line reads otherwise than it is; halves of characters. The marks U+200E and U+200F
# stay: ordinary Hebrew and Arabic needs them.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""A text of any lines. ESC becomes `\x1b`; each character stands for itself, so pieces may be given one by one."""
    return _OBEYED.sub(lambda found: _by_number(found[0]), text)


def visible_line(text: str) -> str:
    """A name, or what else belongs into one line: line ends and tabs are shown, too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def print_lines(lines: Iterable[str]) -> None:
    """A report for people, on stdout: whatever names are in it, each line stays one line."""
    print("\n".join(visible_line(line) for line in lines), flush=True)


def _by_number(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
