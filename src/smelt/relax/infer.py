"""Inference of struct info: operators run on fake tensors, whose sizes may be variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeGuard

import torch
from sympy import Symbol
from torch._dynamo.source import ConstantSource
from torch._subclasses import DynamicOutputShapeException, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from smelt.relax.evaluate import Evaluator
from smelt.relax.types import (
    FuncStructInfo,
    ObjectStructInfo,
    PrimStructInfo,
    RelaxError,
    ShapeStructInfo,
    StructInfo,
    TensorStructInfo,
    TupleStructInfo,
    is_determined,
    symbols_of,
    torch_dtype,
)
from smelt.relax.values import (
    CALL_TIR,
    Call,
    Constant,
    ExternFunc,
    Function,
    If,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    Tuple,
    Var,
)
from smelt.script.module import GlobalVar
from smelt.symbolic import as_expr

_HINTS = (503, 509, 521, 523, 541, 547, 557, 563, 569, 571, 577, 587, 593, 599, 601, 607, 613, 617, 619, 631)
"""Hints for size variables while tracing: all are different, none is a usual size."""


class FakeSizes:
    """Fake tensors for struct info; size variables are symbols of one ShapeEnv.

    ``of_data``: whether operators may return data-dependent sizes.
    """

    def __init__(
        self, symbols: Iterable[Symbol] = (), taken: Iterable[int] = (), of_data: bool = True
    ) -> None:
        free = [hint for hint in reversed(_HINTS) if hint not in set(taken)]  # kernels come after images
        symbols = list(symbols)
        self.mode = FakeTensorMode(
            shape_env=ShapeEnv(duck_shape=False) if symbols or of_data else None, allow_non_fake_inputs=True
        )
        self.sizes: dict[Symbol, torch.SymInt] = {}
        self.names: dict[Any, Symbol] = {}
        for number, symbol in enumerate(symbols):
            hint = free[number % len(free)] + 640 * (number // len(free))
            made = self._size(symbol, hint)
            self.sizes[symbol] = made
            self.names[as_expr(made)] = symbol

    def _size(self, symbol: Symbol, hint: int) -> torch.SymInt:
        env = self.mode.shape_env
        assert env is not None
        source = ConstantSource(f"size_{symbol.name}")
        made = env.create_symbol(hint, source, DimDynamic.DYNAMIC, None)
        found = env.create_symintnode(made, hint=hint, source=source)
        assert isinstance(found, torch.SymInt)
        return found

    def fake(self, info: StructInfo) -> Any:
        """A fake value with this struct info."""
        if isinstance(info, TensorStructInfo):
            assert info.sizes is not None
            with self.mode:
                return torch.empty([self._number(each) for each in info.sizes], dtype=torch_dtype(info.dtype))
        if isinstance(info, TupleStructInfo):
            return tuple(self.fake(each) for each in info.fields)
        if isinstance(info, ShapeStructInfo):
            return tuple(self._number(each) for each in info.values or ())
        if isinstance(info, PrimStructInfo) and info.value is not None:
            return self._number(info.value)
        raise RelaxError("SM1304", f"nothing is known of a value: {info}", remedy="give it a struct info")

    def _number(self, size: Any) -> Any:
        evaluator = Evaluator()
        evaluator.sizes = dict(self.sizes)
        return evaluator.size(size)

    def info(self, value: Any) -> StructInfo:
        """The struct info of a value."""
        if isinstance(value, torch.Tensor):
            sizes = [self.named(each) for each in value.shape]
            known = set(self.names.values())
            if self.names and not all(size.free_symbols <= known for size in sizes):
                return TensorStructInfo(None, value.dtype, ndim=len(sizes))
            return TensorStructInfo(sizes, value.dtype)
        if isinstance(value, (list, tuple)):
            if value and all(isinstance(each, (int, torch.SymInt)) for each in value):
                return ShapeStructInfo([self.named(each) for each in value])
            return TupleStructInfo([self.info(each) for each in value])
        if isinstance(value, (bool, float, int, torch.SymInt)):
            kinds: dict[type, str] = {bool: "bool", float: "float64"}
            kind = kinds.get(type(value), "int64")
            return PrimStructInfo(kind, value if kind != "int64" else self.named(value))
        return ObjectStructInfo()

    def named(self, size: Any) -> Any:
        """A size in terms of the program's own variables."""
        return as_expr(size).xreplace(self.names)


