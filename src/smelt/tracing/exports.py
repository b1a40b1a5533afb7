"""Traces for other viewers: the trace-event JSON of Chrome and Perfetto."""

from __future__ import annotations

from typing import Any

from smelt.tracing.lookup import lines_of, name_of, steps

Data = dict[str, Any]
COMPILING, RUNNING = 1, 2
"""Process numbers of the two strips."""


def chrome(trace: Data) -> Data:
    """The spans of compiling and the steps of one run, laid end to end, as trace events (microseconds).

    Source: the "Trace Event Format" document of the Chromium project.
    """
    events: list[Data] = [
        _named("process_name", COMPILING, f"compiling {trace['title']}"),
        _named("process_name", RUNNING, f"one run of {trace['title']}"),
    ]
    for span in trace["compile"]:
        events.append(_event(span["name"], "compile", COMPILING, 0, span["begin"], span["seconds"], {}))
    at = 0.0
    for graph, step in steps(trace):
        seconds = step["seconds"] or 0.0
        about = {
            "id": step["id"],
            "graph": graph["name"],
            "lines": [name_of(trace, place) for place in lines_of(graph, step)],
            "operators": [graph["operators"][each]["text"] for each in dict.fromkeys(step["origins"])],
            "operations": step["operations"],
            "bytes": step["moved"],
            "reason": step["reason"],
        }
        events.append(_event(step["name"], step["kind"], RUNNING, 0, at, seconds, about))
        at += seconds
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": trace["made"]}


def _event(name: str, kind: str, process: int, thread: int, begin: float, seconds: float, args: Data) -> Data:
    times = {"ts": begin * 1e6, "dur": seconds * 1e6}
    return {"name": name, "cat": kind, "ph": "X", "pid": process, "tid": thread, **times, "args": args}


def _named(what: str, process: int, name: str) -> Data:
    return {"name": what, "ph": "M", "pid": process, "tid": 0, "args": {"name": name}}
