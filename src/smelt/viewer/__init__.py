"""The page of a trace: from the model's line to the kernel's line, with times, as one offline HTML file.

It reads JSON (docs/view.md) and needs no torch: ``python -m smelt.viewer trace.json -o page.html``.
"""

from __future__ import annotations

from smelt.viewer.page import render, render_difference
from smelt.viewer.view import View

__all__ = ["View", "render", "render_difference"]
