"""Operators kept as calls of external functions: the caller of a module links them.

    torch.ops.mylib.scale(x, 2.5)  →  func.call @mylib.scale(%x, %c) : (tensor<3xf32>, f64) -> tensor<3xf32>

The function has the operator's name (``mylib.scale``; overloads other than ``default`` keep their name, and a
second signature gets a number). Operands are the tensors and numbers (i64, f64, i1) in the schema's order,
with defaults, and with lists flattened; results are the operator's. Other arguments (None, text, dtypes) are
in the attribute ``smelt.arguments`` of the call. The declaration has the attributes ``smelt.operator``, the
overload, and ``smelt.unsigned``, a flag for each operand that is uint8.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from smelt.errors import SmeltError, Unsupported
from smelt.loops.ir import Extern, Graph, StridedView
from smelt.mlir.bindings import func, ir

Operator = str | torch._ops.OpOverload | torch._ops.OpOverloadPacket


def names_of(operators: Collection[Operator]) -> dict[str, Callable[..., Any] | None]:
    """The names of operators, each with its function if ``operators`` is a mapping. A name without an
    overload stands for all overloads.

    Raises:
        SmeltError: SM0722, there is no such operator.

    >>> sorted(names_of(["aten::tanh", torch.ops.aten.sin.default]))
    ['aten.sin.default', 'aten.tanh']
    """
    found: dict[str, Callable[..., Any] | None] = {}
    for each in operators:
        text = str(each).replace("::", ".")
        library, *rest = text.split(".")
        packet = getattr(getattr(torch.ops, library), rest[0], None) if rest else None
        if packet is None or (len(rest) > 1 and rest[1] not in packet.overloads()):
            raise SmeltError(
                "SM0722", f"external_calls: there is no operator {each}", remedy="'library::name'"
            )
        found[text] = operators[each] if isinstance(operators, Mapping) else None
    return found


def is_external(body: Extern, names: Collection[str]) -> bool:
    """Whether a call stays an external call.

    Raises:
        Unsupported: no function can replace this call.
    """
    if body.target not in names and body.target.rpartition(".")[0] not in names:
        return False
    if body.overwrites or body.sizes or body.symbol is not None or body.bodies:
        raise Unsupported("an external call that writes to its arguments, or whose sizes depend on data")
    return True


def named_arguments(body: Extern) -> Iterator[tuple[str, Any]]:
    """The arguments of a call with their schema names, in the schema's order."""
    library, name, overload = body.target.split(".")
    schema = getattr(getattr(getattr(torch.ops, library), name), overload)._schema
    for place, argument in enumerate(schema.arguments):
        if place < len(body.args):
            yield argument.name, body.args[place]
        elif argument.name in body.kwargs:
            yield argument.name, body.kwargs[argument.name]
        elif argument.has_default_value():
            yield argument.name, argument.default_value


def leaves(value: Any) -> list[Any]:
    """A value, or the elements of a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def result_names(outputs: Sequence[str | None]) -> list[str]:
    """The buffers that hold a call's results.

    Raises:
        Unsupported: a result is no tensor.
    """
    found = [name for name in outputs if name is not None]
    if len(found) < len(outputs):
        raise Unsupported("an external call that gives something else than tensors")
    return found


def is_unsigned(graph: Graph, given: Any) -> bool:
    """Whether an argument of a call is a tensor of uint8; most dialects' types do not tell."""
    return isinstance(given, StridedView) and graph.buffers[given.buffer].dtype is torch.uint8


def call(
    body: Extern, arguments: Sequence[tuple[str, Any]], results: Sequence[Any], unsigned: Sequence[bool]
) -> list[Any]:
    """``func.call`` of the declared function. ``arguments``: (name, MLIR value or other argument);
    ``results``: types; ``unsigned``: whether each argument is uint8."""
    operands = [value for _, value in arguments if isinstance(value, ir.Value)]
    other = {
        name: ir.StringAttr.get(str(value)) for name, value in arguments if not isinstance(value, ir.Value)
    }
    kind = ir.FunctionType.get([each.type for each in operands], list(results))
    signs = [sign for (_, value), sign in zip(arguments, unsigned) if isinstance(value, ir.Value)]
    function = _declared(body.target, ir.TypeAttr.get(kind), ir.DenseBoolArrayAttr.get(signs))
    made = func.CallOp(list(results), function, operands)
    if other:
        made.operation.attributes["smelt.arguments"] = ir.DictAttr.get(other)
    return list(made.results)


def declared(module: Any) -> Iterator[tuple[str, str]]:
    """The functions that a module declares without a body: name, and operator (``mylib.scale.default``)."""
    for each in module.body.operations:
        if each.operation.name == "func.func" and not each.regions[0].blocks:
            yield tuple(ir.StringAttr(each.attributes[name]).value for name in ("sym_name", "smelt.operator"))  # type: ignore[misc]


def linked(
    module: Any, given: Mapping[str, Callable[..., Any] | None], remedy: str
) -> dict[str, Callable[..., Any]]:
    """The implementation of each function that a module declares without a body.

    Raises:
        SmeltError: SM0750, a function has no implementation.
    """
    found = {
        name: given.get(operator) or given.get(operator.rpartition(".")[0])
        for name, operator in declared(module)
    }
    missing = [name for name, function in found.items() if function is None]
    if missing:
        what = f"the module calls functions that only you have: {', '.join(missing)}"
        raise SmeltError("SM0750", what, remedy=remedy)
    return {name: function for name, function in found.items() if function is not None}


def _declared(target: str, kind: Any, unsigned: Any) -> str:
    """The name of the function with this type; declares it at the end of the module if needed."""
    module = ir.InsertionPoint.current.block.owner
    while module.name != "builtin.module":
        module = module.parent
    body = module.regions[0].blocks[0]
    name, number = target.removesuffix(".default"), 0
    own = name
    functions = [each for each in body.operations if each.operation.name == "func.func"]
    types = {
        ir.StringAttr(each.attributes["sym_name"]).value: (
            each.attributes["function_type"],
            each.attributes.get("smelt.unsigned"),
        )
        for each in functions
    }
    while own in types and types[own] != (kind, unsigned):
        number += 1
        own = f"{name}_{number}"
    if own not in types:
        with ir.InsertionPoint(body):
            made = func.FuncOp(own, kind.value, visibility="private")
            made.attributes["smelt.operator"] = ir.StringAttr.get(target)
            made.attributes["smelt.unsigned"] = unsigned
    return own
