"""What TVM's functions and blocks show of themselves, where tests look at it: parameters, and regions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from smelt.nest.ir import Param
from smelt.nest.primitives.layouts import Position
from smelt.nest.scopes import reads, writes
from smelt.script import PrimFunc
from smelt.script.words import DTYPES
from smelt.te.index import Idx
from smelt.tir.references import BlockView
from tvm.ir import DataType, PrimType


def _size(expr: Any) -> Any:
    return int(expr) if expr.is_Integer else Idx(expr)


def _param(param: Param) -> Any:
    dtype = DataType(DTYPES[param.dtype])
    shape = tuple(map(_size, param.shape))
    about = {"name": param.name, "dtype": dtype, "shape": shape}
    found = SimpleNamespace(**about, ty=SimpleNamespace(dtype=dtype, shape=shape))
    found.same_as = lambda other: found is other
    return found


def _params(func: PrimFunc) -> list[Any]:
    """Buffers, then sizes."""
    return [*map(_param, func.kernel.params), *map(_size, func.kernel.sizes)]


def _regions(of: Any) -> Any:
    return property(
        lambda view: [SimpleNamespace(buffer=SimpleNamespace(name=name)) for name in of(view.stmt)]
    )


PrimFunc.params = property(_params)
BlockView.reads, BlockView.writes = _regions(reads), _regions(writes)
PrimFunc.same_as = lambda func, other: func is other
Position.ty = property(lambda position: PrimType("int64"))
