"""``torch.cond`` and ``while_loop`` as ``torch.prim.If`` and ``torch.prim.Loop``."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from smelt.contract.higher_order import bodies_of, higher_order_name
from smelt.errors import Unsupported
from smelt.mlir.bindings import ir
from smelt.mlir.torch_dialect import numbers
from smelt.mlir.torch_dialect.types import type_of

_MOST_TURNS = (1 << 63) - 1


def write(walk: Any, node: Node) -> None:
    """Write a call of a higher-order operator through ``walk``.

    Raises:
        Unsupported: an operator, or a kind of operand, that has no form.
    """
    name = higher_order_name(node.target)
    if name == "cond":
        _cond(walk, node)
    elif name == "while_loop":
        _while(walk, node)
    else:
        raise Unsupported("a higher-order operator that has no form in the Torch dialect")


def _cond(walk: Any, node: Node) -> None:
    """``cond(p, then, else, operands)`` → ``prim.If`` with both bodies inline."""
    predicate: Any = node.args[0]
    operands = [_value(walk, each) for each in node.args[3]]  # type: ignore[union-attr]
    condition = _condition(walk, predicate)
    results = [type_of(meta) for meta in node.meta["val"]]
    made = ir.Operation.create("torch.prim.If", results=results, operands=[condition], regions=2)
    for region, body in zip(made.regions, bodies_of(node)):
        with ir.InsertionPoint(region.blocks.append()):
            returned = _inline(walk, body, operands)
            yielded = [walk.cast(value, kind) for value, kind in zip(returned, results)]
            ir.Operation.create("torch.prim.If.yield", operands=yielded)
    walk.values[node] = list(made.results)


def _while(walk: Any, node: Node) -> None:
    """``while_loop(go_on, body, carried, additional)`` → ``prim.Loop`` that asks after each turn.

    Numbers are carried as tensors of rank 0.
    """
    go_on, body = bodies_of(node)
    module = _module(walk, body)
    carried: Any = node.args[2]
    additional = [_value(walk, each) for each in node.args[3]]  # type: ignore[union-attr]
    placeholders = module.graph.find_nodes(op="placeholder")
    metas = [each.meta["val"] for each in placeholders[: len(carried)]]
    values = [_value(walk, each) for each in carried]
    first = walk.dialect.unfolded(_truth(_inline(walk, go_on, [*values, *additional])[0]))
    start = [_carried(walk, *each) for each in zip(values, metas)]
    kinds = [each.type for each in start]
    most = walk.constants.get(_MOST_TURNS)
    made = ir.Operation.create("torch.prim.Loop", results=kinds, operands=[most, first, *start], regions=1)
    here = ir.Location.current
    block = made.regions[0].blocks.append(
        ir.Type.parse("!torch.int"), *kinds, arg_locs=[here] * (1 + len(kinds))
    )
    with ir.InsertionPoint(block):
        given = [_handed_on(walk, *each) for each in zip(list(block.arguments)[1:], metas)]
        values = _inline(walk, body, [*given, *additional])
        again = _truth(_inline(walk, go_on, [*values, *additional])[0])
        state = [_carried(walk, *each) for each in zip(values, metas)]
        ir.Operation.create("torch.prim.Loop.condition", operands=[again, *state])
    walk.values[node] = [_handed_on(walk, *each) for each in zip(made.results, node.meta["val"])]


def _carried(walk: Any, value: Any, meta: Any) -> Any:
    """What a loop carries of a value."""
    if isinstance(meta, torch.Tensor):
        return walk.cast(value, type_of(meta))
    return walk.dialect.tensor_of(value).value


def _handed_on(walk: Any, value: Any, meta: Any) -> Any:
    """The value of which a loop carries ``value``."""
    if isinstance(meta, torch.Tensor):
        return walk.cast(value, type_of(meta))
    return numbers.item(value, meta)


def _module(walk: Any, body: Node) -> GraphModule:
    found: GraphModule = operator.attrgetter(str(body.target))(walk.module)
    return found


def inline(walk: Any, module: GraphModule, operands: list[Any]) -> list[Any]:
    """The calls of a graph at the current insertion point; what it returns.

    Raises:
        Unsupported: one of the calls has no form in the dialect (and ``walk.problems`` says which).
    """
    inner = type(walk)(module, walk.problems, walk.constraints, walk)
    placeholders = module.graph.find_nodes(op="placeholder")
    for placeholder, operand in zip(placeholders, operands, strict=True):
        meta = placeholder.meta["val"]
        inner.values[placeholder] = (
            walk.cast(operand, type_of(meta)) if isinstance(meta, torch.Tensor) else operand
        )
    failures = len(walk.problems)
    inner.run()
    if len(walk.problems) > failures:
        raise Unsupported("it is made of what cannot be expressed")
    results: Any = module.graph.output_node().args[0]
    return [_value(inner, each) for each in (results if isinstance(results, (list, tuple)) else [results])]


def _inline(walk: Any, body: Node, operands: list[Any]) -> list[Any]:
    return inline(walk, _module(walk, body), operands)


def _value(walk: Any, each: Any) -> Any:
    return walk.value_of(each) if isinstance(each, Node) else walk.constants.get(each)


def _condition(walk: Any, predicate: Any) -> Any:
    return _truth(_value(walk, predicate))


def _truth(value: Any) -> Any:
    return value if str(value.type) == "!torch.bool" else numbers.item(value, True)
