"""Tensor expressions: a tensor's elements as a function of their index.

    A = te.placeholder((128, 128), name="A")
    k = te.reduce_axis((0, 128), name="k")
    C = te.compute((128, 128), lambda i, j: te.sum(A[i, k] * A[k, j], axis=k), name="C")
    func = te.create_prim_func([A, C])

An expression becomes a loop function of `smelt.loops.ir`; every index is proved to be inside of its tensor.
"""

from importlib import import_module as _import_module
from typing import Any as _Any

from smelt.te import tag as tag
from smelt.te.create import create_prim_func as create_prim_func
from smelt.te.functions import *  # noqa: F403
from smelt.te.index import IterVar as IterVar
from smelt.te.index import Range as Range
from smelt.te.index import Var as Var
from smelt.te.index import reduce_axis as reduce_axis
from smelt.te.index import size_var as size_var
from smelt.te.index import var as var
from smelt.te.operators import as_torch as as_torch
from smelt.te.operators import operator as operator
from smelt.te.reductions import argmax as argmax
from smelt.te.reductions import argmin as argmin
from smelt.te.reductions import comm_reducer as comm_reducer
from smelt.te.reductions import max as max
from smelt.te.reductions import min as min
from smelt.te.reductions import prod as prod
from smelt.te.reductions import sum as sum
from smelt.te.statements import ExternOp as ExternOp
from smelt.te.statements import ScanOp as ScanOp
from smelt.te.statements import extern as extern
from smelt.te.statements import extern_primfunc as extern_primfunc
from smelt.te.statements import scan as scan
from smelt.te.tag import tag_scope as tag_scope
from smelt.te.tensor import ComputeOp as ComputeOp
from smelt.te.tensor import PlaceholderOp as PlaceholderOp
from smelt.te.tensor import Tensor as Tensor
from smelt.te.tensor import TensorSlice as TensorSlice
from smelt.te.tensor import compute as compute
from smelt.te.tensor import placeholder as placeholder
from smelt.te.value import Value as Value


def __getattr__(name: str) -> _Any:
    """The search is a floor above: it is imported on first use."""
    if name in ("tune", "tune_tir"):
        return getattr(_import_module("smelt.tir.search"), name)
    raise AttributeError(f"module 'smelt.te' has no attribute {name!r}")
