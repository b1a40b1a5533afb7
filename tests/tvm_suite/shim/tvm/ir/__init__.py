"""``tvm.ir``: modules, ranges, types, and whether two programs are one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from smelt import relax
from smelt.relax.operators import AtenOperator, Operator
from smelt.relax.values import CALL_TIR
from smelt.script import GlobalVar, IRModule, PrimFunc
from smelt.te import Range as _Range
from tvm.ir.comparing import equal

PrimType = relax.PrimStructInfo


class _Operators(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return value is CALL_TIR or isinstance(value, (Operator, AtenOperator))


class Op(metaclass=_Operators):
    """TVM's register of operators: smelt's table, which has no attributes to set."""

    @staticmethod
    def get(name: str) -> Any:
        return getattr(relax.op, name.removeprefix("relax."))


class DummyGlobalInfo:
    """Something that a module says of itself, which means nothing."""


@dataclass(frozen=True)
class VDevice:
    """A device that a script names."""

    target: Any = "llvm"
    vdevice_id: int = 0
    memory_scope: str = "global"


class DataType(str):
    """A dtype: its name, which has a name."""

    __slots__ = ()

    @property
    def dtype(self) -> str:
        return str(self)


class Range(_Range):
    """``Range(begin, end)``, or ``Range(extent)``."""

    def __init__(self, begin: Any, end: Any = None) -> None:
        super().__init__(*((0, begin) if end is None else (begin, end - begin)))

    @staticmethod
    def from_min_extent(min_value: Any, extent: Any) -> _Range:
        return _Range(min_value, extent)


def _from_expr(function: Any) -> IRModule:
    """A module of one function, under its global symbol."""
    name = getattr(function, "attrs", {}).get("global_symbol")
    return IRModule({name or "main": function})


IRModule.from_expr = staticmethod(_from_expr)


def structural_equal(lhs: Any, rhs: Any, map_free_vars: bool = False) -> bool:
    """Whether two programs are the same but for names; other things, whether they are equal."""
    del map_free_vars
    return equal(lhs, rhs)


def assert_structural_equal(lhs: Any, rhs: Any, map_free_vars: bool = False) -> None:
    """Programs of relax may be the same by running them (``tvm.relax.running``).

    Raises:
        ValueError: they are not.
    """
    from tvm.relax import running

    if running.knows(lhs, rhs):
        running.assert_same(lhs, rhs)
    elif not structural_equal(lhs, rhs, map_free_vars):
        raise ValueError(f"StructuralEqual check failed:\n{lhs}\nand\n{rhs}")


__all__ = [
    *("GlobalVar", "IRModule", "Op", "PrimFunc", "PrimType", "Range", "assert_structural_equal"),
    "structural_equal",
]