def infer(expr: Any, functions: Any = None) -> StructInfo:
    """The struct info of an expression; variables and constants have their own.

    Raises:
        RelaxError: SM1303, an operator refuses its arguments.
    """
    if isinstance(expr, Tuple):
        return TupleStructInfo([known(each) for each in expr.fields])
    if isinstance(expr, SeqExpr):
        return known(expr.body)
    if isinstance(expr, If):
        return _joined(known(expr.true_branch), known(expr.false_branch))
    if not isinstance(expr, Call):
        return ObjectStructInfo()
    if expr.op is CALL_TIR:
        return expr.sinfo_args[0]
    if isinstance(expr.op, (GlobalVar, Function, ExternFunc, Var)):
        if expr.sinfo_args:
            return expr.sinfo_args[0]
        called = (functions or {}).get(expr.op.name_hint) if isinstance(expr.op, GlobalVar) else expr.op
        info = called.struct_info if isinstance(called, (Function, Var)) else None
        return info.ret if isinstance(info, FuncStructInfo) else ObjectStructInfo()
    return _of_operator(expr)


def _joined(a: StructInfo, b: StructInfo) -> StructInfo:
    """The common struct info of two branches' values."""
    if a == b:
        return a
    if isinstance(a, TensorStructInfo) and isinstance(b, TensorStructInfo):
        dtype, ndim = (None if a.dtype != b.dtype else a.dtype), (a.ndim if a.ndim == b.ndim else -1)
        return TensorStructInfo(None, dtype, ndim=ndim)
    if isinstance(a, TupleStructInfo) and isinstance(b, TupleStructInfo) and len(a.fields) == len(b.fields):
        return TupleStructInfo(map(_joined, a.fields, b.fields))
    return ObjectStructInfo()


def known(value: Any) -> StructInfo:
    """The struct info of an expression, or of a plain Python value."""
    info = getattr(value, "struct_info", None)
    return info if isinstance(info, StructInfo) else ObjectStructInfo()


def leaves_of(call: Call) -> list[Any]:
    """The leaves of a call's arguments: elements of lists and tuples, and sizes of shapes."""
    found = _leaves([*call.args, *call.attrs.values()])
    for each in list(found):
        if isinstance(each, (ShapeExpr, PrimValue)):
            found += each.values if isinstance(each, ShapeExpr) else [each.value]
    return found


def _leaves(args: Any) -> list[Any]:
    if isinstance(args, (list, tuple)):
        return [leaf for each in args for leaf in _leaves(each)]
    if isinstance(args, Tuple):
        return [leaf for each in args.fields for leaf in _leaves(each)]
    return [args]


def _of_operator(call: Call) -> StructInfo:
    leaves = _leaves([*call.args, *call.attrs.values()])
    infos = [known(leaf) for leaf in leaves if hasattr(leaf, "struct_info")]
    symbols = list(dict.fromkeys(s for info in infos for s in symbols_of(info)))
    for leaf in leaves:
        symbols += [s for s in getattr(leaf, "free_symbols", ()) if s not in symbols]
    if not all(is_determined(info) or is_scalar(info) for info in infos):
        return _roughly(call, 3)
    try:
        return _with(call, FakeSizes(symbols, _numbers(infos)) if symbols else _static())
    except RelaxError as error:
        if not all(is_determined(info) for info in infos):
            return _roughly(call, 3)
        if isinstance(error.__cause__, DynamicOutputShapeException):
            return _roughly_sized(_with(call, FakeSizes(symbols)))
        if not symbols:
            raise
    for number in (*_numbers(infos), 3):  # they may be equal at run time: their rank is known then
        found = _roughly(call, number)
        if not isinstance(found, ObjectStructInfo):
            return found
    return _with(call, FakeSizes(symbols))


