"""The contents of the report of a compilation: plain data that the cache keeps with the plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import isinf
from typing import Any

import torch

from smelt.codegen.cpp import CppUnit
from smelt.config import Config
from smelt.loops.dependencies import bound_symbols
from smelt.loops.ir import Extern, Graph
from smelt.nest.work import work
from smelt.runtime import library
from smelt.runtime.plan import Plan
from smelt.schedule import AHEAD, Scheduled, Target
from smelt.schedule.graph.choice import by_aten, contractions, described, rule
from smelt.schedule.graph.constants import frozen_buffers
from smelt.symbolic import size_hint
from smelt.tuning import Measurements


@dataclass(frozen=True, slots=True)
class Unit:
    """A program after code generation, and its ``objects`` whose compilation was started. ``plan`` is the
    scheduled one, with the errors of its steps.
    """

    scheduled: Scheduled
    plan: Plan
    cpp: CppUnit
    objects: library.Objects


def notes_of(scheduled: Scheduled, constants: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The report's data of a compilation, which the cache keeps with the plan."""
    graph = scheduled.graph
    runs = [run for run in scheduled.runs if not run.name.startswith(AHEAD)]
    calls = [call for run in runs for call in run.calls]
    folded = scheduled.plan.folded_constants
    externs: Counter[str] = Counter()
    fallbacks = []
    paths: dict[str, str] = {}
    for each in graph.with_bodies():
        paths.update(each.constant_paths)
    for node in (node for each in graph.with_bodies() for node in each.nodes):
        if isinstance(node.body, Extern):
            if node.body.reason is None:
                externs[node.body.target] += 1
            else:
                fallbacks.append((node.body.target, node.body.reason, node.origin.where))
    hints = {symbol.name: hint for symbol, hint in graph.hints.items()}
    late = {symbol.name for node in graph.nodes for symbol in bound_symbols(node)}
    return {
        "kernels": [call.kernel.name for call in calls],
        "fused": [list(dict.fromkeys(map(str, call.origins))) for call in calls],
        "native_calls": len(runs),
        "externs": dict(externs),
        "fallbacks": fallbacks,
        "symbols": {
            name: hint for name, hint in hints.items() if name in scheduled.plan.symbols and name not in late
        },
        "arena_bytes": size_hint(scheduled.arena_size, graph.hints),
        "folded": len(folded),
        "folded_bytes": sum(graph.constants[name].nbytes for name in folded),
        "constants": {name: paths.get(name, name) for name in constants},
    }


def choices(
    graph: Graph, scheduled: Graph, config: Config, target: Target, tuning: Measurements | None
) -> list[list[Any]]:
    """The kernel of each contraction and attention (`smelt.reporting.Choice`); equal ones are counted."""
    called = by_aten(scheduled)
    found: dict[tuple[str, str], list[Any]] = {}
    frozen: dict[int, frozenset[str]] = {}
    for node, body, own in contractions(graph):
        if id(own) not in frozen:
            frozen[id(own)] = frozen_buffers(own)
        what = described(body, own, frozen[id(own)])
        kernel = "native" if called.isdisjoint(node.outputs) else "ATen"
        if (what, kernel) in found:
            found[what, kernel][3] += 1
            continue
        timing = tuning.known.get(what) if tuning is not None else None
        why = "measured"
        if timing is None:
            why = rule(body, own, frozen[id(own)], config, target, kernel == "native")
        about = [what, kernel, why, 1, node.origin.where]
        if timing is not None:
            tiles = str(timing.tiles) if timing.tiles is not None else None
            native = None if isinf(timing.native) else timing.native
            about += [native, timing.aten, tiles, [list(each) for each in timing.lost]]
        found[what, kernel] = about
    return list(found.values())


def work_of(unit: Unit) -> list[tuple[str, int, int]]:
    """Function, operations and bytes of each call of a kernel, in print order."""
    kernels = [call.kernel for run in unit.scheduled.runs for call in run.calls]
    measured = {id(kernel): work(kernel, unit.scheduled.graph.hints) for kernel in kernels}
    return [
        (name.removeprefix("kernel_"), measured[id(kernel)].operations, measured[id(kernel)].moved)
        for name, kernel in zip(unit.cpp.calls, kernels, strict=True)
    ]
