"""Kernels of stages for the tests of the primitives, and whether two of them compute the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from sympy import Integer, Symbol

from smelt.loops.ir import Buffer, Graph, Node, Origin, Pointwise, Reduction, StridedView
from smelt.nest.initialization import hoist_initialization
from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import For, Kernel, Stage
from smelt.nest.scopes import place_of_stage
from smelt.nest.stages import Names, dissolve, staged
from smelt.nest.verify import verify
from smelt.symbolic import contiguous_strides, evaluate

F32 = torch.float32


class Program:
    """A loop graph written down node by node, and the kernel of its stages."""

    def __init__(self, **inputs: Sequence[Any]) -> None:
        self.graph, self.names = Graph(), {}
        self.order: list[str] = []
        for name, shape in inputs.items():
            self._buffer(name, shape)
            self.graph.inputs.append(name)

    def _buffer(self, name: str, shape: Sequence[Any], dtype: torch.dtype = F32) -> tuple[Any, ...]:
        sizes = tuple(Integer(each) if isinstance(each, int) else each for each in shape)
        self.graph.buffers[name] = Buffer(name, dtype, sizes, contiguous_strides(sizes))
        return sizes

    def compute(
        self, name: str, shape: Sequence[Any], function: Callable[..., Any], names: str = "ijlm"
    ) -> None:
        sizes = self._buffer(name, shape)
        body = Pointwise(sizes, F32, lambda index: function(*index))
        self.graph.nodes.append(Node((name,), body, Origin(name)))
        self.names[name] = Names(tuple(names))

    def reduce(
        self,
        name: str,
        shape: Sequence[Any],
        over: Sequence[Any],
        function: Callable[..., Any],
        kind: str = "sum",
    ) -> None:
        sizes, reduced = (
            self._buffer(name, shape),
            tuple(Integer(each) if isinstance(each, int) else each for each in over),
        )
        body = Reduction(kind, sizes, reduced, F32, lambda index, at: function(*index, *at))
        self.graph.nodes.append(Node((name,), body, Origin(name)))
        self.names[name] = Names(tuple("ijlm"), tuple("kqr"))

    def kernel(self, *outputs: str) -> Kernel:
        for name in outputs:
            buffer = self.graph.buffers[name]
            self.graph.outputs.append(StridedView(name, buffer.shape, buffer.strides, Integer(0)))
        return staged(self.graph, names=self.names)


def loops_of(kernel: Kernel, stage: str) -> list[Symbol]:
    """The variables of the loops around a stage."""
    place = place_of_stage(kernel, stage)
    assert place is not None, stage
    return [each.var for each in place.around if isinstance(each, For)]


def extents_of(kernel: Kernel, stage: str) -> list[int]:
    place = place_of_stage(kernel, stage)
    assert place is not None, stage
    return [each.end - each.begin for each in place.around if isinstance(each, For)]


def stage(kernel: Kernel, name: str) -> Stage:
    place = place_of_stage(kernel, name)
    assert place is not None and isinstance(place.stmt, Stage), name
    return place.stmt


def results(kernel: Kernel, sizes: Mapping[Symbol, int] | None = None) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    memory = {}
    for param in kernel.params:
        count = 1
        for size in param.shape:
            count *= evaluate(size, sizes or {})
        if param.written:
            nobody = float("nan") if param.dtype.is_floating_point else 77
            memory[param.name] = torch.full((count,), nobody, dtype=param.dtype)
        elif param.dtype.is_floating_point:
            memory[param.name] = torch.randn(count).to(param.dtype)
        else:
            memory[param.name] = torch.randint(0, 2, (count,)).to(param.dtype)
    run_kernel(kernel, memory, sizes)
    return memory


def same(
    before: Kernel, after: Kernel, sizes: Mapping[Symbol, int] | None = None, *, exactly: bool = True
) -> None:
    """Both compute the same, as stages and as plain loops, and nothing outside of its buffers."""
    verify(after)
    plain = dissolve(hoist_initialization(after, 1))
    verify(plain)
    wanted = results(before, sizes)
    for kernel in (after, plain):
        for name, value in results(kernel, sizes).items():
            if exactly:
                assert torch.equal(value.nan_to_num(99.0), wanted[name].nan_to_num(99.0)), name
            else:
                torch.testing.assert_close(value, wanted[name], equal_nan=True)
