"""A trace as few bytes: equal lines and marks are kept once, then zlib and base64."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any


def pack(traces: dict[str, Any]) -> str:
    """Traces by name as text for the page, which undoes it (``load.js``)."""
    lines: dict[str, int] = {}
    marks: dict[tuple[int, ...], int] = {}

    def packed(text: dict[str, Any]) -> dict[str, Any]:
        return {
            **text,
            "lines": [lines.setdefault(line, len(lines)) for line in text["lines"]],
            "marks": [marks.setdefault(tuple(each), len(marks)) for each in text["marks"]],
            "more": [packed(each) for each in text.get("more", ())],
        }

    def of_graph(graph: dict[str, Any]) -> dict[str, Any]:
        nests = [[packed(frame) for frame in film] for film in graph["nests"]]
        return {**graph, "nests": nests, "codes": [packed(code) for code in graph["codes"]]}

    shown = {
        name: {**trace, "graphs": [of_graph(graph) for graph in trace["graphs"]]}
        for name, trace in traces.items()
    }
    whole = {"lines": list(lines), "marks": [list(each) for each in marks], "traces": shown}
    text = json.dumps(whole, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 9)).decode("ascii")
