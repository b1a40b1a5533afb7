"""Arithmetic on sizes and other numbers known only at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.mlir.bindings import ir
from smelt.mlir.torch_dialect.arguments import Constants

_INT = "!torch.int"
_FLOAT = "!torch.float"
_BOOL = "!torch.bool"
DTYPES = {_INT: torch.int64, _FLOAT: torch.float64, _BOOL: torch.bool}
"""Type of a number → the dtype of a tensor that holds it."""

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_ARITHMETIC = ("add", "sub", "mul", "neg", "floordiv", "remainder")
_OF_INTEGERS = {
    **{name: f"aten.{name}.int" for name in (*_ARITHMETIC, *_COMPARISONS)},
    "truncdiv": "aten.floordiv.int",
    "fmod": "aten.remainder.int",
    "maximum": "prim.max.int",
    "minimum": "prim.min.int",
}
"""Row of `smelt.ops.table` → operation on integers; divisions are of nonnegative numbers."""

_OF_FLOATS = {
    **{name: f"aten.{name}.float" for name in ("sub", "mul", "neg", "eq", "lt", "gt", "ge")},
    "add": "aten.add",
    "truediv": "aten.div.float",
}
_OF_TRUTHS = {f"logical_{name}": f"aten.__{name}__" for name in ("and", "or", "not")}


def compute(name: str, values: Sequence[Any], constants: Constants) -> Any:
    """A row of `smelt.ops.table` on numbers of one type, at the current insertion point.

    Raises:
        Unsupported: the Torch dialect has no such operation on numbers.
    """
    if name == "where":
        return _choose(*values)
    kind = str(values[0].type)
    if kind == _BOOL and name in _OF_TRUTHS:
        suffix = "" if name == "logical_not" else ".bool"
        return _make(f"torch.{_OF_TRUTHS[name]}{suffix}", _BOOL, values)
    if kind == _INT and name in _OF_INTEGERS:
        return _make(f"torch.{_OF_INTEGERS[name]}", _BOOL if name in _COMPARISONS else _INT, values)
    if kind == _FLOAT:
        return _of_floats(name, values, constants)
    raise Unsupported(f"{name} of numbers of type {kind}")


def _of_floats(name: str, values: Sequence[Any], constants: Constants) -> Any:
    if name == "le":  # the dialect has no le.float: a <= b is b >= a
        return compute("ge", values[::-1], constants)
    if name == "ne":
        return _make("torch.aten.__not__", _BOOL, [compute("eq", values, constants)])
    if name == "ceil":
        return _make("torch.aten.ceil.float", _INT, values)
    if name == "floor":  # nor a floor: it is -ceil(-x)
        negative = compute("ceil", [compute("neg", values, constants)], constants)
        return compute("neg", [negative], constants)
    if name == "trunc":
        return _as_int(values[0])
    if name in _OF_FLOATS:
        return _make(f"torch.{_OF_FLOATS[name]}", _BOOL if name in _COMPARISONS else _FLOAT, values)
    kind, none, dtype = "!torch.vtensor<[],f64>", constants.get(None), constants.get(torch.float64)
    tensors = [_make("torch.aten.scalar_tensor", kind, [each, dtype, none, none, none]) for each in values]
    function = "pow.Tensor_Tensor" if name == "pow" else name
    return _make("torch.aten.Float.Tensor", _FLOAT, [_make(f"torch.aten.{function}", kind, tensors)])


def converted(value: Any, dtype: torch.dtype) -> Any:
    """A number converted to another type."""
    if DTYPES[str(value.type)] == dtype:
        return value
    return _as_float(value) if dtype.is_floating_point else _as_int(value)


def list_of(values: Sequence[Any], kind: str) -> Any:
    """``torch.prim.ListConstruct`` of existing values."""
    return _make("torch.prim.ListConstruct", f"!torch.list<{kind}>", values)


def size_of(tensor: Any, dim: int, constants: Constants) -> Any:
    """The size of one dimension of a tensor."""
    return _make("torch.aten.size.int", _INT, [tensor, constants.get(dim)])


def item(tensor: Any, meta: Any) -> Any:
    """The number in a tensor of one element; ``meta`` determines its type."""
    if isinstance(meta, (bool, torch.SymBool)):
        return _make("torch.aten.Bool.Tensor", _BOOL, [tensor])
    if isinstance(meta, (int, torch.SymInt)):
        return _make("torch.aten.Int.Tensor", _INT, [tensor])
    return _make("torch.aten.Float.Tensor", _FLOAT, [tensor])


def _choose(condition: Any, then: Any, other: Any) -> Any:
    made = ir.Operation.create("torch.prim.If", results=[then.type], operands=[condition], regions=2)
    for region, value in zip(made.regions, (then, other)):
        with ir.InsertionPoint(region.blocks.append()):
            ir.Operation.create("torch.prim.If.yield", operands=[value])
    return made.results[0]


def _as_float(value: Any) -> Any:
    return value if str(value.type) == _FLOAT else _make("torch.aten.Float.Scalar", _FLOAT, [value])


def _as_int(value: Any) -> Any:
    if str(value.type) == _INT:
        return value
    return _make("torch.aten.Int.bool" if str(value.type) == _BOOL else "torch.aten.Int.float", _INT, [value])


def _make(name: str, kind: str, operands: Sequence[Any]) -> Any:
    """An operation; Unsupported if the wheel's dialect lacks it."""
    if not ir.Context.current.is_registered_operation(name):
        raise Unsupported(f"the Torch dialect has no {name}")
    return ir.Operation.create(name, results=[ir.Type.parse(kind)], operands=list(operands)).results[0]
