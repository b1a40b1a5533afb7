"""The evaluator of relax functions, on real tensors, fake tensors and those of a tracer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from sympy import Expr as Size
from sympy import Symbol
from torch.utils import _pytree as pytree
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from smelt.errors import describe
from smelt.relax.rewrite import variables
from smelt.relax.types import (
    PrimStructInfo,
    RelaxError,
    ShapeStructInfo,
    StructInfo,
    TensorStructInfo,
    TupleStructInfo,
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
    MatchCast,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    StringImm,
    Tuple,
    TupleGetItem,
    Var,
    parts_of,
)
from smelt.script.module import GlobalVar

CallTir = Callable[[Any, Sequence[Any], StructInfo, "Evaluator"], Any]
"""Runs a PrimFunc: arguments are the function, tensors and sizes, and the result's struct info."""


class Evaluator:
    """One run: ``env`` has the values of variables, ``sizes`` those of size variables.

    ``functions``: the module's functions, by name; ``constant`` maps a constant to its value.
    """

    def __init__(
        self,
        functions: Mapping[str, Any] | None = None,
        call_tir: CallTir | None = None,
        constant: Callable[[Constant], Any] = lambda each: each.data,
    ) -> None:
        self.functions, self.call_tir, self.constant = dict(functions or {}), call_tir, constant
        self.env: dict[Var, Any] = {}
        self.sizes: dict[Symbol, Any] = {}

    def function(self, function: Function, args: Sequence[Any]) -> Any:
        """The function's result for the values ``args``; its variables are local."""
        if len(args) != len(function.params):
            raise RelaxError("SM1305", f"{len(args)} arguments, {len(function.params)} parameters")
        inner = Evaluator(self.functions, self.call_tir, self.constant)
        for param, value in zip(function.params, args):
            inner.env[param] = value
            inner.match(value, param.struct_info, f"parameter {param.name_hint}", bind=False)
        for param, value in zip(function.params, args):
            inner.match(value, param.struct_info, f"parameter {param.name_hint}")
        return inner.value(function.body)

    def value(self, expr: Any) -> Any:
        """The value of an expression; other objects are values themselves, except for expressions in them."""
        if isinstance(expr, Var):
            if expr not in self.env:
                raise RelaxError("SM1302", f"{expr.name_hint} has no value here", remedy="bind it first")
            return self.env[expr]
        if isinstance(expr, Constant):
            return self.constant(expr)
        if isinstance(expr, ShapeExpr):
            return tuple(self.size(each) for each in expr.values)
        if isinstance(expr, PrimValue):
            return self.size(expr.value)
        if isinstance(expr, StringImm):
            return expr.value
        if isinstance(expr, Tuple):
            return tuple(self.value(each) for each in expr.fields)
        if isinstance(expr, TupleGetItem):
            return self.value(expr.tuple_value)[expr.index]
        if isinstance(expr, Call):
            return self._call(expr)
        if isinstance(expr, SeqExpr):
            return self._sequence(expr)
        if isinstance(expr, If):
            return self._either(expr)
        if isinstance(expr, (list, tuple)):
            return type(expr)(self.value(each) for each in expr)
        return self.size(expr)

    def size(self, size: Any) -> Any:
        """A size as a number; other objects are unchanged."""
        if not isinstance(size, Size):
            return size
        unknown = size.free_symbols - self.sizes.keys()
        if unknown:
            names = ", ".join(sorted(map(str, unknown)))
            raise RelaxError(
                "SM1302", f"size {size}: nothing binds {names}", remedy="match_cast a tensor of that size"
            )
        if size.is_number:
            return int(size) if size.is_integer else float(size)
        if isinstance(size, Symbol):
            return self.sizes[size]
        return sympy_interp(PythonReferenceAnalysis, self.sizes, size)

    def _sequence(self, body: SeqExpr) -> Any:
        for binding in body.bindings:
            value = self.value(binding.value)
            if isinstance(binding, MatchCast):
                self.match(value, binding.struct_info, f"match_cast of {binding.var.name_hint}")
            self.env[binding.var] = value
        return self.value(body.body)

    def _either(self, expr: If) -> Any:
        """The value of the branch that the condition selects.

        All variables that branches use are operands of one call.
        """
        both = [expr.true_branch, expr.false_branch]
        shared = [var for var in variables(both) if var in self.env]
        constants = [each for each in constants_of(both, self.functions) if each.number is None]
        outer = [self.env[each] for each in shared], [*map(self.constant, constants)], [*self.sizes.values()]
        leaves, spec = pytree.tree_flatten(outer)
        moving = [isinstance(each, (torch.Tensor, torch.SymInt)) for each in leaves]
        specs: list[pytree.TreeSpec] = []

        def branch(body: SeqExpr) -> Callable[..., tuple[torch.Tensor, ...]]:
            def run(*given: Any) -> tuple[torch.Tensor, ...]:
                left = iter(given)
                inside = [next(left) if moves else each for each, moves in zip(leaves, moving)]
                values, held, sizes = pytree.tree_unflatten(inside, spec)
                stand_ins = {id(each): value for each, value in zip(constants, held)}

                def constant(each: Constant) -> Any:
                    return stand_ins[id(each)] if id(each) in stand_ins else self.constant(each)

                inner = Evaluator(self.functions, self.call_tir, constant)
                inner.env, inner.sizes = dict(zip(shared, values)), dict(zip(self.sizes, sizes))
                found, found_spec = pytree.tree_flatten(inner.value(body))
                specs.append(found_spec)
                return tuple(each.clone() for each in found)

            return run

        operands = tuple(each for each, moves in zip(leaves, moving) if moves)
        results = torch.ops.higher_order.cond(self.value(expr.cond), *map(branch, both), operands)
        return pytree.tree_unflatten(results, specs[-1])

    def _call(self, call: Call) -> Any:
        op = call.op
        if op is CALL_TIR:
            function = self._named(call.args[0])
            assert self.call_tir is not None
            args = [self.value(each) for each in call.args[1].fields]
            for more in call.args[2:]:
                args += self.value(more)
            return self.call_tir(function, args, call.sinfo_args[0], self)
        if isinstance(op, (GlobalVar, Function)):
            function = self._named(op) if isinstance(op, GlobalVar) else op
            return self.function(function, [self.value(each) for each in call.args])
        if isinstance(op, ExternFunc):
            what = f"{op.global_symbol} is known by name only"
            raise RelaxError("SM1306", what, remedy="call a function of the module, or an operator")
        args = [self.value(each) for each in call.args]
        attrs = {name: self.value(each) for name, each in call.attrs.items()}
        if getattr(op, "numbers", False):
            args = _with_numbers(call.args, args)
        try:
            return op.run(*args, **attrs)
        except RelaxError:
            raise
        except Exception as error:
            raise refused(op, args, error) from error

    def _named(self, var: GlobalVar) -> Any:
        if var.name_hint not in self.functions:
            there = ", ".join(self.functions) or "none"
            raise RelaxError("SM1306", f"no function {var.name_hint!r}", why=f"there are: {there}")
        return self.functions[var.name_hint]

    # -- checks of struct info -------------------------------------------------------------------------------

    def match(self, value: Any, info: StructInfo, what: str, bind: bool = True) -> None:
        """Check a value against struct info; size variables are bound to their numbers.

        ``bind`` False: only sizes that are a single variable are bound, and nothing is checked.
        """
        if isinstance(info, TupleStructInfo):
            for number, each in enumerate(info.fields):
                self.match(value[number], each, f"{what}[{number}]", bind)
            return
        if isinstance(info, TensorStructInfo):
            if bind:
                _check_tensor(value, info, what)
            if info.sizes is not None:
                self._match_sizes(value.shape, info.sizes, what, bind)
        elif isinstance(info, ShapeStructInfo) and info.values is not None:
            self._match_sizes(value, info.values, what, bind)
        elif isinstance(info, PrimStructInfo) and isinstance(info.value, Size):
            self._match_sizes([value], [info.value], what, bind)

    def _match_sizes(self, have: Sequence[Any], want: Sequence[Size], what: str, bind: bool) -> None:
        if bind and len(have) != len(want):
            raise RelaxError(
                "SM1305", f"{what} has {len(have)} dimensions", why=f"it should have {len(want)}"
            )
        for dim, (number, size) in enumerate(zip(have, want)):
            if isinstance(size, Symbol) and size not in self.sizes:
                self.sizes[size] = number
            elif bind and (expected := self.size(size)) is not number and not _equal(number, expected):
                raise RelaxError(
                    "SM1305",
                    f"dimension {dim} of {what} is {number}",
                    why=f"it should be {size} = {expected}",
                )


