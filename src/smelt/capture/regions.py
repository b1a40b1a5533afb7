"""Functions with repeated parts → Programs, by ``make_fx``: a part is traced once for all calls of its kind.

No Dynamo and no AOTAutograd, and no guards: for programs whose caller knows that nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    make_fx,
    track_tensor_tree,
)
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from smelt.capture.program import Input, Program

aten = torch.ops.aten
Table = Mapping[Any, Callable[..., Any]]
Region = Callable[..., tuple[Tensor, ...]]
"""A function of tensors that computes without writing to its arguments, or to anything else."""


class Regions:
    """The parts of a function that have been traced, by kind. ``decompositions``: for all of its operators.

    >>> regions = Regions({})
    >>> def twice(x):
    ...     for _ in range(2):
    ...         (x,) = regions.call("sine", lambda y: (y.sin(),), x)
    ...     return (x,)
    >>> program = regions.capture(twice, [torch.zeros(2)], ["x"], [()])
    >>> [node.op for node in program.graph_module.graph.nodes].count("get_attr"), len(regions.traced)
    (2, 1)
    """

    def __init__(self, decompositions: Table) -> None:
        self.decompositions = dict(decompositions)
        self.traced: dict[Hashable, tuple[str, GraphModule]] = {}
        self.inlined = False
        """Whether calls are traced as any other code: around them something is written in place."""

    def call(self, kind: Hashable, region: Region, *operands: Tensor) -> tuple[Tensor, ...]:
        """The results of ``region(*operands)``, in a function that `capture` traces: one call in its graph.

        ``kind``: equal for regions that compute the same from operands of the same layouts.
        """
        if self.inlined:
            return region(*operands)
        mode = get_proxy_mode()
        assert mode is not None, "a region is called while its program is captured"
        layouts = tuple((each.dtype, str((*each.shape, each.stride()))) for each in operands)
        with disable_proxy_modes_tracing():
            found = self.traced.get((kind, layouts))
            if found is None:
                found = f"region{len(self.traced)}", self._traced(region, operands)
                self.traced[kind, layouts] = found
            name, body = found
            results = [node.meta["val"] for node in body.graph.output_node().args[0]]  # type: ignore[union-attr]
            made = tuple(torch.empty_strided(each.shape, each.stride(), dtype=each.dtype) for each in results)
        tracer: Any = mode.tracer
        setattr(tracer.root, name, body)
        given = [tracer.unwrap_proxy(each) for each in operands]
        called = tracer.create_proxy("get_attr", name, (), {})
        target = torch.ops.higher_order.invoke_subgraph
        proxy = tracer.create_proxy("call_function", target, (called, name, *given), {})
        return track_tensor_tree(made, proxy, constant=None, tracer=tracer)

    def capture(
        self,
        function: Callable[..., Sequence[Tensor]],
        args: Sequence[Tensor],
        names: Sequence[str],
        symbols: Sequence[Collection[int]],
        static: int = 0,
        name: str = "graph",
    ) -> Program:
        """Traces ``function(*args)``, a flat sequence of tensors; in-place changes of arguments become
        ``aten.copy_`` onto them.

        ``symbols``: of each argument the dimensions whose sizes are symbols, equal ones the same; ``names``:
        their paths in the user's model; the first ``static`` of them are the same at every call. A real
        tensor that the function reaches otherwise becomes a constant.
        """
        mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        fakes = [_fake(mode, each, dims) for each, dims in zip(args, symbols, strict=True)]
        with mode, torch.no_grad():
            graph_module = self._traced(function, fakes)
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        inputs = tuple(
            Input(
                node.name,
                "user" if place >= static else "parameter" if given.requires_grad else "buffer",
                place < static,
                path,
            )
            for place, (node, given, path) in enumerate(zip(placeholders, args, names, strict=True))
        )
        outputs = graph_module.graph.output_node().args[0]
        assert isinstance(outputs, (list, tuple))
        return Program(graph_module, "inference", inputs, tuple("user" for _ in outputs), name)

    def _traced(self, function: Callable[..., Any], args: Sequence[Tensor]) -> GraphModule:
        """The graph of a function; traced once more to make it functional, where it is not."""

        def flat(*args: Tensor) -> tuple[Tensor, ...]:
            return tuple(function(*args))

        graph_module = self._graph(flat, args)
        if _writes(graph_module):
            before, self.inlined = self.inlined, True
            graph_module = self._graph(functionalize(flat, remove="mutations"), args)
            self.inlined = before
        return graph_module

    def _graph(self, function: Callable[..., Any], args: Sequence[Tensor]) -> GraphModule:
        traced = make_fx(
            function,
            decomposition_table=self.decompositions,
            tracing_mode="real",  # the tensors are fakes already
            _allow_non_fake_inputs=True,
            record_stack_traces=True,
        )
        graph_module: GraphModule = traced(*args)
        return graph_module


def _fake(mode: FakeTensorMode, tensor: Tensor, symbols: Collection[int]) -> Tensor:
    if not symbols:
        return mode.from_tensor(tensor, static_shapes=True)
    kinds = [DimDynamic.DUCK if dim in symbols else DimDynamic.STATIC for dim in range(tensor.dim())]
    context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
    return mode.from_tensor(tensor, symbolic_context=context)


def _writes(graph_module: GraphModule) -> bool:
    """Whether a call writes to a tensor, other than the copy onto an input."""
    for node in graph_module.graph.nodes:
        if getattr(getattr(node.target, "_schema", None), "is_mutable", False) and not (
            node.target is aten.copy_.default and node.args[0].op == "placeholder"
        ):
            return True
    return False
