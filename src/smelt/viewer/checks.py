"""Whether a trace is one that the page can show: every reference from one part to another has a target."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smelt.errors import Problem, SmeltError, VerificationError

VERSION = 1
_LISTS = ("operators", "loops", "steps", "nests", "codes")


def check(trace: Any) -> None:
    """Raises where a trace cannot be shown.

    Raises:
        SmeltError: it is no trace, or of another version (SM0131); its references have no targets (SM0132).

    >>> check({"schema": "smelt.trace", "version": 1, "files": [], "graphs": []})
    """
    if not isinstance(trace, dict) or trace.get("schema") != "smelt.trace":
        raise SmeltError("SM0131", "no trace of smelt", remedy="docs/view.md says what writes one")
    if trace.get("version") != VERSION:
        raise SmeltError(
            "SM0131",
            f"the trace has version {trace.get('version')!r}",
            why=f"this smelt shows version {VERSION}",
            remedy="show it with the smelt that has written it, or write it anew",
        )
    try:
        problems = list(_problems(trace))
    except (KeyError, TypeError, AttributeError) as error:
        raise SmeltError(
            "SM0132",
            "the trace is incomplete",
            why=f"{type(error).__name__}: {error}",
            remedy="write it anew",
        ) from error
    if problems:
        raise VerificationError("SM0132", "trace", problems)


def read(path: Path) -> dict[str, Any]:
    """The trace in a file.

    Raises:
        SmeltError: it cannot be read, or holds none that can be shown (SM0131, SM0132).
    """
    try:
        trace = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SmeltError("SM0131", f"{path} is no trace of smelt", why=str(error)) from error
    check(trace)
    return trace  # type: ignore[no-any-return]


def _problems(trace: dict[str, Any]) -> Iterator[Problem]:
    files = len(trace["files"])
    known: set[str] = set()
    for graph in trace["graphs"]:
        counts = {name: len(graph[name]) for name in _LISTS}

        def beyond(positions: list[int], name: str, counts: dict[str, int] = counts) -> list[int]:
            return [each for each in positions if not 0 <= each < counts[name]]

        for operator in graph["operators"]:
            where = f"{graph['name']}: operator {operator['name']}"
            if wrong := beyond(operator["inputs"], "operators"):
                yield Problem(f"it reads operators that do not exist: {wrong}", where)
            if wrong := [file for file, _, _ in operator["lines"] if not 0 <= file < files]:
                yield Problem(f"its lines are of files that do not exist: {wrong}", where)
        for position, loop in enumerate(graph["loops"]):
            if wrong := beyond(loop["operators"], "operators"):
                yield Problem(f"operators that do not exist: {wrong}", f"{graph['name']}: loop {position}")
        for step in graph["steps"]:
            where = f"{graph['name']}: step {step['id']}"
            if step["id"] in known:
                yield Problem("another step has this id", where)
            known.add(step["id"])
            for field, name in (("origins", "operators"), ("loops", "loops")):
                if wrong := beyond(step.get(field, []), name):
                    yield Problem(f"its {field} do not exist: {wrong}", where)
            for field, name in (("nest", "nests"), ("code", "codes")):
                if step.get(field) is not None and beyond([step[field]], name):
                    yield Problem(f"its {field} does not exist: {step[field]}", where)
        yield from _texts(graph)


def _texts(graph: dict[str, Any]) -> Iterator[Problem]:
    """Problems of the texts: each line has a list of marks."""
    codes = [each for code in graph["codes"] for each in (code, *code.get("more", []))]
    for text in (*(frame for film in graph["nests"] for frame in film), *codes):
        if len(text["lines"]) != len(text["marks"]):
            name = text.get("pass") or text.get("name")
            yield Problem(
                f"{len(text['lines'])} lines, but {len(text['marks'])} marks", f"{graph['name']}: {name}"
            )
