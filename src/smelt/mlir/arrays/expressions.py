"""Size and index expressions as operations of a target: SymPy → int64, float64 and bool values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import sympy
import torch
from sympy import Symbol

from smelt.errors import Unsupported
from smelt.symbolic.index import split_multiple

INT, FLOAT, BOOL = torch.int64, torch.float64, torch.bool


class Numbers:
    """The operations that a target provides for numbers: each value has a dtype."""

    def symbol(self, symbol: Symbol) -> Any:
        """The value of a symbol."""
        raise NotImplementedError

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> Any:
        raise NotImplementedError

    def dtype_of(self, value: Any) -> torch.dtype:
        return value.dtype  # type: ignore[no-any-return]

    def to_dtype(self, x: Any, dtype: torch.dtype) -> Any:
        return x

    def elementwise(self, name: str, *args: Any) -> Any:
        """A row of `smelt.ops.table.TABLE`."""
        raise NotImplementedError

    def divide(self, name: str, x: Any, y: Any) -> Any:
        """``truncdiv`` or ``fmod`` of a nonnegative number by a positive number."""
        return self.elementwise(name, x, y)


def evaluate_number(expr: Any, numbers: Numbers) -> Any:
    """The value of an expression: int64, or float64 or bool if it is no integer.

    Raises:
        Unsupported: a function without a rule in this module.
    """
    return _Evaluation(numbers).run(expr)


class _Evaluation:
    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers

    def run(self, expr: Any) -> Any:
        numbers = self.numbers
        if isinstance(expr, (bool, int, float)):
            expr = sympy.sympify(expr)
        if isinstance(expr, Symbol):
            return numbers.symbol(expr)
        if expr in (sympy.true, sympy.false):
            return numbers.constant(bool(expr), BOOL)
        if expr.is_Integer:
            return numbers.constant(int(expr), INT)
        if expr.is_number and expr.is_real and not expr.args:
            return numbers.constant(float(expr), FLOAT)
        if expr.is_Rational:
            return numbers.constant(float(expr), FLOAT)
        rule = _RULES.get(expr.func.__name__)
        if rule is None:
            raise Unsupported(f"no rule for {expr.func.__name__} in the size {expr}")
        return rule(self, expr)

    # -- helpers ------------------------------------------------------------------------------------

    def all(self, args: Sequence[Any], least: torch.dtype | None = None) -> list[Any]:
        """Values converted to one dtype: the widest of theirs and ``least``."""
        values = [self.run(arg) for arg in args]
        order = [BOOL, INT, FLOAT]
        kinds = [self.numbers.dtype_of(value) for value in values] + ([least] if least else [])
        wide = max(kinds, key=order.index)
        return [self.numbers.to_dtype(value, wide) for value in values]

    def fold(self, name: str, args: Sequence[Any], least: torch.dtype = INT) -> Any:
        return reduce(lambda x, y: self.numbers.elementwise(name, x, y), self.all(args, least))

    # -- rules --------------------------------------------------------------------------------------

    def add(self, expr: Any) -> Any:
        return self.fold("add", expr.args)

    def mul(self, expr: Any) -> Any:
        above, below = sympy.fraction(expr)
        if below != 1 and expr.is_integer:  # the division is exact
            return self.binary("floordiv", above, below, INT)
        return self.fold("mul", expr.args)

    def pow(self, expr: Any) -> Any:
        base, exponent = expr.args
        if exponent.is_Integer and exponent > 0:
            return self.fold("mul", [base] * int(exponent))
        if exponent.is_Integer and exponent < 0:
            one = self.numbers.constant(1.0, FLOAT)
            below = self.fold("mul", [base] * -int(exponent), FLOAT)
            return self.numbers.elementwise("truediv", one, below)
        return self.binary("pow", base, exponent, FLOAT)

    def binary(self, name: str, left: Any, right: Any, least: torch.dtype) -> Any:
        return self.numbers.elementwise(name, *self.all([left, right], least))

    def floordiv(self, expr: Any) -> Any:
        left, right = expr.args
        quotient, rest = split_multiple(left, right)
        if rest == 0:
            return self.run(quotient)
        if left.is_nonnegative and right.is_positive:
            return self.numbers.divide("truncdiv", *self.all([left, right], INT))
        return self.binary("floordiv", left, right, INT)

    def modulo(self, expr: Any) -> Any:
        left, right = expr.args
        if left.is_nonnegative and right.is_positive:
            return self.numbers.divide("fmod", *self.all([left, right], INT))
        return self.binary("remainder", left, right, INT)

    def modular(self, expr: Any) -> Any:
        base, divisor, modulus = expr.args
        inner = self.binary("floordiv", base, divisor, INT)
        return self.numbers.elementwise("remainder", *(inner, self.run(modulus)))

    def ceildiv(self, expr: Any) -> Any:
        above, below = self.all(expr.args, INT)
        numbers = self.numbers
        return numbers.elementwise(
            "neg", numbers.elementwise("floordiv", numbers.elementwise("neg", above), below)
        )

    def piecewise(self, expr: Any) -> Any:
        values = self.all([value for value, _ in expr.args])
        result = values[-1]
        for value, (_, condition) in reversed(list(zip(values[:-1], expr.args[:-1]))):
            result = self.numbers.elementwise("where", self.run(condition), value, result)
        return result

    def ite(self, expr: Any) -> Any:
        condition, yes, no = expr.args
        return self.numbers.elementwise("where", self.run(condition), *self.all([yes, no]))

    def negated(self, expr: Any) -> Any:
        return self.numbers.elementwise("logical_not", self.run(expr.args[0]))

    def unary(self, name: str, expr: Any, result: torch.dtype = FLOAT) -> Any:
        if result is INT and name in ("floor", "trunc"):
            ratio = _ratio(expr.args[0])
            if ratio is not None and (name == "floor" or ratio[0].is_nonnegative):
                return self.binary("floordiv", *ratio, INT)
        (value,) = self.all(expr.args[:1], FLOAT)
        if name:
            value = self.numbers.elementwise(name, value)
        return self.numbers.to_dtype(value, result)


_LARGEST_RATIO = 1 << 20


def _ratio(expr: Any) -> tuple[Any, Any] | None:
    """``(above, below)``, integers, if the floating expression equals their ratio: ``2.5 * ToFloat(n)`` is
    ``5 * n / 2``. Targets fold integer expressions that they do not fold as floats."""
    above, below = sympy.Integer(1), sympy.Integer(1)
    for factor in sympy.Mul.make_args(expr):
        name = factor.func.__name__
        if name == "ToFloat":
            above = above * factor.args[0]
        elif name == "FloatTrueDiv":
            parts = [_ratio(arg) for arg in factor.args]
            if parts[0] is None or parts[1] is None:
                return None
            above, below = above * parts[0][0] * parts[1][1], below * parts[0][1] * parts[1][0]
        elif factor.is_number and factor.is_real:
            exact = sympy.Rational(*float(factor).as_integer_ratio())
            above, below = above * exact.p, below * exact.q
        else:
            return None
    small = (
        below.is_Integer and 0 < below <= _LARGEST_RATIO and abs(above.as_coeff_Mul()[0]) <= _LARGEST_RATIO
    )
    return (above, below) if small and above.is_integer else None


_Rule = Callable[[_Evaluation, Any], Any]


def _compare(name: str) -> _Rule:
    return lambda self, expr: self.binary(name, expr.args[0], expr.args[1], INT)


def _folded(name: str, least: torch.dtype = INT) -> _Rule:
    return lambda self, expr: self.fold(name, expr.args, least)


def _two(name: str, least: torch.dtype = INT) -> _Rule:
    return lambda self, expr: self.binary(name, expr.args[0], expr.args[1], least)


def _one(name: str, result: torch.dtype = FLOAT) -> _Rule:
    return lambda self, expr: self.unary(name, expr, result)


_RULES: dict[str, _Rule] = {
    "Add": _Evaluation.add,
    "Mul": _Evaluation.mul,
    "Pow": _Evaluation.pow,
    "PowByNatural": _Evaluation.pow,
    "FloorDiv": _Evaluation.floordiv,
    "CleanDiv": _Evaluation.floordiv,
    "Mod": _Evaluation.modulo,
    "PythonMod": _Evaluation.modulo,
    "ModularIndexing": _Evaluation.modular,
    "CeilDiv": _Evaluation.ceildiv,
    "Piecewise": _Evaluation.piecewise,
    "ITE": _Evaluation.ite,
    "Not": _Evaluation.negated,
    "Max": _folded("maximum"),
    "Min": _folded("minimum"),
    "And": _folded("logical_and", BOOL),
    "Or": _folded("logical_or", BOOL),
    "Equality": _compare("eq"),
    "Unequality": _compare("ne"),
    "StrictLessThan": _compare("lt"),
    "LessThan": _compare("le"),
    "StrictGreaterThan": _compare("gt"),
    "GreaterThan": _compare("ge"),
    "FloatTrueDiv": _two("truediv", FLOAT),
    "IntTrueDiv": _two("truediv", FLOAT),
    "FloatPow": _two("pow", FLOAT),
    "ToFloat": _one(""),
    "Identity": lambda self, expr: self.run(expr.args[0]),
    "TruncToInt": _one("trunc", INT),
    "FloorToInt": _one("floor", INT),
    "CeilToInt": _one("ceil", INT),
    "RoundToInt": _one("round", INT),
    "TruncToFloat": _one("trunc"),
    "floor": _one("floor", INT),
    "ceiling": _one("ceil", INT),
    "Abs": lambda self, expr: self.numbers.elementwise("abs", self.run(expr.args[0])),
    **{
        f"OpaqueUnaryFn_{name}": _one(name)
        for name in (
            "sqrt",
            "exp",
            "log",
            "sin",
            "cos",
            "tan",
            "tanh",
            "sinh",
            "cosh",
            "asin",
            "acos",
            "atan",
        )
    },
}
"""Name of the SymPy function → its rule."""
