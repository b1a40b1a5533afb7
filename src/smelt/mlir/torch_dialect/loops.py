"""A call by its loop functions, with Torch operations that torch-mlir's pipelines compile correctly."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from smelt.contract.facts import is_view
from smelt.errors import Problem, Unsupported
from smelt.lowering import lower
from smelt.mlir.arrays.dialect import Array
from smelt.mlir.graphs import Evaluation
from smelt.mlir.torch_dialect.dialect import TorchDialect
from smelt.mlir.torch_dialect.types import type_of
from smelt.symbolic import as_expr


def write(walk: Any, node: Node) -> None:
    """``y = op(x, …)`` → the loop functions of ``op``, evaluated on whole arrays.

    Raises:
        Unsupported: there are no loop functions, or the dialect's arrays cannot run them.
    """
    meta: Any = node.meta.get("val")
    metas = list(meta) if isinstance(meta, (list, tuple)) else [meta]
    if not all(isinstance(each, torch.Tensor) for each in metas):
        raise Unsupported("a result that is no tensor")
    module, operands = _alone(walk.module, node)
    graph = lower(module)
    dialect = walk.dialect
    inputs = [_array(walk, operand) for operand in operands]
    sizes = [size for each in graph.buffers.values() for size in each.shape]
    wanted = {symbol for size in sizes for symbol in size.free_symbols}
    walk.know(wanted)
    if node.target in _SIGNS and inputs:
        _require_numbers(dialect, inputs[-1])
    problems: list[Problem] = []
    _, outputs = Evaluation(graph, dialect, problems).run(inputs)
    if problems:
        raise Unsupported(problems[0].what.partition(": ")[2] or problems[0].what)
    results = []
    for output, own in zip(outputs, metas, strict=True):
        assert output is not None
        results.append(walk.cast(dialect.finish(output, own.dtype).value, type_of(own)))
    if isinstance(meta, (list, tuple)):
        walk.values[node] = results
    else:
        walk.take(node, results[0])


_SIGNS = (torch.ops.aten.signbit.default, torch.ops.aten.copysign.Tensor)


def _require_numbers(dialect: TorchDialect, x: Array | None) -> None:
    """Raise RuntimeError at run time if ``x`` has a NaN, whose sign the dialect cannot read."""
    if x is not None and x.dtype.is_floating_point:
        known = dialect.apply("logical_not", dialect.apply("isnan", x))
        dialect.require(known, "RuntimeError: the sign of NaN cannot be seen in the Torch dialect")


def _array(walk: Any, operand: Node) -> Array | None:
    value, meta = walk.value_of(operand), operand.meta["val"]
    if not isinstance(meta, torch.Tensor):
        return walk.dialect.tensor_of(value)  # type: ignore[no-any-return]
    walk.dialect.know_sizes(value, meta)
    return Array(value, meta.dtype, tuple(as_expr(size) for size in meta.shape))


def _alone(owner: GraphModule, node: Node) -> tuple[GraphModule, list[Node]]:
    """A program with only this call, and the nodes that are its arguments. ``as_strided`` counts from the
    start of memory shared by views: the program includes the views that it is taken from."""
    calls, source = [node], node.args[0] if node.target in _STRIDED else None
    while isinstance(source, Node) and source.op == "call_function" and is_view(source.target):
        calls.insert(0, source)
        source = source.args[0]
    given = [each for call in calls for each in call.all_input_nodes if each not in calls]
    operands = [each for each in dict.fromkeys(given) if _is_dynamic(each)]
    graph = Graph()
    made: dict[Node, Any] = {}
    for operand in operands:
        made[operand] = graph.placeholder(operand.name)
        made[operand].meta = dict(operand.meta)

    def inner(value: Any) -> Any:
        return made.get(value, value.meta.get("val")) if isinstance(value, Node) else value

    for each in calls:
        args, kwargs = pytree.tree_map(inner, (each.args, each.kwargs))
        made[each] = graph.call_function(each.target, args, kwargs)  # type: ignore[arg-type]
        made[each].meta = dict(each.meta)
    outputs = _results(graph, made[node], node.meta["val"])
    graph.output(tuple(outputs)).meta = {"val": tuple(each.meta["val"] for each in outputs)}
    return GraphModule(owner, graph), operands


_STRIDED = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default)


def _results(graph: Graph, call: Node, meta: Any) -> list[Node]:
    if not isinstance(meta, (list, tuple)):
        return [call]
    results = []
    for place, each in enumerate(meta):
        item = graph.call_function(operator.getitem, (call, place))
        item.meta = {**call.meta, "val": each}
        results.append(item)
    return results


def _is_dynamic(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))
