"""Runs a schedule with the nest interpreter: the arena as bytes, every buffer where the plan has put it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sympy import Symbol

from smelt.loops.ir import Graph
from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import InArena
from smelt.nest.verify import verify
from smelt.runtime.plan import AllocStep, NativeStep, Ref, ViewRef
from smelt.schedule import Scheduled
from smelt.symbolic import evaluate
from tests.codegen.support import Library


def simulate(
    graph: Graph,
    scheduled: Scheduled,
    inputs: Sequence[torch.Tensor | int],
    *,
    plain: bool = False,
    library: Library | None = None,
) -> list[torch.Tensor]:
    """The plan's outputs. ``plain`` runs each kernel as it was before the loop decisions; ``library`` has the
    runs compiled.
    """
    sizes = {each: value for each, value in zip(graph.inputs, inputs) if isinstance(each, Symbol)}
    names = {symbol.name: value for symbol, value in sizes.items()}
    tensors = {name: value for name, value in zip(graph.inputs, inputs) if isinstance(name, str)}
    arena = torch.full((evaluate(scheduled.arena_size, sizes) + 64,), 0x7F, dtype=torch.uint8)
    before = dict(zip(scheduled.kernels, scheduled.plain))
    for step in scheduled.plan.steps:
        if isinstance(step, AllocStep):
            shape, strides = (
                [_number(s, names) for s in part] for part in (step.spec.shape, step.spec.strides)
            )
            tensors[step.spec.name] = torch.empty_strided(
                shape, strides, dtype=getattr(torch, step.spec.dtype)
            )
        elif isinstance(step, NativeStep):
            run = next(run for run in scheduled.runs if run.name == step.function)
            if library is not None:
                given = (tensors[name] for name in run.arguments)
                assert library(run.name, *given, *(sizes[size] for size in run.sizes), arena=arena) == 0
                continue
            for call in run.calls:
                kernel = before[call.kernel] if plain else call.kernel
                verify(kernel)
                memory, first = {}, {}
                for param, arg in zip(kernel.params, call.args):
                    if isinstance(arg, InArena):
                        memory[param.name] = arena.view(param.dtype)
                        first[param.name] = evaluate(arg.offset, sizes) // param.dtype.itemsize
                    else:
                        memory[param.name] = _flat(tensors[run.arguments[arg.position]])
                run_kernel(kernel, memory, sizes, first)
        else:
            raise AssertionError(f"a schedule without ATen calls has no {type(step).__name__}")
    results = []
    for output in scheduled.plan.outputs:
        assert isinstance(output, (Ref, ViewRef))
        tensor = tensors[output.name]
        if isinstance(output, ViewRef):
            shape, strides = ([_number(s, names) for s in part] for part in (output.shape, output.strides))
            tensor = tensor.as_strided(
                shape, strides, tensor.storage_offset() + _number(output.offset, names)
            )
        results.append(tensor)
    return results


def _number(size: int | str, names: dict[str, int]) -> int:
    return size if isinstance(size, int) else int(eval(size, {"max": max, "min": min}, dict(names)))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return storage[tensor.storage_offset() :]
