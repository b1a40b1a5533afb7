"""Struct info: the static knowledge about a value (TVM also calls it type)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr as Size
from sympy import Symbol

from smelt.errors import SmeltError
from smelt.records import dataclass
from smelt.symbolic import FloorDiv, as_expr


class RelaxError(SmeltError, RuntimeError):
    """A refusal by `smelt.relax`, with the reason and a remedy."""


def size_of(value: Any) -> Size:
    """A size as SymPy: from numbers, symbols, SymInts, objects with an ``expr`` (te's indices, PrimValue).

    >>> size_of(3), size_of(Symbol("n"))
    (3, n)
    """
    if isinstance(value, Size):
        if not value.has(sympy.floor):
            return value
        found: Size = value.replace(sympy.floor, lambda each: FloorDiv(*each.as_numer_denom()))
        return found
    for name in ("expr", "value"):
        inner = getattr(value, name, None)
        if isinstance(inner, (Size, int)):
            return size_of(inner)
    if isinstance(value, (int, torch.SymInt)) or hasattr(value, "__index__"):
        return as_expr(value if isinstance(value, torch.SymInt) else int(value))
    raise RelaxError("SM1304", f"{value!r} is no size", remedy="give numbers, or variables (te.var, tir.Var)")


def plain(size: Any) -> Any:
    """A size as a Python number if it is constant, else unchanged."""
    return int(size) if isinstance(size, sympy.Integer) else size


def dtype_name(dtype: Any) -> str | None:
    """TVM's name of a dtype: ``"float32"``, ``"bool"``; None for an unknown dtype.

    >>> dtype_name(torch.int64), dtype_name("float16"), dtype_name("void")
    ('int64', 'float16', None)
    """
    if dtype is None or dtype in ("", "void"):
        return None
    inner = getattr(dtype, "dtype", None)
    if inner is not None and not isinstance(dtype, str):
        dtype = inner
    name = str(dtype).removeprefix("torch.")
    if not isinstance(getattr(torch, name, None), torch.dtype):
        raise RelaxError(
            "SM1304", f"{dtype!r} is no dtype", remedy="dtypes are named as float32, int64, bool"
        )
    return name


def torch_dtype(name: Any) -> torch.dtype:
    """The torch dtype of a name."""
    found = dtype_name(name)
    if found is None:
        raise RelaxError("SM1304", "the dtype is not known", remedy="write the dtype of the tensor")
    value: torch.dtype = getattr(torch, found)
    return value


class StructInfo:
    """The static knowledge about a value. ``StructInfo`` and ``Type`` are the same."""

    __slots__ = ()

    def is_base_of(self, other: StructInfo) -> bool:
        """Whether every value of ``other`` is a value of this."""
        return isinstance(self, ObjectStructInfo) or self == other

    def __str__(self) -> str:
        from smelt.relax.text import annotation

        return annotation(self)


@dataclass(frozen=True, slots=True)
class ObjectStructInfo(StructInfo):
    """Any value."""


@dataclass(frozen=True, slots=True)
class PrimStructInfo(StructInfo):
    """A number that is no tensor: its dtype, and its value if known."""

    dtype: str
    value: Any = None


@dataclass(frozen=True, slots=True, init=False)
class ShapeStructInfo(StructInfo):
    """A shape: its sizes if known, else its rank."""

    values: tuple[Size, ...] | None
    ndim: int

    def __init__(self, values: Iterable[Any] | None = None, ndim: int = -1) -> None:
        found = None if values is None else tuple(size_of(each) for each in values)
        object.__setattr__(self, "values", found)
        object.__setattr__(self, "ndim", ndim if found is None else len(found))


@dataclass(frozen=True, slots=True, init=False)
class TensorStructInfo(StructInfo):
    """A tensor: its sizes if known, else its rank; its dtype, None if unknown.

    >>> TensorStructInfo((2, 3), "float32").shape.values
    (2, 3)
    """

    sizes: tuple[Size, ...] | None
    dtype: str | None
    ndim: int
    shape_var: Any

    def __init__(
        self,
        shape: Any = None,
        dtype: Any = "float32",
        vdevice: Any = None,
        *,
        ndim: int = -1,
        span: Any = None,
    ) -> None:
        if vdevice is not None:
            raise RelaxError("SM1304", f"a tensor on {vdevice}", remedy="smelt compiles for the CPU")
        if isinstance(shape, str):
            shape, dtype = None, shape
        sizes, var = None, None
        if shape is not None:
            given = getattr(shape, "values", shape)
            if callable(given) or not isinstance(given, (Sequence, Iterable)):
                var, known = shape, getattr(shape, "struct_info", None)
                ndim = known.ndim if isinstance(known, ShapeStructInfo) else ndim
            else:
                sizes = tuple(size_of(each) for each in given)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "dtype", dtype_name(dtype))
        object.__setattr__(self, "ndim", ndim if sizes is None else len(sizes))
        object.__setattr__(self, "shape_var", var)

    @property
    def shape(self) -> Any:
        """The sizes as a ShapeExpr; None if unknown."""
        from smelt.relax.values import ShapeExpr

        return self.shape_var if self.sizes is None else ShapeExpr(self.sizes)

    def is_base_of(self, other: StructInfo) -> bool:
        if not isinstance(other, TensorStructInfo):
            return False
        if self.dtype is not None and self.dtype != other.dtype:
            return False
        if self.sizes is not None:
            return self.sizes == other.sizes
        return self.ndim in (-1, other.ndim)


@dataclass(frozen=True, slots=True, init=False)
class TupleStructInfo(StructInfo):
    """Several values."""

    fields: tuple[StructInfo, ...]

    def __init__(self, fields: Iterable[StructInfo] = ()) -> None:
        object.__setattr__(self, "fields", tuple(fields))

    def is_base_of(self, other: StructInfo) -> bool:
        if not isinstance(other, TupleStructInfo) or len(other.fields) != len(self.fields):
            return False
        return all(mine.is_base_of(theirs) for mine, theirs in zip(self.fields, other.fields))


@dataclass(frozen=True, slots=True, init=False)
class FuncStructInfo(StructInfo):
    """A function: the struct info of its parameters and of its result."""

    params: tuple[StructInfo, ...]
    ret: StructInfo

    def __init__(self, params: Iterable[StructInfo], ret: StructInfo, purity: bool = True) -> None:
        object.__setattr__(self, "params", tuple(params))
        object.__setattr__(self, "ret", ret)


def symbols_of(info: StructInfo | None) -> list[Symbol]:
    """The variables among the sizes, in order of first occurrence.

    >>> symbols_of(TensorStructInfo((Symbol("n"), 3)))
    [n]
    """
    found: dict[Symbol, None] = {}
    if isinstance(info, TensorStructInfo):
        sizes: Iterable[Any] = info.sizes or ()
    elif isinstance(info, ShapeStructInfo):
        sizes = info.values or ()
    elif isinstance(info, PrimStructInfo):
        sizes = [info.value] if isinstance(info.value, Size) else ()
    elif isinstance(info, TupleStructInfo):
        return list(dict.fromkeys(each for field in info.fields for each in symbols_of(field)))
    else:
        return []
    for size in sizes:
        for symbol in sorted(size.free_symbols, key=str):
            found[symbol] = None  # type: ignore[index]
    return list(found)


def is_determined(info: StructInfo) -> bool:
    """Whether dtypes and sizes of all of its tensors are known."""
    if isinstance(info, TupleStructInfo):
        return all(is_determined(each) for each in info.fields)
    if isinstance(info, TensorStructInfo):
        return info.sizes is not None and info.dtype is not None
    if isinstance(info, ShapeStructInfo):
        return info.values is not None
    if isinstance(info, PrimStructInfo):
        return info.value is not None
    return not isinstance(info, ObjectStructInfo)
