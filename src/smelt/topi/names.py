"""TVM's names of elementwise operators → ATen's overloads, and TVM's names of their stages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from smelt.te import functions as scalars
from smelt.te import value as values
from smelt.te.dtypes import promoted
from smelt.te.errors import refuse
from smelt.te.tensor import Tensor
from smelt.te.value import Number, Value, as_value
from smelt.topi.rows import Constant, call
from smelt.topi.written import Labels

aten = torch.ops.aten

ELEMENTWISE: dict[str, Any] = {
    "identity": aten.clone.default,
    "negative": aten.neg.default,
    "exp": aten.exp.default,
    "fast_exp": aten.exp.default,
    "erf": aten.erf.default,
    "fast_erf": aten.erf.default,
    "tanh": aten.tanh.default,
    "fast_tanh": aten.tanh.default,
    "tan": aten.tan.default,
    "cos": aten.cos.default,
    "cosh": aten.cosh.default,
    "sin": aten.sin.default,
    "sinh": aten.sinh.default,
    "acos": aten.acos.default,
    "acosh": aten.acosh.default,
    "asin": aten.asin.default,
    "asinh": aten.asinh.default,
    "atan": aten.atan.default,
    "atanh": aten.atanh.default,
    "floor": aten.floor.default,
    "ceil": aten.ceil.default,
    "trunc": aten.trunc.default,
    "round": aten.round.default,
    "abs": aten.abs.default,
    "sign": aten.sign.default,
    "isnan": aten.isnan.default,
    "isfinite": aten.isfinite.default,
    "isinf": aten.isinf.default,
    "log": aten.log.default,
    "log2": aten.log2.default,
    "log10": aten.log10.default,
    "sqrt": aten.sqrt.default,
    "rsqrt": aten.rsqrt.default,
    "sigmoid": aten.sigmoid.default,
    "logical_not": aten.logical_not.default,
    "bitwise_not": aten.bitwise_not.default,
}
"""Operators of one tensor. TVM's fast variants are approximations; here they are the operators themselves."""

STAGES = {
    name: f"T_{name}" for name in ("sign", "logical_not", "bitwise_not", "fast_exp", "fast_tanh", "fast_erf")
}
"""The stages of elementwise operators that have a name; others are "compute"."""

FLOATS = ("acos", "acosh", "asin", "asinh", "atanh")
"""Operators that TVM refuses on integers."""

BROADCAST: dict[str, Any] = {
    "add": aten.add.Tensor,
    "subtract": aten.sub.Tensor,
    "multiply": aten.mul.Tensor,
    "divide": aten.div.Tensor,
    "floor_divide": aten.floor_divide.default,
    "mod": aten.fmod.Tensor,
    "floor_mod": aten.remainder.Tensor,
    "log_add_exp": aten.logaddexp.default,
    "maximum": aten.maximum.default,
    "minimum": aten.minimum.default,
    "power": aten.pow.Tensor_Tensor,
    "atan2": aten.atan2.default,
    "left_shift": aten.bitwise_left_shift.Tensor,
    "right_shift": aten.bitwise_right_shift.Tensor,
    "greater": aten.gt.Tensor,
    "less": aten.lt.Tensor,
    "equal": aten.eq.Tensor,
    "not_equal": aten.ne.Tensor,
    "greater_equal": aten.ge.Tensor,
    "less_equal": aten.le.Tensor,
    "logical_and": aten.logical_and.default,
    "logical_or": aten.logical_or.default,
    "logical_xor": aten.logical_xor.default,
    "bitwise_and": aten.bitwise_and.Tensor,
    "bitwise_or": aten.bitwise_or.Tensor,
    "bitwise_xor": aten.bitwise_xor.Tensor,
}
"""Operators of two tensors that broadcast; their stages are ``T_`` and the name."""


def _of_values(op: str) -> Callable[[Any, Any], Any]:
    return lambda a, b: values.binary(op, as_value(a), b)


SCALARS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": scalars.div,
    "floor_divide": scalars.floordiv,
    "mod": scalars.truncmod,
    "floor_mod": scalars.floormod,
    "power": scalars.power,
    **{
        name: _of_values(op)
        for name, op in (
            *(("maximum", "maximum"), ("minimum", "minimum"), ("greater", "gt"), ("less", "lt")),
            *(("equal", "eq"), ("not_equal", "ne"), ("greater_equal", "ge"), ("less_equal", "le")),
            *(("bitwise_and", "bitwise_and"), ("bitwise_or", "bitwise_or"), ("bitwise_xor", "bitwise_xor")),
            *(("left_shift", "lshift"), ("right_shift", "rshift")),
        )
    },
}
"""The same operators on two values of te, neither of which is a tensor."""


