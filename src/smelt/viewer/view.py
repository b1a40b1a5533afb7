"""A trace in a notebook."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt.viewer.page import render


@dataclass(frozen=True, slots=True, repr=False)
class View:
    """The page of a trace: a notebook shows it under the cell that gives it; ``save`` writes it.

    ``height``: that of the frame in the notebook, in pixels.
    """

    trace: dict[str, Any]
    height: int = 720

    def save(self, path: str | Path) -> Path:
        """Writes the page, one file that needs no other, and returns its path."""
        path = Path(path)
        path.write_text(render(self.trace), "utf-8")
        return path

    def _repr_html_(self) -> str:
        page, title = html.escape(render(self.trace)), html.escape(str(self.trace.get("title")))
        style = f"width:100%;height:{self.height}px;border:1px solid #8884;border-radius:6px"
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="{title}" style="{style}"></iframe>'

    def __repr__(self) -> str:
        steps = sum(len(graph["steps"]) for graph in self.trace["graphs"])
        return f"<View of {self.trace.get('title')}: {steps} steps; .save('page.html') writes the page>"
