"""``tvm.tirx``: functions of loops and expressions."""

from __future__ import annotations

from typing import Any

from smelt import te as _te
from smelt.script import PrimFunc
from smelt.te import *
from smelt.te import IterVar, Value, all, any, cast, const, if_then_else, max, max_value, min, min_value, sum
from smelt.te import Var as _Var
from smelt.te.functions import select as Select
from smelt.tir import ScheduleError, call_packed
from tvm.ir import IRModule
from tvm.tirx.function import TensorIntrin

Expr = PrimExpr = Value


def Var(name: str, dtype: Any = "int32", span: Any = None, ty: Any = None) -> _Var:
    """A size by a name."""
    return _te.var(name, getattr(ty or dtype, "dtype", ty or dtype), span)


SizeVar = Var


def IntImm(dtype: Any, value: Any, span: Any = None) -> Any:
    """An integer of a dtype."""
    return const(int(value), dtype)


def FloatImm(dtype: Any, value: Any, span: Any = None) -> Any:
    """A floating number of a dtype."""
    return const(float(value), dtype)


def Cast(dtype: Any, value: Any, span: Any = None) -> Any:
    """A value as another dtype."""
    return cast(dtype, value)


from tvm.tirx import expr, function, stmt, views
from tvm.tirx.stmt import (
    BufferRegion,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    SBlock,
    SBlockRealize,
    SeqStmt,
)


def is_buffer_var(value: Any) -> bool:
    """Whether a parameter is a buffer."""
    return hasattr(value, "shape")


__all__ = [
    *("BufferRegion", "BufferStore", "Evaluate", "For", "IfThenElse", "SBlock"),
    *("SBlockRealize", "SeqStmt", "is_buffer_var", "stmt"),
    *("Cast", "Expr", "FloatImm", "IRModule", "IntImm", "IterVar", "PrimExpr", "PrimFunc", "ScheduleError"),
    *("Select", "SizeVar", "TensorIntrin", "Var", "all", "any", "call_packed", "cast", "const"),
    *("expr", "function", "if_then_else", "max", "max_value", "min", "min_value", "sum"),
]