def elementwise(name: str) -> Callable[[Any], Any]:
    """The function of an elementwise operator."""
    overload, stage = ELEMENTWISE[name], STAGES.get(name)

    def function(x: Any) -> Any:
        if not isinstance(x, Tensor):
            known = name in scalars.RENAMED and values.is_operand(x)
            return getattr(scalars, name)(x) if known else _no_tensor(name, x)
        if name in FLOATS and not x.kind.is_floating_point:
            what = f"topi.{name} only supports floating-point inputs, but got {x.dtype}"
            refuse("SM1121", what, remedy='topi.cast(x, "float32")')
        labels = Labels(stage, "ax", tag="elemwise") if stage else Labels("compute", "i", tag="elemwise")
        return call(name, overload, [x], labels)

    return _named(function, name, f"`{overload}` of each element.")


def broadcast(name: str) -> Callable[[Any, Any], Any]:
    """The function of a broadcasting operator."""
    overload = BROADCAST[name]

    def function(lhs: Any, rhs: Any) -> Any:
        if not isinstance(lhs, Tensor) and not isinstance(rhs, Tensor):
            if name not in SCALARS:
                _no_tensor(name, lhs)
            return SCALARS[name](lhs, rhs)
        a, b = operand(name, lhs, rhs), operand(name, rhs, lhs)
        if name == "divide" and not (a.kind.is_floating_point or b.kind.is_floating_point):
            return call(name, aten.div.Tensor_mode, [a, b], _labels(name), rounding_mode="trunc")
        return call(name, overload, [a, b], _labels(name))

    return _named(function, name, f"`{overload}` of tensors that broadcast, and of numbers.")


def _labels(name: str) -> Labels:
    return Labels(f"T_{name}", tag="broadcast")


def operand(name: str, x: Any, other: Any) -> Any:
    """A tensor, or a number as a constant of the dtype it takes next to the other operand."""
    if isinstance(x, Tensor):
        return x
    if not isinstance(x, Number):
        if isinstance(x, Value):
            what = f"topi.{name}: {x} is neither a tensor nor a number"
            refuse("SM1122", what, remedy="te.compute a tensor of it")
        x = as_value(x) if values.is_operand(x) else _no_tensor(name, x)
    assert isinstance(x, Number) and isinstance(other, Tensor)
    weak = x.weak and (other.kind.is_floating_point or not x.kind.is_floating_point)
    kind = other.kind if weak and other.kind is not torch.bool else x.kind
    return Constant(x.value, kind if kind == x.kind else promoted(kind, kind))


def _no_tensor(name: str, x: Any) -> Any:
    refuse("SM1122", f"topi.{name}: {x!r} is no tensor")


def _named(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: elementwise(name) for name in ELEMENTWISE},
    **{name: broadcast(name) for name in BROADCAST},
}


def clip(x: Tensor, a_min: Any, a_max: Any) -> Any:
    """Each element clamped to ``a_min`` … ``a_max``."""
    return call("clip", aten.clamp.default, [x, a_min, a_max], Labels("compute", "i", tag="elemwise"))


def cast(x: Any, dtype: Any, span: Any = None) -> Any:
    """A tensor in another dtype."""
    if not isinstance(x, Tensor):
        return scalars.cast(dtype, x)
    kind = scalars.kind_of(dtype)
    if x.kind == kind:
        return x
    return call("cast", aten._to_copy.default, [x], Labels("compute", "i", tag="elemwise"), dtype=kind)


def reinterpret(x: Tensor, dtype: Any) -> Any:
    """The bits of a tensor as another dtype of its width."""
    kind = scalars.kind_of(dtype)
    if kind.itemsize != x.kind.itemsize:
        refuse("SM1123", f"topi.reinterpret: {x.dtype} and {dtype} have not as many bits")
    return call("reinterpret", aten.view.dtype, [x, kind], Labels("T_reinterpret"))


def elemwise_sum(xs: Any) -> Any:
    """The sum of tensors of one shape."""
    if not xs:
        refuse("SM1121", "topi.elemwise_sum: no tensors")
    total = xs[0]
    for other in xs[1:]:
        total = FUNCTIONS["add"](total, other)
    return total


def where(condition: Any, x: Any, y: Any) -> Any:
    """Elements of ``x`` if the condition is not 0, else of ``y``."""
    mask = condition if condition.kind is torch.bool else FUNCTIONS["not_equal"](condition, 0)
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        x, y = (operand("where", a, b) if not isinstance(a, Tensor) else a for a, b in ((x, y), (y, x)))
    else:
        x, y = (Constant(as_value(each).value, as_value(each).kind) for each in (x, y))  # type: ignore[attr-defined]
    return call("where", aten.where.self, [mask, x, y], Labels("T_where", tag="broadcast"))


def ceil_log2(x: Any) -> Any:
    """``ceil(log2(x))``, in the dtype of x."""
    if not isinstance(x, Tensor):
        return math.ceil(math.log2(x))
    found = FUNCTIONS["ceil"](FUNCTIONS["log2"](cast(x, "float64") if not x.kind.is_floating_point else x))
    return cast(found, x.dtype)


FUNCTIONS |= {f.__name__: f for f in (clip, cast, reinterpret, elemwise_sum, where, ceil_log2)}
