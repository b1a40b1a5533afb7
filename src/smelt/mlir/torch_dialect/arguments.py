"""Arguments of ATen calls as operands: numbers, lists, dtypes, defaults, by the operator's schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from smelt.errors import Unsupported
from smelt.mlir.bindings import ir
from smelt.mlir.torch_dialect.literals import literal
from smelt.mlir.torch_dialect.types import code, type_of

_OVERLOAD = {"Tensor": "Scalar", "Tensor_Tensor": "Tensor_Scalar", "Tensor_mode": "Scalar_mode"}
"""Overload that takes a tensor → the overload that takes a number instead."""


class Constants:
    """The constants of one function or region; each is written once, on first use."""

    def __init__(self, outer: Constants | None = None) -> None:
        self.outer = outer
        self.known: dict[Any, Any] = {}

    def get(self, value: Any) -> Any:
        """The operand for a Python number, string, device, None, dtype …

        Raises:
            Unsupported: the Torch dialect has no such constant.
        """
        number = code(value)
        value = value if number is None else number
        key = (type(value).__name__, repr(value))
        scope: Constants | None = self
        while scope is not None:
            if key in scope.known:
                return scope.known[key]
            scope = scope.outer
        self.known[key] = made = _constant(value)
        return made


class Operands:
    """Converts the arguments of a call to operands. ``value_of`` gives the MLIR value of an FX node."""

    def __init__(self, constants: Constants, value_of: Callable[[Node], Any]) -> None:
        self.constants, self.value_of = constants, value_of

    def of_call(self, node: Node, overload: OpOverload) -> list[Any]:
        """An operand for each argument of the schema; missing arguments get their defaults.

        Raises:
            Unsupported: an argument that the Torch dialect cannot express.
        """
        given = list(node.args)
        operands = []
        schema: Any = overload._schema
        for position, argument in enumerate(schema.arguments):
            if position < len(given):
                value = given[position]
            elif argument.name in node.kwargs:
                value = node.kwargs[argument.name]
            else:
                value = argument.default_value if argument.has_default_value() else None
            operands.append(self.operand(value, argument.type, argument.N, node))
        return operands

    def operand(self, value: Any, kind: Any, count: int | None, node: Node) -> Any:
        """An argument of type ``kind`` (a type of PyTorch's schemas; ``count`` is its list length)."""
        if kind.kind() == "OptionalType":
            return self.constants.get(None) if value is None else self._some(value, kind, count, node)
        return self._some(value, kind, count, node)

    def _some(self, value: Any, kind: Any, count: int | None, node: Node) -> Any:
        inner = kind.getElementType() if kind.kind() == "OptionalType" else kind
        if inner.kind() == "ListType":
            if isinstance(value, Node) and isinstance(value.meta.get("val"), (list, tuple)):
                raise Unsupported("a list that is itself a result")
            items = list(value) if isinstance(value, (list, tuple)) else [value] * (count or 1)
            return self.list_of(items, inner.getElementType(), node)
        if inner.kind() == "TensorType":
            return self._tensor(value, node)
        if isinstance(value, Node):
            return self._number_as(self.value_of(value), inner)
        if inner.kind() == "FloatType" and isinstance(value, int):
            return self.constants.get(float(value))
        if inner.kind() == "NumberType" and isinstance(value, bool):
            return self.constants.get(int(value))
        if inner.kind() == "GeneratorType":
            return self.constants.get(None)
        return self.constants.get(value)

    def list_of(self, items: Sequence[Any], kind: Any, node: Node) -> Any:
        """``torch.prim.ListConstruct`` of arguments of one type."""
        operands = [self.operand(item, kind, None, node) for item in items]
        return ir.Operation.create(
            "torch.prim.ListConstruct",
            results=[ir.Type.parse(f"!torch.list<{_element_of(kind)}>")],
            operands=operands,
        ).results[0]

    def _tensor(self, value: Any, node: Node) -> Any:
        if isinstance(value, Node):
            if isinstance(value.meta.get("val"), torch.Tensor):
                return self.value_of(value)
            return self._tensor_of_number(value, node)
        if value is None:
            return self.constants.get(None)
        return literal(torch.scalar_tensor(value, dtype=number_dtype(node, value)), "scalar")

    def _tensor_of_number(self, value: Node, node: Node) -> Any:
        """A number known only at run time, as a tensor."""
        made = torch.empty((), dtype=number_dtype(node, value.meta.get("val")), device="meta")
        names = {"!torch.int": "int", "!torch.float": "float", "!torch.bool": "bool"}
        operand = self.value_of(value)
        if str(operand.type) not in names:
            raise Unsupported("a number where a tensor is wanted")
        none = self.constants.get(None)
        operands = [operand, self.constants.get(made.dtype), none, none, none]
        return ir.Operation.create(
            "torch.aten.scalar_tensor", results=[type_of(made)], operands=operands
        ).results[0]

    def _number_as(self, operand: Any, kind: Any) -> Any:
        """A number known at run time; an integer is converted if the schema wants a float."""
        if kind.kind() == "FloatType" and str(operand.type) == "!torch.int":
            result = [ir.Type.parse("!torch.float")]
            return ir.Operation.create("torch.aten.Float.Scalar", results=result, operands=[operand]).results[
                0
            ]
        return operand


def with_numbers(node: Node, overload: OpOverload) -> OpOverload:
    """The overload to print: ``add.Scalar`` for ``add.Tensor(x, 2)``, else ``overload`` itself."""
    name = _OVERLOAD.get(overload._overloadname)
    args = node.args
    if name is None or name not in overload.overloadpacket.overloads() or len(args) < 2:
        return overload
    if _is_tensor(args[0]) and args[1] is not None and not _is_tensor(args[1]):
        return getattr(overload.overloadpacket, name)  # type: ignore[no-any-return]
    return overload


def number_dtype(node: Node, value: Any) -> torch.dtype:
    """The dtype of a 0-d tensor that replaces a number in a call: it must not change the result's dtype."""
    tensors = [each.meta.get("val") for each in node.all_input_nodes]
    dtypes = [each.dtype for each in tensors if isinstance(each, torch.Tensor)]
    real = isinstance(value, (float, torch.SymFloat))
    for dtype in dtypes:
        if not real or dtype.is_floating_point or dtype.is_complex:
            return dtype
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    return torch.get_default_dtype() if real else torch.int64


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _element_of(kind: Any) -> str:
    name = kind.kind()
    if name == "OptionalType":
        return f"optional<{_element_of(kind.getElementType())}>"
    names = {
        "TensorType": "vtensor",
        "IntType": "int",
        "SymIntType": "int",
        "FloatType": "float",
        "BoolType": "bool",
        "StringType": "str",
        "NumberType": "number",
    }
    if name not in names:
        raise Unsupported(f"a list of {kind}")
    return names[name]


def _constant(value: Any) -> Any:
    def make(name: str, kind: str, **attributes: Any) -> Any:
        return ir.Operation.create(
            f"torch.constant.{name}", results=[ir.Type.parse(f"!torch.{kind}")], attributes=attributes
        ).results[0]

    if value is None:
        return make("none", "none")
    if isinstance(value, bool):
        return make("bool", "bool", value=ir.BoolAttr.get(value))
    if isinstance(value, int):
        return make("int", "int", value=ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value))
    if isinstance(value, float):
        return make("float", "float", value=ir.FloatAttr.get_f64(value))
    if isinstance(value, str):
        return make("str", "str", value=ir.StringAttr.get(value))
    if isinstance(value, torch.device):
        return make("device", "Device", value=ir.StringAttr.get(str(value)))
    if isinstance(value, complex):
        raise Unsupported("a complex number as an argument")
    raise Unsupported(f"an argument of type {type(value).__name__}")
