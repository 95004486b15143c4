"""Draws rows as bars, ours and theirs, into an SVG that is readable on light and dark pages. Pure text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.results import TOKENS_PER_S, Row
from bench.tables import number
from bench.turns import OURS
from bench.works import WORKS

_WIDTH, _LEFT, _RIGHT = 860, 250, 64
_BAR, _GAP, _WORK_GAP, _PANEL_GAP, _TOP = 13, 2, 9, 46, 62
_PANELS = (("prefill", "Prefill"), ("decode_1", "Decode, one sequence"), ("decode", "Decode, several sequences"))
"""By the beginning of a work's name; the first that fits takes it. Each has an axis of its own."""
_STYLE = """\
<style>
text { font: 12px system-ui, sans-serif; fill: #24292f }
.page { fill: #ffffff } .title { font-size: 15px; font-weight: 600 } .panel { font-weight: 600 }
.value { font-size: 11px } .tick { font-size: 11px; fill: #57606a } .grid { stroke: #d0d7de }
.ours { fill: #0969da } .theirs { fill: #9aa4af } .us { font-weight: 600 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .page { fill: #0d1117 } .tick { fill: #9198a1 } .grid { stroke: #3d444d }
.ours { fill: #4493f8 } .theirs { fill: #6e7681 }
}
</style>"""


@dataclass(frozen=True, slots=True)
class Group:
    """One work: who, and how many tokens per second."""

    work: str
    bars: tuple[tuple[str, float], ...]

    @property
    def height(self) -> int:
        return len(self.bars) * (_BAR + _GAP) + _WORK_GAP


def groups_of(rows: Sequence[Row]) -> list[Group]:
    """Ours first in each work; only what is measured in tokens per second."""
    rates = [row for row in rows if row.unit == TOKENS_PER_S]
    works = sorted(dict.fromkeys(row.work for row in rates), key=_place)
    groups = []
    for work in works:
        of_work = [row for row in rates if row.work == work]
        groups.append(Group(work, ((OURS, of_work[0].ours), *((row.peer, row.theirs) for row in of_work))))
    return groups


def _place(work: str) -> int:
    """As in the list of works, a single stage's behind them."""
    names = [one.name for one in WORKS]
    return names.index(work) if work in names else len(names)


def panels_of(groups: Sequence[Group]) -> list[tuple[str, list[Group]]]:
    """By title; those without a work are left out."""
    found: dict[str, list[Group]] = {title: [] for _, title in _PANELS}
    for group in groups:
        title = next((title for prefix, title in _PANELS if _fits(group.work, prefix)), _PANELS[-1][1])
        found[title].append(group)
    return [(title, of_panel) for title, of_panel in found.items() if of_panel]


def _fits(work: str, prefix: str) -> bool:
    return work == prefix or work.startswith(f"{prefix}_")


def ticks(largest: float) -> list[float]:
    """Three to six round numbers from 0 on, the last of which is not below `largest`."""
    step = 10 ** math.floor(math.log10(largest / 2))
    step = next(step * factor for factor in (1, 2, 5, 10) if largest / (step * factor) <= 5)
    return [step * count for count in range(math.ceil(largest / step) + 1)]


def bars(title: str, rows: Sequence[Row]) -> str:
    """An SVG document; nothing where no row is in tokens per second."""
    panels = panels_of(groups_of(rows))
    if not panels:
        return ""
    parts, y = [], _TOP
    for name, groups in panels:
        parts.append(_panel(name, groups, y))
        y += sum(group.height for group in groups) + _PANEL_GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}" role="img">'
    )
    page = f'<rect class="page" width="{_WIDTH}" height="{y}" rx="6"/>'
    heading = _text(16, 26, "title", f"Tokens per second on {title}: longer is better")
    return "\n".join([head, _STYLE, page, heading, _legend(), *parts, "</svg>"]) + "\n"


def _legend() -> str:
    ours, theirs = _rect(_WIDTH - 240, 16, 12, "ours"), _rect(_WIDTH - 130, 16, 12, "theirs")
    return "\n".join(
        [ours, _text(_WIDTH - 222, 27, "us", "Stagewire"), theirs, _text(_WIDTH - 112, 27, "value", "llama.cpp")]
    )


def _panel(title: str, groups: Sequence[Group], top: int) -> str:
    marks = ticks(max(rate for group in groups for _, rate in group.bars))
    scale = (_WIDTH - _LEFT - _RIGHT) / marks[-1]
    bottom = top + sum(group.height for group in groups)
    parts = [_text(16, top - 8, "panel", title)]
    for mark in marks:
        x = _LEFT + scale * mark
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{top - 4}" x2="{x:.1f}" y2="{bottom - 4}"/>')
        parts.append(_text(x, bottom + 10, "tick", f"{mark:g}", "middle"))
    parts.append(_text(_WIDTH - 16, bottom + 10, "tick", "tok/s", "end"))
    y = top
    for group in groups:
        parts += _bars(group, y, scale)
        y += group.height
    return "\n".join(parts)


def _bars(group: Group, top: int, scale: float) -> list[str]:
    parts = [_text(16, top + _BAR - 2, "us", group.work)]
    for index, (who, rate) in enumerate(group.bars):
        y = top + index * (_BAR + _GAP)
        who_class = "ours" if who == OURS else "theirs"
        parts.append(_text(_LEFT - 8, y + _BAR - 2, "us" if who == OURS else "value", who, "end") if index else "")
        parts.append(_rect(_LEFT, y, scale * rate, who_class))
        parts.append(_text(_LEFT + scale * rate + 5, y + _BAR - 2, "value", number(rate)))
    return [part for part in parts if part]


def _rect(x: float, y: float, width: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}"/>'


def _text(x: float, y: float, kind: str, words: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'
