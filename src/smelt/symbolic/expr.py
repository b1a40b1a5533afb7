"""Size expressions. A static size is a SymPy Integer; a dynamic one is built from ShapeEnv's symbols."""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol
from sympy.functions.elementary.piecewise import ExprCondPair
from sympy.logic.boolalg import BooleanAtom
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy.functions import FloorDiv as FloorDiv
from torch.utils._sympy.functions import Max, Min, ModularIndexing, PythonMod
from torch.utils._sympy.functions import Mod as Mod

from smelt.symbolic.affine import expand, symbols_in
from smelt.symbolic.signs import never_negative

Shape = tuple[Expr, ...]


def as_expr(size: int | torch.SymInt | Expr) -> Expr:
    """The SymPy expression of a size from PyTorch.

    >>> as_expr(3)
    3
    """
    if isinstance(size, Expr):
        return size
    if not isinstance(size, torch.SymInt):
        return sympy.Integer(size)
    if is_guarded_one(size):
        return sympy.Integer(1)
    return usual_form(with_known_signs(size.node.expr, size.node.shape_env))


def is_guarded_one(size: torch.SymInt) -> bool:
    """Whether a guard makes a size such as ``s//2`` 1: PyTorch broadcast it, and recorded it only in the
    guard. (A symbol that is 1 by itself is replaced.)
    """
    node = size.node
    if isinstance(node.expr, (Symbol, sympy.Number)) or not node.has_hint() or node.hint != 1:
        return False
    return statically_known_true(size == 1)


def with_known_signs(expr: Any, environment: Any) -> Any:
    """``expr`` with each data-dependent size that the ShapeEnv knows to be nonnegative replaced by a symbol
    of the same name with that assumption.
    """
    if isinstance(expr, Symbol) and expr.is_nonnegative:
        return expr
    ranges = getattr(environment, "var_to_range", {})
    better = {
        symbol: loop_var(symbol.name)
        for symbol in expr.free_symbols
        if symbol.is_integer
        and symbol.is_nonnegative is None
        and symbol in ranges
        and ranges[symbol].lower >= 0
    }
    return expr.xreplace(better) if better else expr


@lru_cache(maxsize=4096)
def usual_form(expr: Expr) -> Expr:
    """A canonical form of sizes: ``(s - 1)//4 + 1`` and ``(s + 3)//4`` are the same size.

    The divisor is subtracted from the dividend as often as the rest is known to be nonnegative: the sum is
    then known to be positive.

    >>> s = Symbol("s", integer=True, positive=True)
    >>> usual_form(FloorDiv(s + 3, 4)), usual_form(FloorDiv(s, 4))
    ((((s - 1)//4)) + 1, (s//4))
    """
    if not expr.args:
        return expr
    args = tuple(usual_form(arg) for arg in expr.args)  # type: ignore[arg-type]
    if args != expr.args:
        expr = expr.func(*args)
    if not isinstance(expr, FloorDiv) or not expr.args[1].is_Integer or expr.args[1] < 0:
        return expr
    dividend, divisor = expr.args
    whole = 0
    while dividend.as_coeff_Add()[0] > 0 and never_negative(dividend - divisor):
        dividend, whole = dividend - divisor, whole + 1
    return FloorDiv(dividend, divisor) + whole if whole else expr


@lru_cache(maxsize=4096)
def loop_var(name: str) -> Symbol:
    """A loop variable: an integer that is never negative."""
    return Symbol(name, integer=True, nonnegative=True)


def numel(sizes: Iterable[Expr]) -> Expr:
    """The number of elements of a shape; numbers bypass SymPy's general product.

    >>> numel([sympy.Integer(3), loop_var("s0"), sympy.Integer(4)]), numel([])
    (12*s0, 1)
    """
    number, others = 1, []
    for size in sizes:
        if isinstance(size, sympy.Integer):
            number *= size.p
        else:
            others.append(size)
    return sympy.Mul(number, *others) if others else sympy.Integer(number)


def free_symbols(exprs: Iterable[Expr]) -> set[Symbol]:
    """The symbols that occur in any of the expressions."""
    found: set[Symbol] = set()
    for expr in exprs:
        if not expr.is_Integer:
            found |= symbols_in(expr)
    return found


def is_zero(expr: Expr) -> bool:
    return bool(expr == 0)


def is_one(expr: Expr) -> bool:
    return bool(expr == 1)


