"""``tvm.te``: smelt's, with TVM's kinds of errors and of dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import smelt.te as _te
from smelt.te import *
from smelt.te import (
    ComputeOp,
    IterVar,
    PlaceholderOp,
    Tensor,
    all,
    any,
    argmax,
    argmin,
    comm_reducer,
    extern,
    extern_primfunc,
    max,
    min,
    placeholder,
    prod,
    reduce_axis,
    scan,
    size_var,
    sum,
    tensor,
    var,
)
from tvm.error import told
from tvm.ir import DataType, PrimType

compute, create_prim_func = told(_te.compute), told(_te.create_prim_func)


@contextmanager
def tag_scope(tag: str) -> Iterator[None]:
    """smelt's, with errors of TVM's kind."""
    scope = _te.tag_scope(tag)
    told(scope.__enter__)()
    try:
        yield
    finally:
        scope.__exit__(None, None, None)


Tensor.dtype = property(lambda self: DataType(_te.tensor.NAMES[self.kind]))
_te.Value.dtype = property(lambda self: DataType(_te.tensor.NAMES[self.kind]))
_te.Value.ty = property(lambda self: PrimType(self.dtype))
