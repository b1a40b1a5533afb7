"""Arithmetic on sizes and other numbers that are known at run time only."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.mlir.bindings import ir
from smelt.mlir.torch_dialect.arguments import Constants

_INT = "!torch.int"
_FLOAT = "!torch.float"
_BOOL = "!torch.bool"

_BINARY = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.floordiv: "floordiv",
    operator.mod: "remainder",
    operator.eq: "eq",
    operator.ne: "ne",
    operator.lt: "lt",
    operator.le: "le",
    operator.gt: "gt",
    operator.ge: "ge",
}
DTYPES = {_INT: torch.int64, _FLOAT: torch.float64, _BOOL: torch.bool}
"""Type of a number → the dtype of a tensor that holds it."""

FUNCTIONS: dict[str, Any] = {
    "truncdiv": operator.floordiv,
    "fmod": operator.mod,
    "remainder": operator.mod,
    "maximum": max,
    "minimum": min,
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "truediv", "neg", "pow")},
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
"""Row of `smelt.ops.table` → function that `compute` takes, for numbers that are not negative."""

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def compute(function: Any, args: list[Any], constants: Constants) -> Any:
    """``function(*args)`` on MLIR values and Python numbers, at the current insertion point.

    Raises:
        Unsupported: the Torch dialect has no such operation on numbers.
    """
    values = [arg if hasattr(arg, "type") else constants.get(arg) for arg in args]
    kinds = {str(value.type) for value in values}
    name = getattr(function, "__name__", str(function)).lstrip("_")
    if function in _BINARY and len(values) == 2:
        return _binary(_BINARY[function], values, kinds)
    if function is operator.truediv:
        if kinds == {_INT}:
            return _make("torch.aten.div.int", _FLOAT, values)
        return _make("torch.aten.div.float", _FLOAT, [_as_float(value) for value in values])
    if function is operator.pow and kinds == {_INT}:
        return _as_int(_make("torch.aten.pow.int_float", _FLOAT, [values[0], _as_float(values[1])]))
    if function is operator.neg and kinds == {_INT}:
        return _make("torch.aten.neg.int", _INT, values)
    if name in ("sym_float", "float"):
        return _as_float(values[0])
    if name in ("sym_int", "int", "trunc"):
        return _as_int(values[0])
    if name in ("sym_max", "sym_min", "max", "min") and kinds == {_INT}:
        return _make(f"torch.prim.{name.removeprefix('sym_')}.int", _INT, values)
    if function is math.ceil or name in ("sym_ceil", "ceil"):
        return values[0] if kinds == {_INT} else _make("torch.aten.ceil.float", _INT, values)
    if function is math.floor or name in ("sym_floor", "floor"):
        return values[0] if kinds == {_INT} else _floor(values[0])
    if (function is math.sqrt or name in ("sym_sqrt", "sqrt")) and kinds == {_INT}:
        return _make("torch.aten.sqrt.int", _FLOAT, values)
    if name in ("sym_sqrt", "sqrt") and kinds == {_FLOAT}:
        return _through_tensor("torch.aten.sqrt", values[0], constants)
    if name in ("sym_not", "not_", "not"):
        return _make("torch.aten.__not__", _BOOL, values)
    if name in ("and", "and_", "or", "or_") and kinds == {_BOOL}:
        return _make(f"torch.aten.__{name.rstrip('_')}__.bool", _BOOL, values)
    if name == "sym_ite" and str(values[0].type) == _BOOL and values[1].type == values[2].type:
        return _choose(*values)
    raise Unsupported(f"{name} of {', '.join(sorted(kinds))}")


def converted(value: Any, dtype: torch.dtype) -> Any:
    """A number as one of another type."""
    if DTYPES[str(value.type)] == dtype:
        return value
    return _as_float(value) if dtype.is_floating_point else _as_int(value)


def list_of(values: Sequence[Any], kind: str) -> Any:
    """``torch.prim.ListConstruct`` of values that are there already."""
    result = [ir.Type.parse(f"!torch.list<{kind}>")]
    return ir.Operation.create("torch.prim.ListConstruct", results=result, operands=list(values)).results[0]


def size_of(tensor: Any, dim: int, constants: Constants) -> Any:
    """The size of one dimension of a tensor."""
    return _make("torch.aten.size.int", _INT, [tensor, constants.get(dim)])


def item(tensor: Any, meta: Any) -> Any:
    """The number that a tensor of one element holds; ``meta`` says of which type it is."""
    if isinstance(meta, (bool, torch.SymBool)):
        return _make("torch.aten.Bool.Tensor", _BOOL, [tensor])
    if isinstance(meta, (int, torch.SymInt)):
        return _make("torch.aten.Int.Tensor", _INT, [tensor])
    return _make("torch.aten.Float.Tensor", _FLOAT, [tensor])


def _binary(name: str, values: list[Any], kinds: set[str]) -> Any:
    result = _BOOL if name in _COMPARISONS else None
    if kinds == {_INT}:
        return _make(f"torch.aten.{name}.int", result or _INT, values)
    if name == "floordiv" or name == "remainder" or not kinds <= {_INT, _FLOAT}:
        raise Unsupported(f"{name} of {', '.join(sorted(kinds))}")
    floats = [_as_float(value) for value in values]
    if name == "le":  # the dialect has no le.float: a <= b is b >= a
        return _make("torch.aten.ge.float", _BOOL, floats[::-1])
    if name == "ne":
        return _make("torch.aten.__not__", _BOOL, [_make("torch.aten.eq.float", _BOOL, floats)])
    if name in _COMPARISONS or name in ("sub", "mul"):
        return _make(f"torch.aten.{name}.float", result or _FLOAT, floats)
    return _make("torch.aten.add", _FLOAT, floats)


def _through_tensor(name: str, value: Any, constants: Constants) -> Any:
    """A function of tensors that the dialect does not have of floats."""
    kind, none = "!torch.vtensor<[],f64>", constants.get(None)
    dtype = constants.get(torch.float64)
    tensor = _make("torch.aten.scalar_tensor", kind, [value, dtype, none, none, none])
    return _make("torch.aten.Float.Tensor", _FLOAT, [_make(name, kind, [tensor])])


def _choose(condition: Any, then: Any, other: Any) -> Any:
    made = ir.Operation.create("torch.prim.If", results=[then.type], operands=[condition], regions=2)
    for region, value in zip(made.regions, (then, other)):
        with ir.InsertionPoint(region.blocks.append()):
            ir.Operation.create("torch.prim.If.yield", operands=[value])
    return made.results[0]


def _floor(value: Any) -> Any:
    """The dialect has no floor of a number: it is ``-ceil(-x)``."""
    negative = _make("torch.aten.neg.float", _FLOAT, [value])
    return _make("torch.aten.neg.int", _INT, [_make("torch.aten.ceil.float", _INT, [negative])])


def _as_float(value: Any) -> Any:
    return value if str(value.type) == _FLOAT else _make("torch.aten.Float.Scalar", _FLOAT, [value])


def _as_int(value: Any) -> Any:
    if str(value.type) == _INT:
        return value
    return _make("torch.aten.Int.bool" if str(value.type) == _BOOL else "torch.aten.Int.float", _INT, [value])


def _make(name: str, kind: str, operands: list[Any]) -> Any:
    """One operation; Unsupported where the wheel's dialect does not have it."""
    if not ir.Context.current.is_registered_operation(name):
        raise Unsupported(f"the Torch dialect has no {name}")
    return ir.Operation.create(name, results=[ir.Type.parse(kind)], operands=operands).results[0]