def is_scalar(info: StructInfo) -> TypeGuard[PrimStructInfo]:
    """Whether it is a number without a known value."""
    return isinstance(info, PrimStructInfo) and info.value is None


@lru_cache(maxsize=1)
def _static() -> FakeSizes:
    return FakeSizes(of_data=False)


def _roughly_sized(info: StructInfo) -> StructInfo:
    """The struct info of values with data-dependent sizes: dtypes and ranks."""
    if isinstance(info, TupleStructInfo):
        return TupleStructInfo([_roughly_sized(each) for each in info.fields])
    if isinstance(info, TensorStructInfo) and symbols_of(info):
        return TensorStructInfo(None, info.dtype, ndim=info.ndim)
    return info


def _numbers(infos: Sequence[StructInfo]) -> list[int]:
    tensors = [info for info in infos if isinstance(info, TensorStructInfo) and info.sizes is not None]
    return list(dict.fromkeys(int(s) for info in tensors for s in info.sizes or () if s.is_number))


def _with(call: Call, sizes: FakeSizes) -> StructInfo:
    evaluator = _Fakes(sizes)
    evaluator.sizes = dict(sizes.sizes)
    with sizes.mode, torch.no_grad():
        return sizes.info(evaluator.value(call))


class _Fakes(Evaluator):
    """An evaluator in which variables and constants are fake tensors."""

    def __init__(self, sizes: FakeSizes) -> None:
        super().__init__()
        self.fakes = sizes

    def value(self, expr: Any) -> Any:
        if isinstance(expr, Constant) and expr.number is not None:
            return torch.full([], expr.number, dtype=expr.data.dtype)
        if isinstance(expr, (Var, Constant)):
            info = expr.struct_info
            if is_scalar(info):
                floats = info.dtype.startswith("float")
                return 1.0 if floats else self.fakes.fake(TensorStructInfo((), info.dtype))
            return self.fakes.fake(info)
        return super().value(expr)


def _roughly(call: Call, number: int) -> StructInfo:
    """Rank and dtype for unknown sizes, inferred with ``number`` for each of them."""
    sizes = FakeSizes()
    unknown_rank = unknown_dtype = False

    def fake(info: StructInfo) -> Any:
        nonlocal unknown_rank, unknown_dtype
        if isinstance(info, TupleStructInfo):
            return tuple(fake(each) for each in info.fields)
        if isinstance(info, TensorStructInfo):
            unknown_rank |= info.ndim < 0
            unknown_dtype |= info.dtype is None
            whole = info.sizes if info.sizes is not None else [None] * max(info.ndim, 0)
            shape = [int(each) if each is not None and each.is_number else number for each in whole]
            return torch.empty(shape, dtype=torch_dtype(info.dtype or "float32"))
        if isinstance(info, ShapeStructInfo):
            return (
                (number,) * len(info.values or ())
                if info.values is not None
                else (number,) * max(info.ndim, 0)
            )
        if isinstance(info, PrimStructInfo):
            return number
        raise RelaxError("SM1304", f"nothing is known of a value: {info}")

    class Rough(Evaluator):
        def value(self, expr: Any) -> Any:
            return fake(expr.struct_info) if isinstance(expr, (Var, Constant)) else super().value(expr)

        def size(self, size: Any) -> Any:
            return number if getattr(size, "free_symbols", None) else super().size(size)

    try:
        with sizes.mode, torch.no_grad():
            found = sizes.info(Rough().value(call))
    except RelaxError:
        return ObjectStructInfo()

    def forget(info: StructInfo) -> StructInfo:
        if isinstance(info, TupleStructInfo):
            return TupleStructInfo([forget(each) for each in info.fields])
        if not isinstance(info, TensorStructInfo):
            return ObjectStructInfo()
        return TensorStructInfo(
            None, None if unknown_dtype else info.dtype, ndim=-1 if unknown_rank else info.ndim
        )

    return forget(found)
