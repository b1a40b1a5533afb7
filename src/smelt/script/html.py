"""The steps of a schedule as one self-contained page of HTML: a tab for each step, loops that fold."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from smelt.script.diff import diff_lines

_STYLE = """
body { font: 14px/1.45 monospace; margin: 1.5em; }
input { display: none; }
label { display: inline-block; padding: .2em .7em; border: 1px solid #999; cursor: pointer; }
section { display: none; margin-top: 1em; }
summary { cursor: pointer; white-space: pre; }
div.line { white-space: pre; padding-left: 1.1em; }
.added { background: #d7f5dc; } .removed { background: #fbdcdc; }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #ddd; } .added { background: #163d20; } .removed { background: #4a1d1d; }
}
"""


def html(steps: Sequence[tuple[str, Any]]) -> str:
    """A page of a trace's steps: (description of the step, the program after it).

    Each tab has the change by the step, and the whole program; lines with nested lines can be folded.
    """
    texts = [each if isinstance(each, str) else each.script() for _, each in steps]
    tabs, pages, rules = [], [], []
    for number, ((name, _), text) in enumerate(zip(steps, texts)):
        checked = " checked" if number == len(steps) - 1 else ""
        tabs.append(f'<input type="radio" name="step" id="step{number}"{checked}>')
        tabs.append(f'<label for="step{number}">{escape(name)}</label>')
        rules.append(f"#step{number}:checked ~ #page{number} {{ display: block; }}")
        rules.append(f"#step{number}:checked + label {{ background: #4a78c8; color: white; }}")
        changed = _changes(texts[number - 1], text) if number else ""
        pages.append(f'<section id="page{number}">{changed}{_folded(text.splitlines())}</section>')
    style = f"<style>{_STYLE}{chr(10).join(rules)}</style>"
    head = f'<!doctype html>\n<html><head><meta charset="utf-8"><title>schedule</title>{style}</head>'
    return "\n".join([head, "<body>", *tabs, *pages, "</body></html>"]) + "\n"


def _changes(before: str, after: str) -> str:
    kinds = {"+": "added", "-": "removed"}
    lines = [
        f'<div class="line {kinds.get(line[:1], "")}">{escape(line)}</div>'
        for line in diff_lines(before, after)
    ]
    found = "".join(lines) or '<div class="line">the same program</div>'
    return f"<details open><summary>what it changed</summary>{found}</details>"


def _folded(lines: Sequence[str]) -> str:
    """Lines; each line with deeper ones below it is a fold over those."""
    parts: list[str] = []
    number = 0
    while number < len(lines):
        line, end = lines[number], number + 1
        while end < len(lines) and (not lines[end].strip() or _depth(lines[end]) > _depth(line)):
            end += 1
        if line.strip().endswith(":") and not line.lstrip().startswith("#") and end > number + 1:
            inside = _folded(lines[number + 1 : end])
            parts.append(f"<details open><summary>{escape(line)}</summary>{inside}</details>")
            number = end
        else:
            parts.append(f'<div class="line">{escape(line) or "&nbsp;"}</div>')
            number += 1
    return "".join(parts)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


__all__ = ["html"]
