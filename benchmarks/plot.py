"""results.svg: for each mode and number of threads, bars of speed over eager, a group for each program."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from contenders import CONTENDERS
from tables import groups, means

Document = dict[str, Any]

COLORS = (
    *("#009e73", "#56d4a8", "#0072b2", "#56b4e9", "#a0c4e8", "#e69f00", "#cc79a7", "#999999"),
    *("#00563f", "#2b9a75", "#444444"),
)
"""For all contenders but eager, in their order; told apart by the colour-blind too."""
BAR, GAP, LEFT, TOP, HEIGHT, BELOW = 11, 18, 46, 58, 190, 52
FONT = 'font-family="sans-serif" font-size="11"'


def svg(documents: Sequence[Document]) -> str:
    """The picture; one without bars when nothing was measured."""
    panels = groups(documents)
    names = [
        name for name in CONTENDERS if name != "eager" and any(name in d["contenders"] for d in documents)
    ]
    group = BAR * max(len(names), 1) + GAP
    width = LEFT + group * (1 + max((len(found) for _, found in panels), default=0)) + 20
    width = max(width, LEFT + 120 * len(names))
    panel = TOP + HEIGHT + BELOW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{max(panel * len(panels), 40)}" {FONT}>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, (title, found) in enumerate(panels):
        parts.append(f'<g transform="translate(0 {panel * index})">')
        parts += _panel(title, found, names, width)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(title: str, documents: Sequence[Document], names: Sequence[str], width: int) -> list[str]:
    found = means(documents)
    bars: list[tuple[str, list[tuple[str, float | None, str]]]] = []
    for document in documents:
        given = [(name, *_bar(document, name)) for name in names]
        bars.append((document["name"], given))
    of = {
        name: f"{found[name][1]} of {len(documents)} programs" if name in found else "none" for name in names
    }
    bars.append(
        ("geo. mean", [(name, found[name][0] if name in found else None, of[name]) for name in names])
    )
    top = ceiling([value for _, given in bars for _, value, _ in given if value])
    parts = [f'<text x="{LEFT}" y="18" font-size="14">Speed over eager: {escape(title)}</text>']
    for index, name in enumerate(names):
        x = LEFT + 120 * index
        parts.append(f'<rect x="{x}" y="30" width="10" height="10" fill="{_color(name)}"/>')
        parts.append(f'<text x="{x + 14}" y="39">{escape(name)}</text>')
    parts += _axis(top, width)
    for index, (program, given) in enumerate(bars):
        x = LEFT + GAP / 2 + index * (BAR * len(names) + GAP)
        parts += _group(x, program, given, top)
    return parts


def _axis(top: float, width: int) -> list[str]:
    parts = []
    step = 0.5 if top <= 4 else 1.0 if top <= 8 else top / 8
    for tick in (step * i for i in range(int(top / step + 1e-9) + 1)):
        y = TOP + HEIGHT * (1 - tick / top)
        stroke = "#000" if tick in (0.0, 1.0) else "#ddd"
        parts.append(f'<line x1="{LEFT}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="{stroke}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{tick:g}x</text>')
    return parts


def _group(x: float, program: str, given: Sequence[tuple[str, float | None, str]], top: float) -> list[str]:
    parts = []
    for index, (name, value, note) in enumerate(given):
        left, tip = x + BAR * index, f"{program}, {name}: "
        if value is None:
            place = f'x="{left + BAR / 2:.1f}" y="{TOP + HEIGHT - 3}" text-anchor="middle"'
            mark, tip = f'<text {place} fill="{_color(name)}">×', tip + note
            parts.append(f"{mark}<title>{escape(tip)}</title></text>")
            continue
        tall = HEIGHT * value / top
        place = f'x="{left:.1f}" y="{TOP + HEIGHT - tall:.1f}" width="{BAR - 1}" height="{tall:.1f}"'
        tip = f"{tip}{value:.2f}x" + (f" ({note})" if note else "")
        parts.append(f'<rect {place} fill="{_color(name)}"><title>{escape(tip)}</title></rect>')
    middle, y = x + BAR * len(given) / 2, TOP + HEIGHT + 16
    parts.append(f'<text x="{middle:.1f}" y="{y}" text-anchor="middle">{escape(_short(program))}</text>')
    return parts


def _short(program: str) -> str:
    return program if len(program) <= 16 else program[:15] + "…"


def _bar(document: Document, name: str) -> tuple[float | None, str]:
    contender = document["contenders"].get(name)
    if contender is None:
        return None, "not asked for"
    return contender["speedup"], contender["failed"] or ""


def _color(name: str) -> str:
    return COLORS[(list(CONTENDERS).index(name) - 1) % len(COLORS)]


def ceiling(values: Sequence[float]) -> float:
    """Where the axis ends: the next half above the highest bar, 1.5 at least.

    >>> ceiling([]), ceiling([1.2, 2.3]), ceiling([0.4])
    (1.5, 2.5, 1.5)
    """
    highest = max(values, default=0.0)
    return max(1.5, -(-highest // 0.5) * 0.5)
