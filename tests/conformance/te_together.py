"""Many functions of loops compiled as one translation unit, as `smelt.build` compiles one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sympy import Symbol

from smelt import pipeline
from smelt.codegen.cpp import print_unit
from smelt.config import Config
from smelt.contract import contracted
from smelt.runtime import cache, executor, library, toolchain
from smelt.schedule import Target, schedule
from smelt.te import building
from smelt.te.operators import Operator

Wanted = tuple[Operator, Mapping[Symbol, int]]
"""A function, and those of its sizes that are known while it is compiled."""


def compile_together(wanted: Sequence[Wanted]) -> list[pipeline.Compiled | Exception]:
    """What runs each of them, or what a pass before the C++ compiler raised.

    Raises:
        ToolchainError: SM0204, the compiler refused the unit.
    """
    tools, config = toolchain.find(), Config()
    target = Target(tools.vector_bytes, (), tools.multiply_adds)
    found: list[Any] = []
    runs: list[Any] = []
    for number, (operator, known) in enumerate(wanted):
        try:
            first = {symbol: known.get(symbol, 4) for symbol in operator.kernel.sizes}
            program = building.program_of(operator, known, first, torch.device("cpu"))
            program = contracted(program, lambda node: False)
            graph = pipeline.lowered(program, config, target)
            scheduled = schedule(graph, config, target, f"t{number}_")
            print_unit(scheduled.runs)  # what cannot be printed is refused here, alone
        except Exception as error:
            found.append(error)
            continue
        runs += scheduled.runs
        found.append((scheduled, graph.constants))
    if not runs:
        return [
            each if isinstance(each, Exception) else executor.build(each[0].plan, None, each[1])
            for each in found
        ]
    unit = print_unit(runs, library.compilers())
    key = cache.key_of("te_fuzz", unit.text, tools.identity)
    store = cache.open_cache()
    job = library.compile_unit(unit.text, tools, store, key, parts=unit.parts)
    job.result()
    store.remove(key)
    return [
        each
        if isinstance(each, Exception)
        else executor.build(pipeline.with_errors(each[0].plan, unit.errors), job, each[1])
        for each in found
    ]


__all__ = ["compile_together"]