def constants_of(value: Any, functions: Mapping[str, Any]) -> list[Constant]:
    """The tensors held by an expression and by the functions that it calls, in order."""
    found: dict[int, Constant] = {}
    seen: set[int] = set()

    def look(value: Any) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Constant):
            found[id(value)] = value
        elif isinstance(value, GlobalVar):
            look(functions.get(value.name_hint))
        elif isinstance(value, Function):
            look(value.body)
        else:
            for each in parts_of(value):
                look(each)

    look(value)
    return list(found.values())


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b)


def _with_numbers(exprs: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Constants without dimensions as Python numbers, if an adjacent tensor argument has their dtype."""
    scalars = [isinstance(each, Constant) and each.data.dim() == 0 for each in exprs]
    tensors = [each for each, scalar in zip(args, scalars) if isinstance(each, torch.Tensor) and not scalar]
    dtypes = {each.dtype for each in tensors if each.dim() > 0}
    return [
        expr.number if scalar and expr.data.dtype in dtypes else value
        for expr, value, scalar in zip(exprs, args, scalars)
    ]


def _check_tensor(value: Any, info: TensorStructInfo, what: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise RelaxError(
            "SM1305", f"{what} is a {type(value).__name__}", why=f"it should be a tensor: {info}"
        )
    if info.dtype is not None and value.dtype is not torch_dtype(info.dtype):
        raise RelaxError(
            "SM1305", f"{what} is {value.dtype}", why=f"it should be {info.dtype}", remedy="cast it"
        )
    if info.ndim not in (-1, value.dim()):
        raise RelaxError("SM1305", f"{what} has {value.dim()} dimensions", why=f"it should have {info.ndim}")


def symbols_bound(infos: Sequence[StructInfo]) -> list[Symbol]:
    """The size variables of several struct infos."""
    return list(dict.fromkeys(symbol for info in infos for symbol in symbols_of(info)))


def refused(op: Any, args: Sequence[Any], error: Exception) -> RelaxError:
    """The error of an operator that refuses its arguments, naming both."""

    def kind(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        return f"({', '.join(map(kind, value))})" if isinstance(value, (list, tuple)) else repr(value)

    given = ", ".join(map(kind, args))
    remedy = "see the operator's arguments and their shapes"
    return RelaxError("SM1303", f"{op.name} refuses ({given})", why=describe(error), remedy=remedy)
