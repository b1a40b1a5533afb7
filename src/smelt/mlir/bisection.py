"""Search for a module's faulty operation: the last operation of the shortest prefix that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.mlir.locations import where_of
from smelt.mlir.modules import first_part, function_of


def first_operation(
    module: Any, fails: Callable[[Any], bool], name: str = "main"
) -> tuple[str | None, str | None]:
    """``(operation, the user's line)`` at the end of the shortest prefix of ``main`` that ``fails``.

    A prefix consists of the function's first operations and returns all tensors that the rest uses. The
    search is binary. Both results are None if the whole function does not fail (by chance, or within the
    time).
    """
    operations = list(function_of(module, name).regions[0].blocks[0].operations)
    places = [place for place, each in enumerate(operations[:-1]) if _tensors(each)]
    if not places or not fails(first_part(module, name, places[-1] + 1, _used_behind)):
        return None, None
    low, high = 0, len(places) - 1
    while low < high:
        middle = (low + high) // 2
        if fails(first_part(module, name, places[middle] + 1, _used_behind)):
            high = middle
        else:
            low = middle + 1
    found = operations[places[low]]
    return found.operation.name, where_of(found.location)


def _used_behind(kept: list[Any], rest: list[Any]) -> list[Any]:
    """The tensors that the first operations define and the rest uses."""
    values = [value for each in kept for value in _tensors(each)]
    inner = [sum(operand == value for each in kept for operand in each.operands) for value in values]
    return [value for value, count in zip(values, inner) if len(list(value.uses)) > count]


def _tensors(operation: Any) -> list[Any]:
    """The tensors that an operation defines."""
    return [
        each for each in operation.results if "tensor<" in str(each.type) and "list" not in str(each.type)
    ]
