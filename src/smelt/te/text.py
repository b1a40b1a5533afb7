"""Expressions as text, in the user's notation."""

from __future__ import annotations

from sympy import Expr
from torch.utils._sympy.functions import FloorDiv

from smelt.te.index import Idx
from smelt.te.reductions import Hole, Reduced
from smelt.te.value import Bits, Cast, Choice, Elementwise, Load, Lookup, Number, Value

_BINARY = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "remainder": "%",
    "pow": "**",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "lshift": "<<",
    "rshift": ">>",
}


def text_of(value: Value) -> str:
    """A value as text.

    >>> from smelt import te
    >>> A = te.placeholder((4,), name="A")
    >>> te.compute((3,), lambda i: te.exp(A[i + 1]) * 2).op.body[0]
    exp(A[i + 1])*2.0
    """
    return _text(value)


def index_text(expr: Expr) -> str:
    """An index expression as text."""
    if isinstance(expr, FloorDiv):
        return f"{_bracketed(expr.args[0])}//{_bracketed(expr.args[1])}"
    return str(expr)


def _bracketed(expr: Expr) -> str:
    return str(expr) if expr.is_Atom else f"({expr})"


def _text(value: Value) -> str:
    if isinstance(value, Number):
        return str(value.value)
    if isinstance(value, Idx):
        return index_text(value.expr)
    if isinstance(value, Hole):
        return value.label
    if isinstance(value, Lookup):
        return _text(value.parts[0])
    if isinstance(value, Load):
        index = ", ".join(map(index_text, value.index))
        return f"{value.tensor.name}[{index}]"
    if isinstance(value, Reduced):
        axes = ", ".join(axis.name for axis in value.axes)
        return f"{value.of.name}({', '.join(map(_text, value.parts))}, axis=[{axes}])"
    if isinstance(value, (Cast, Bits)):
        return f"{_inner(value.parts[0])}.astype({value.dtype!r})"
    if isinstance(value, Choice):
        return f"if_then_else({', '.join(map(_text, value.parts))})"
    assert isinstance(value, Elementwise), value
    sign = _BINARY.get(value.op)
    if sign is None:
        return f"{value.op}({', '.join(map(_text, value.parts))})"
    gap = "" if sign in ("*", "/", "**") else " "
    return f"{gap}{sign}{gap}".join(map(_inner, value.parts))


def _inner(value: Value) -> str:
    plain = isinstance(value, (Number, Load, Choice, Reduced, Cast, Bits, Hole))
    text = _text(value)
    return text if plain or not any(sign in text for sign in " */") or text.endswith(")") else f"({text})"
