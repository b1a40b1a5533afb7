"""Words of ``R`` as Python functions: annotations, which the parser also calls, and operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from smelt.relax.operators import op
from smelt.relax.types import (
    FuncStructInfo,
    ObjectStructInfo,
    PrimStructInfo,
    RelaxError,
    ShapeStructInfo,
    StructInfo,
    TensorStructInfo,
    TupleStructInfo,
)
from smelt.relax.values import PrimValue, ShapeExpr, StringImm, const


def tensor(shape: Any = None, dtype: Any = None, vdevice: Any = None, ndim: int = -1) -> TensorStructInfo:
    """``R.Tensor((2, "n"), "float32")``; a text among the sizes names a variable.

    Raises:
        RelaxError: SM1304, ``ndim`` is no rank, or differs from the shape's.

    >>> print(tensor((2, "n * 2"), "float32"))
    R.Tensor((2, 2*n), dtype="float32")
    """
    if isinstance(shape, str):
        shape, dtype = None, shape
    sizes = _sizes(shape)
    if not isinstance(ndim, int) or ndim < -1:
        raise RelaxError("SM1304", f"ndim={ndim!r}", remedy="ndim is a number of dimensions, or -1")
    if ndim != -1 and isinstance(sizes, list) and len(sizes) != ndim:
        what = f"ndim={ndim} with a shape of {len(sizes)} dimensions"
        raise RelaxError("SM1304", what, remedy="leave ndim out")
    return TensorStructInfo(sizes, dtype, vdevice, ndim=ndim)


def _shape(values: Any = None, ndim: int = -1) -> ShapeStructInfo:
    return ShapeStructInfo(_sizes(values), ndim)


def _prim(dtype: Any = "int64", value: Any = None) -> PrimStructInfo:
    return PrimStructInfo(dtype, None if value is None else _sizes([value])[0])


def _tuple(*fields: Any) -> TupleStructInfo:
    listed = len(fields) == 1 and isinstance(fields[0], (list, tuple))
    return TupleStructInfo([_info(each) for each in (fields[0] if listed else fields)])


def _callable(params: Any = (), ret: Any = ObjectStructInfo, purity: bool = True) -> FuncStructInfo:
    given = params if isinstance(params, Iterable) else [params]
    return FuncStructInfo([_info(each) for each in given], _info(ret), purity)


INFOS: dict[str, Callable[..., StructInfo]] = {
    "Tensor": tensor,
    "Shape": _shape,
    "Prim": _prim,
    "Tuple": _tuple,
    "Callable": _callable,
    **dict.fromkeys(("Object", "Any", "PackedFunc"), ObjectStructInfo),
}
_VALUES = {"const": const, "shape": ShapeExpr, "prim_value": PrimValue, "str": StringImm}


def _info(info: Any) -> StructInfo:
    """The struct info of an annotation; ``R.Tensor`` is ``R.Tensor()``."""
    found: StructInfo = info() if callable(info) else info
    return found


def _sizes(shape: Any) -> Any:
    from smelt.relax.parse import size_in

    if isinstance(shape, (bool, int, float)):
        raise RelaxError("SM1304", "a shape is a tuple or a list", remedy="write (2, 3)")
    if not isinstance(shape, (list, tuple)):
        return shape
    return [size_in(each) if isinstance(each, str) else each for each in shape]


def __getattr__(name: str) -> Any:
    """``R.Tensor`` and other annotations, ``R.const``, or an operator."""
    return INFOS.get(name) or _VALUES.get(name) or getattr(op, name)
