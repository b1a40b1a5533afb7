"""Which operation of a module is at fault: the first whose prefix of the function fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.mlir.execute import clone, function_of
from smelt.mlir.locations import where_of


def first_operation(
    module: Any, fails: Callable[[Any], bool], name: str = "main"
) -> tuple[str | None, str | None]:
    """``(operation, the user's line)`` that ends the shortest part of ``main`` for which ``fails`` holds.

    A part is the function's first operations, with all tensors that the rest uses as results. The search
    halves; where the whole does not fail (by chance, or within the time), both are None.
    """
    operations = list(function_of(module, name).regions[0].blocks[0].operations)
    places = [place for place, each in enumerate(operations[:-1]) if _tensors(each)]
    if not places or not fails(_prefix(module, name, places[-1] + 1)):
        return None, None
    low, high = 0, len(places) - 1
    while low < high:
        middle = (low + high) // 2
        if fails(_prefix(module, name, places[middle] + 1)):
            high = middle
        else:
            low = middle + 1
    found = operations[places[low]]
    return found.operation.name, where_of(found.location)


def _prefix(module: Any, name: str, count: int) -> Any:
    """A module of the first ``count`` operations of the function."""
    from torch_mlir import ir
    from torch_mlir.dialects import func

    with module.context, ir.Location.unknown():
        part = clone(module)
        function = function_of(part, name)
        block = function.regions[0].blocks[0]
        operations = list(block.operations)
        kept, rest = operations[:count], operations[count:]
        values = [value for each in kept for value in _tensors(each)]
        inner = [sum(operand == value for each in kept for operand in each.operands) for value in values]
        results = [value for value, count in zip(values, inner) if len(list(value.uses)) > count]
        for operation in reversed(rest):
            operation.operation.erase()
        with ir.InsertionPoint(block):
            func.ReturnOp(results)
        inputs = [each.type for each in block.arguments]
        kind = ir.FunctionType.get(inputs, [each.type for each in results])
        function.attributes["function_type"] = ir.TypeAttr.get(kind)
    return part


def _tensors(operation: Any) -> list[Any]:
    """The tensors that an operation gives."""
    return [
        each for each in operation.results if "tensor<" in str(each.type) and "list" not in str(each.type)
    ]
