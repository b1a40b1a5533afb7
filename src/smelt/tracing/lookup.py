"""Look-ups in a trace: what became of a line, which lines a kernel is, what costs most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from smelt.errors import SmeltError
from smelt.records import dataclass

Data = dict[str, Any]
Place = tuple[int, int]
"""A file's position in the trace, and a line."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a step that belongs to a line: seconds of one run (None: not timed) and its operators."""

    graph: Data
    step: Data
    seconds: float | None
    operators: tuple[Data, ...]


def parts(trace: Data) -> dict[Place, list[Part]]:
    """The parts of steps by line. The time of a step is divided equally among its operators that have a line;
    an operator belongs to the innermost line of the user's stack.
    """
    found: dict[Place, list[Part]] = defaultdict(list)
    for graph, step in steps(trace):
        own = [graph["operators"][each] for each in dict.fromkeys(step["origins"])]
        lined = [each for each in own if each["lines"]]
        by_place: dict[Place, list[Data]] = defaultdict(list)
        for operator in lined:
            file, line, _ = operator["lines"][0]
            by_place[file, line].append(operator)
        for place, operators in by_place.items():
            share = len(operators) / len(lined)
            seconds = None if step["seconds"] is None else step["seconds"] * share
            found[place].append(Part(graph, step, seconds, tuple(operators)))
    return dict(found)


def steps(trace: Data) -> Iterator[tuple[Data, Data]]:
    """Each step and its graph, in run order."""
    for graph in trace["graphs"]:
        for step in graph["steps"]:
            yield graph, step


def total(trace: Data) -> float:
    """The measured seconds of all steps in one run."""
    return sum(step["seconds"] or 0.0 for _, step in steps(trace) if step["kind"] != "cluster")


def attributed(trace: Data) -> float:
    """The share of the measured time of kernels and ATen calls that belongs to lines of the model.

    >>> step = {"kind": "kernel", "seconds": 1.0, "origins": [0]}
    >>> attributed({"graphs": [{"operators": [{"lines": [[0, 1, "forward"]]}], "steps": [step]}]})
    1.0
    """
    known = sum(part.seconds or 0.0 for found in parts(trace).values() for part in found)
    return known / total(trace) if total(trace) else 1.0


def name_of(trace: Data, place: Place) -> str:
    """``model.py:42``."""
    file, line = place
    return f"{trace['files'][file]['name']}:{line}"


def text_of(trace: Data, place: Place) -> str:
    """The source of a line, without its indentation; "" where the file could not be read."""
    file, line = place
    lines = trace["files"][file]["text"].splitlines()
    number = line - trace["files"][file]["first"]
    return lines[number].strip() if 0 <= number < len(lines) else ""


def line_named(trace: Data, name: str) -> Place:
    """The place of ``model.py:42``, or of a longer end of the path.

    Raises:
        SmeltError: SM0931, no operator comes from that line; the message names near ones.
    """
    path, _, number = name.rpartition(":")
    known = parts(trace)
    if number.isdecimal() and path:
        for place in known:
            if place[1] == int(number) and trace["files"][place[0]]["path"].endswith(path):
                return place
    same = sorted(place for place in known if trace["files"][place[0]]["path"].endswith(path or name))
    there = ", ".join(name_of(trace, place) for place in same[:12]) or "no line of that file"
    why = "it is FILE:LINE" if not number.isdecimal() else f"operators come from: {there}"
    raise SmeltError("SM0931", f"no operator comes from {name}", why=why)


def step_named(trace: Data, name: str) -> tuple[Data, Data]:
    """The graph and the step ``k12``.

    Raises:
        SmeltError: SM0932, there is none.
    """
    for graph, step in steps(trace):
        if step["id"] == name:
            return graph, step
    last = {step["id"][0]: step["id"] for _, step in steps(trace)}
    known = ", ".join(f"{kind}0 to {each}" for kind, each in last.items())
    raise SmeltError("SM0932", f"no step {name!r}", why=f"there are {known or 'none'}")


def lines_of(graph: Data, step: Data) -> dict[Place, list[Data]]:
    """The lines of a step, and its operators of each."""
    found: dict[Place, list[Data]] = defaultdict(list)
    for each in dict.fromkeys(step["origins"]):
        operator = graph["operators"][each]
        if operator["lines"]:
            file, line, _ = operator["lines"][0]
            found[file, line].append(operator)
    return dict(found)


def bound(trace: Data, step: Data) -> tuple[str, float] | None:
    """What bounds a step and the share of that peak that it reaches; None if it was not timed."""
    if not step["seconds"] or trace["peaks"] is None or not (step["operations"] or step["moved"]):
        return None
    compute = step["operations"] / step["seconds"] / trace["peaks"]["flops"]
    memory = step["moved"] / step["seconds"] / trace["peaks"]["bytes"]
    return max(("arithmetic", compute), ("memory", memory), key=lambda each: each[1])