def same(left: Expr, right: Expr) -> bool:
    """Whether two sizes are equal for all values of the symbols; False if that cannot be shown."""
    if left == right:
        return True
    if left.is_number and right.is_number:
        return False
    return _same(left, right)


@lru_cache(maxsize=4096)
def _same(left: Expr, right: Expr) -> bool:
    return bool(expand(left - right) == 0)


def evaluate(expr: Expr | int, values: Mapping[Symbol, int]) -> int:
    """The value of an integer expression under ``values``.

    >>> s = loop_var("s0")
    >>> evaluate(FloorDiv(s, 2) + 1, {s: 7})
    4
    """
    if isinstance(expr, int):
        return expr
    return int(evaluate_on(expr, values))


def size_hint(expr: Expr, hints: Mapping[Symbol, int], default: int = 64) -> int:
    """A typical value of a size, for decisions (never for correctness).

    ``hints`` are the sizes seen while capturing; a symbol without one counts as ``default``.
    """
    if expr.is_Integer:
        return int(expr)
    known = tuple((symbol, hints.get(symbol, default)) for symbol in symbols_in(expr))
    return _value_at(expr, known, default)


@lru_cache(maxsize=16384)
def _value_at(expr: Expr, known: tuple[tuple[Symbol, int], ...], default: int) -> int:
    try:
        return int(evaluate_on(expr, dict(known)))
    except ZeroDivisionError:  # by a size that is not 0 where the program runs
        return default
    except (NotImplementedError, TypeError, ValueError):  # no number, or none of ours
        value = expr.subs(known)
        return int(value) if value.is_number else default


def evaluate_on(expr: Expr, values: Mapping[Symbol, Any]) -> Any:
    """Evaluates an index expression on integers or integer tensors, with Python's //."""
    return _evaluator(expr)(values)


_Evaluator = Callable[[Mapping[Symbol, Any]], Any]


@lru_cache(maxsize=16384)
def _evaluator(expr: Expr) -> _Evaluator:
    """The function of the symbols' values that an expression is."""
    if expr.is_Integer:
        number = int(expr)
        return lambda values: number
    if isinstance(expr, Symbol):
        return python.itemgetter(expr)
    parts: Sequence[Expr] = expr.args
    function = next((_FUNCTIONS[kind] for kind in type(expr).__mro__ if kind in _FUNCTIONS), None)
    if isinstance(expr, (sympy.Mul, sympy.Rational)):
        above, below = sympy.fraction(expr)
        if below != 1:  # an integer all the same: the division leaves no rest
            parts, function = (above, below), python.floordiv
    evaluators = [_evaluator(part) for part in parts]
    if function is None or len(evaluators) < 2:
        return lambda values: _apply(expr, [each(values) for each in evaluators])
    one, other, *rest = evaluators
    if not rest:
        return lambda values: function(one(values), other(values))

    def folded(values: Mapping[Symbol, Any]) -> Any:
        value = one(values)
        for each in evaluators[1:]:
            value = function(value, each(values))
        return value

    return folded


def _picked(smaller: bool) -> Callable[[Any, Any], Any]:
    def pick(one: Any, other: Any) -> Any:
        if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
            both = torch.as_tensor(one), torch.as_tensor(other)
            return torch.minimum(*both) if smaller else torch.maximum(*both)
        return min(one, other) if smaller else max(one, other)

    return pick


_FUNCTIONS: dict[Any, Callable[[Any, Any], Any]] = {
    sympy.Add: python.add,
    sympy.Mul: python.mul,
    sympy.Pow: python.pow,
    FloorDiv: python.floordiv,
    **dict.fromkeys((Mod, PythonMod, sympy.Mod), python.mod),
    **dict.fromkeys((Max, sympy.Max), _picked(smaller=False)),
    **dict.fromkeys((Min, sympy.Min), _picked(smaller=True)),
    sympy.StrictLessThan: python.lt,
    sympy.LessThan: python.le,
    sympy.StrictGreaterThan: python.gt,
    sympy.GreaterThan: python.ge,
}
"""The function of two operands that an expression is, for more operands from the first to the last."""


def _apply(expr: Expr, args: Sequence[Any]) -> Any:
    if isinstance(expr, ModularIndexing):
        return (args[0] // args[1]) % args[2]
    value = expr.func(*args)
    if isinstance(value, (BooleanAtom, ExprCondPair)):
        return value
    if getattr(value, "is_number", False):
        return int(value)
    raise NotImplementedError(f"no evaluation rule for {expr.func.__name__}")
