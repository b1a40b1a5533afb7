"""Operations on whole modules: traversal, copies, functions and prefixes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.errors import SmeltError
from smelt.mlir.bindings import func, ir


def operations(of: Any, *names: str) -> list[Any]:
    """All operations of a module, or inside of an operation, inner ones first; only those of ``names`` if any
    are given."""
    found: list[Any] = []

    def look(operation: Any) -> Any:
        if not names or operation.name in names:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    getattr(of, "operation", of).walk(look)
    return found


def clone(module: Any) -> Any:
    """A copy of a module in the same context; weights are not copied."""
    with module.context:
        copy = ir.Module.create(ir.Location.unknown())
        for operation in module.body.operations:
            copy.body.append(operation.operation.clone())
    return copy


def function_of(module: Any, name: str = "main") -> Any:
    """The module's function with this name.

    Raises:
        SmeltError: SM0718, there is no such function.
    """
    for each in module.body.operations:
        named = "sym_name" in each.attributes and ir.StringAttr(each.attributes["sym_name"]).value == name
        if named and each.operation.name == "func.func":
            return each
    raise SmeltError("SM0718", f"the module has no function {name!r}")


def type_of(function: Any) -> Any:
    """The ``ir.FunctionType`` of a function."""
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)


def retype(function: Any) -> None:
    """Update a function's type to its arguments and returned values."""
    block = function.regions[0].blocks[0]
    results = [each.type for each in list(block.operations)[-1].operands]
    kind = ir.FunctionType.get([each.type for each in block.arguments], results)
    function.attributes["function_type"] = ir.TypeAttr.get(kind)


def declare(module: Any, name: str, inputs: list[Any], results: list[Any], interface: bool = False) -> None:
    """Declare an external function at the beginning of a module."""
    with ir.InsertionPoint.at_block_begin(module.body):
        made = func.FuncOp(name, ir.FunctionType.get(inputs, results), visibility="private")
        if interface:
            made.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()


def first_part(
    module: Any, name: str, count: int, wanted: Callable[[list[Any], list[Any]], list[Any]]
) -> Any:
    """A module with the first ``count`` operations of a function; ``wanted``: these and the rest → the
    returned values."""
    with module.context, ir.Location.unknown():
        part = clone(module)
        function = function_of(part, name)
        block = function.regions[0].blocks[0]
        body = [each.operation for each in block.operations]
        kept, rest = body[:count], body[count:]
        results = wanted(kept, rest)
        for operation in reversed(rest):
            operation.erase()
        with ir.InsertionPoint(block):
            func.ReturnOp(results)
        retype(function)
    return part
