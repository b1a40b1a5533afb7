"""``torch.cond`` and similar operators in the Torch dialect, by the control flow common to all targets."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from smelt.contract.higher_order import BODIES, higher_order_name
from smelt.errors import Unsupported
from smelt.mlir.arrays.dialect import Array
from smelt.mlir.control import CONTROL
from smelt.mlir.program import kind_of
from smelt.mlir.torch_dialect.types import type_of


def write(walk: Any, node: Node) -> None:
    """Write a call of a higher-order operator through ``walk``. Numbers are carried as tensors of rank 0.

    Raises:
        Unsupported: an operator, or a kind of operand, that the dialect cannot express.
    """
    name = higher_order_name(node.target)
    run = CONTROL.get(f"higher_order.{name}")
    if run is None:
        raise Unsupported("a higher-order operator that has no form in the Torch dialect")
    places = BODIES[str(name)]
    bodies = [partial(_inline, walk, node.args[place]) for place in places]
    arguments = [_arrays(walk, each) for place, each in enumerate(node.args) if place not in places]
    metas = node.meta["val"]
    results = run(walk.dialect, bodies, [kind_of(meta) for meta in metas], *arguments)
    walk.values[node] = [_value(walk, each, meta) for each, meta in zip(results, metas, strict=True)]


def _arrays(walk: Any, given: Any) -> Any:
    """A tensor or number of the dialect as an array; a list becomes a list of arrays."""
    if isinstance(given, (list, tuple)):
        return [_arrays(walk, each) for each in given]
    value = walk.value_of(given) if isinstance(given, Node) else walk.constants.get(given)
    meta = given.meta["val"] if isinstance(given, Node) else given
    return Array(value, *kind_of(meta)) if isinstance(meta, torch.Tensor) else walk.dialect.tensor_of(value)


def _value(walk: Any, array: Array, meta: Any) -> Any:
    """The tensor or number for an array."""
    return (
        walk.cast(array.value, type_of(meta))
        if isinstance(meta, torch.Tensor)
        else walk.dialect.number_of(array)
    )


def _inline(walk: Any, body: Any, operands: Sequence[Array]) -> list[Array]:
    """Write a graph's calls at the current insertion point; the graph's results.

    Raises:
        Unsupported: the dialect cannot express a call (``walk.problems`` lists it).
    """
    module: GraphModule = operator.attrgetter(str(body.target))(walk.module)
    inner = type(walk)(module, walk.problems, walk.constraints, walk)
    for placeholder, operand in zip(module.graph.find_nodes(op="placeholder"), operands, strict=True):
        inner.take(placeholder, _value(inner, operand, placeholder.meta["val"]))
    failures = len(walk.problems)
    inner.run()
    if len(walk.problems) > failures:
        raise Unsupported("it is made of what cannot be expressed")
    results: Any = module.graph.output_node().args[0]
    found: list[Array] = _arrays(inner, results if isinstance(results, (list, tuple)) else [results])
    return found
