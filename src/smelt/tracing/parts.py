"""The parts that all traces are made of, as plain data (docs/trace.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smelt.nest.ir import Kernel, LoopKind, Stmt
from smelt.nest.origins import Places
from smelt.nest.printer import lines_of
from smelt.nest.tree import loops

Data = dict[str, Any]


def step(id: str, kind: str, name: str, **known: Any) -> Data:
    """A step; fields that are not given are empty, or not known."""
    empty: Data = {"origins": [], "loops": [], "seconds": None, "calls": 1.0, "operations": 0, "moved": 0}
    unknown = dict.fromkeys(("run", "reason", "apart", "alternatives", "nest", "code"))
    return {"id": id, "kind": kind, "name": name, **empty, "parallel": False, **unknown, **known}


def operator(name: str, op: str, text: str, **known: Any) -> Data:
    """An operator; it reads none and has neither lines nor a module, where these are not given."""
    return {"name": name, "op": op, "text": text, "inputs": [], "lines": [], "module": None, **known}


def graph(name: str, kind: str, **known: Any) -> Data:
    """A graph; lists that are not given are empty."""
    lists = ("sizes", "guards", "operators", "loops", "steps", "nests", "codes")
    return {"name": name, "kind": kind, **{each: [] for each in lists}, **known}


def frame(title: str, kernel: Kernel, places: Callable[[Stmt], Places]) -> Data:
    """A frame of a film: a nest's text, and the positions of the origins of each line."""
    lines = lines_of(kernel.body)
    return {
        "pass": title,
        "lines": [line for line, _ in lines],
        "marks": [[] if stmt is None else list(places(stmt)) for _, stmt in lines],
    }


def code(language: str, name: str, lines: Sequence[tuple[str, Places]], more: Sequence[Data] = ()) -> Data:
    """A kernel's text in a language, and ``more`` of it in others."""
    return {
        "language": language,
        "name": name,
        "lines": [line for line, _ in lines],
        "marks": [list(places) for _, places in lines],
        "more": list(more),
    }


def is_parallel(kernel: Kernel) -> bool:
    """Whether threads share a kernel's iterations."""
    return any(loop.kind is LoopKind.PARALLEL for loop in loops(kernel.body))
