"""Expressions as Python source: executed in plans, and read in printouts."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sympy
from sympy import Symbol
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from smelt.errors import SmeltError
from smelt.symbolic.floating import DIVISIONS, ROUNDINGS, is_floating

_SUM, _DIVISION, _PRODUCT, _ATOM = 1, 2, 3, 4


@lru_cache(maxsize=16384)
def python_text(expr: Any) -> str:
    """Python source of an expression over its symbols' names: an integer, a truth, or a floating number.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> python_text(12 * i - j + FloorDiv(i, 4) * 3)
    '12*i - j + 3*(i//4)'
    >>> python_text(sympy.Max(i, j + 1))
    'max(i, j + 1)'
    >>> python_text(0.5 * i)
    '0.5*i'
    >>> from torch.utils._sympy.functions import RoundDecimal
    >>> python_text(2 * RoundDecimal(0.125 * i, sympy.Integer(2)))
    '2*round(0.125*i, 2)'

    Raises:
        SmeltError: SM0510, a function that has no text.
    """
    return _write(expr)[0]


def _write(expr: Any) -> tuple[str, int]:
    """The text and its operator precedence."""
    if isinstance(expr, int):
        expr = sympy.Integer(expr)
    if isinstance(expr, Symbol):
        return expr.name, _ATOM
    if expr.is_Integer:
        return str(expr), _ATOM if expr >= 0 else _SUM
    if is_floating(expr):
        return _floating(expr)
    if isinstance(expr, sympy.Add):
        return _sum(expr), _SUM
    if isinstance(expr, (sympy.Mul, sympy.Pow)):
        return _product(expr)
    if isinstance(expr, FloorDiv):
        return _binary("//", *expr.args), _DIVISION
    if isinstance(expr, ModularIndexing):
        base, divisor, modulus = expr.args
        return _binary("%", FloorDiv(base, divisor), modulus), _DIVISION
    name = expr.func.__name__
    if name in ("Mod", "PythonMod"):
        return _binary("%", *expr.args), _DIVISION
    if name in ("Max", "Min"):
        parts = sorted((_write(arg)[0] for arg in expr.args), key=lambda text: (len(text), text))
        return f"{name.lower()}({', '.join(parts)})", _ATOM
    if isinstance(expr, sympy.core.relational.Relational):
        return f"{_write(expr.lhs)[0]} {expr.rel_op} {_write(expr.rhs)[0]}", 0
    if name in ("And", "Or"):
        return f" {name.lower()} ".join(_tight(arg, _SUM) for arg in expr.args), 0
    if name == "Not":
        return f"not {_tight(expr.args[0], _SUM)}", 0
    if name == "ITE":
        condition, yes, no = (_tight(arg, _SUM) for arg in expr.args)
        return f"{yes} if {condition} else {no}", 0
    if isinstance(expr, sympy.Piecewise):
        return _piecewise(expr), 0
    if name == "CleanDiv":
        return _binary("//", *expr.args), _DIVISION
    if name == "CeilDiv":
        return f"-(-{_tight(expr.args[0], _ATOM)}//{_tight(expr.args[1], _ATOM)})", _SUM
    if name in ROUNDINGS:
        return _rounded(name, expr.args[0]), _ATOM
    if name == "Identity":
        return _write(expr.args[0])
    if expr in (sympy.true, sympy.false):
        return str(bool(expr)), _ATOM
    raise SmeltError("SM0510", f"no text for {name} in {expr}", why="an unusual size expression")


def _floating(expr: Any) -> tuple[str, int]:
    name = expr.func.__name__
    if isinstance(expr, sympy.Float):
        return repr(float(expr)), _ATOM if expr >= 0 else _SUM
    if name == "ToFloat":
        return f"float({_write(expr.args[0])[0]})", _ATOM
    if name == "RoundDecimal":
        return f"round({_write(expr.args[0])[0]}, {_write(expr.args[1])[0]})", _ATOM
    if name in DIVISIONS:
        return _binary("/", *expr.args), _DIVISION
    if isinstance(expr, sympy.Add):
        return " + ".join(_tight(arg, _DIVISION) for arg in expr.args), _SUM
    if isinstance(expr, sympy.Mul):
        return "*".join(_tight(arg, _ATOM) for arg in expr.args), _PRODUCT
    base, exponent = (expr.args[0], sympy.Float(0.5)) if name == "OpaqueUnaryFn_sqrt" else expr.args
    return f"({_tight(base, _ATOM)}**{_tight(exponent, _ATOM)})", _ATOM


def _rounded(name: str, expr: Any) -> str:
    if name == "FloorToInt":
        return f"int({_tight(expr, _ATOM)}//1)"
    if name == "CeilToInt":
        return f"(-int(-{_tight(expr, _ATOM)}//1))"
    return f"{'int' if name == 'TruncToInt' else 'round'}({_write(expr)[0]})"


def _tight(expr: Any, floor: int) -> str:
    text, binding = _write(expr)
    return text if binding >= floor else f"({text})"


def _binary(name: str, left: Any, right: Any) -> str:
    return f"{_tight(left, _ATOM)}{name}{_tight(right, _ATOM)}"


def _piecewise(expr: sympy.Piecewise) -> str:
    text = ""
    for value, condition in expr.args:
        text += _tight(value, _SUM)
        if condition == sympy.true:
            return text
        text += f" if {_tight(condition, _SUM)} else "
    raise SmeltError("SM0510", f"no text for {expr}: nothing holds where none of its conditions does")


def _sum(expr: sympy.Add) -> str:
    text = ""
    for term in expr.as_ordered_terms():
        coefficient = term.as_coeff_Mul()[0]
        if text and coefficient.is_number and coefficient < 0:
            text += f" - {_tight(-term, _DIVISION)}"
        elif text:
            text += f" + {_tight(term, _DIVISION)}"
        else:
            text = _write(term)[0]
    return text


def _product(expr: Any) -> tuple[str, int]:
    above, below = sympy.fraction(expr)
    if below != 1:  # an integer all the same: the division leaves no rest
        return _binary("//", above, below), _DIVISION
    coefficient, rest = expr.as_coeff_Mul()
    if coefficient < 0:
        return f"-{_tight(-expr, _PRODUCT)}", _SUM
    factors = [] if coefficient == 1 else [str(coefficient)]
    for factor in rest.as_ordered_factors():
        base, exponent = factor.as_base_exp()
        if not exponent.is_Integer:
            raise SmeltError("SM0510", f"no text for the power {factor}", why="an unusual size expression")
        factors += [_tight(base, _ATOM)] * int(exponent)
    return "*".join(factors), _ATOM if len(factors) == 1 else _PRODUCT
