"""Fast arithmetic on affine indices (sums of numbers times variables), without SymPy's general machinery.

SymPy sorts the terms of every sum that it makes, and tries a dozen rules even if there is nothing to expand.
Here a sum that loses a term, or whose constant changes, keeps its order. Results equal SymPy's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cmp_to_key, lru_cache

import sympy
from sympy import Add, Basic, Expr, Mul, Pow, Symbol
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

ZERO, ONE, MINUS_ONE = sympy.Integer(0), sympy.Integer(1), sympy.Integer(-1)
_PARTED = (FloorDiv, Mod, Max, Min)
_SYMPYS_ORDER = cmp_to_key(Basic.compare)


@lru_cache(maxsize=16384)
def symbols_in(expr: Expr) -> frozenset[Symbol]:
    """``expr.free_symbols``, cached: SymPy traverses the expression at each access."""
    if isinstance(expr, (Add, Mul, *_PARTED)):
        return frozenset().union(*map(symbols_in, expr.args))  # type: ignore[arg-type]
    return frozenset(expr.free_symbols)  # type: ignore[arg-type]


def expand(expr: Expr) -> Expr:
    """`sympy.expand`, immediate if there is nothing to expand.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> expand(8 * i + j), expand(2 * (i + j))
    (8*i + j, 2*i + 2*j)
    """
    return expr if is_expanded(expr) else _expand(expr)


@lru_cache(maxsize=16384)
def _expand(expr: Expr) -> Expr:
    """Expands part by part, as `_replaced`."""
    if isinstance(expr, Add):
        return total(map(expand, expr.args))
    factors = [_power(factor) for factor in Mul.make_args(expr)]
    if isinstance(expr, (Mul, Pow)) and not any(isinstance(base, Pow) for base, _ in factors):
        made: Expr = ONE
        for base in (expand(base) for base, count in factors for _ in range(count)):
            made = total(term * other for term in _terms(made) for other in _terms(base))
        return made
    if isinstance(expr, _PARTED):
        return _made_again(expr, tuple(map(expand, expr.args)))
    return sympy.expand(expr)


@lru_cache(maxsize=16384)
def is_expanded(expr: Expr) -> bool:
    """Whether there is visibly nothing to expand, also in divisions and comparisons.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> is_expanded(8 * i**2 * FloorDiv(i + j, 3) + j), is_expanded(FloorDiv(i * (j + 1), 3))
    (True, False)
    """
    return all(
        _is_expanded_factor(_power(factor)[0]) for term in _terms(expr) for factor in Mul.make_args(term)
    )


def _is_expanded_factor(factor: Expr) -> bool:
    return bool(factor.is_Atom) or (isinstance(factor, _PARTED) and all(map(is_expanded, factor.args)))


def _power(factor: Expr) -> tuple[Expr, int]:
    """The base and the exponent; a power that is no product of its base is one factor."""
    if isinstance(factor, Pow) and factor.exp.is_Integer and factor.exp > 0:
        return factor.base, int(factor.exp)
    return factor, 1


def _is_plain(expr: Expr) -> bool:
    """Whether an expression is a sum of products of numbers and symbols."""
    return all(
        term.is_Atom or (isinstance(term, Mul) and all(arg.is_Atom for arg in term.args))
        for term in _terms(expr)
    )


def _terms(expr: Expr) -> tuple[Expr, ...]:
    return expr.args if isinstance(expr, Add) else (expr,)


@lru_cache(maxsize=16384)
def linear(expr: Expr, var: Symbol) -> tuple[Expr, Expr]:
    """(coefficient, rest) with ``expr == coefficient * var + rest``, expanded.

    If the expression is not linear in ``var``, one of the two contains it.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> linear(8 * i + j + 3, i), linear(i * i + j, i)
    ((8, j + 3), (0, i**2 + j))
    """
    if not is_expanded(expr):
        expanded = _expand(expr)
        coefficient = expanded.coeff(var, 1)
        return coefficient, _expand(expanded - coefficient * var)
    rest: list[Expr] = []
    found: list[Expr] = []
    for term in _terms(expr):
        if term == var:
            found.append(ONE)
        elif isinstance(term, Mul) and var in term.args:
            others = [arg for arg in term.args if arg != var]
            found.append(others[0] if len(others) == 1 else Mul(*others))
        else:
            rest.append(term)
    return total(found), _in_order(rest)


def affine(expr: Expr, over: Sequence[Symbol]) -> tuple[list[Expr], Expr] | None:
    """(a coefficient for each symbol, the rest), expanded; None if the expression is not affine.

    >>> i, j, s = sympy.symbols("i j s", integer=True, nonnegative=True)
    >>> affine(s * (i + 2) + j, (i, j)), affine(i * j, (i, j)), affine(FloorDiv(i, 2), (i,))
    (([s, 1], 2*s), None, None)
    """
    coefficients: list[Expr] = []
    rest, wanted = expr, set(over)
    for symbol in over:
        factor, rest = linear(rest, symbol)
        coefficients.append(factor)
    if all(wanted.isdisjoint(symbols_in(each)) for each in (rest, *coefficients)):
        return coefficients, rest
    return None


def coefficient(expr: Expr, var: Symbol) -> Expr | None:
    """The coefficient of ``var``, None if the expression is not affine in it."""
    found = affine(expr, (var,))
    return None if found is None else found[0][0]


def replaced(expr: Expr, mapping: Mapping[Symbol, Expr]) -> Expr:
    """``expr.xreplace(mapping)``, expanded where a number replaces a variable.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> replaced(8 * i + j + 3, {i: sympy.Integer(2)})
    j + 19
    """
    if expr.is_Symbol:
        return mapping.get(expr, expr)  # type: ignore[call-overload]
    if not mapping or expr.is_Integer:
        return expr
    symbols = symbols_in(expr)
    wanted = tuple([item for item in mapping.items() if item[0] in symbols and item[0] is not item[1]])
    if not wanted:
        return expr
    if len(wanted) == 1 and _is_plain(expr):
        ((symbol, value),) = wanted
        coefficient, rest = linear(expr, symbol)
        if value.is_Integer and coefficient.is_Integer:
            return plus(rest, coefficient * value)
    return _replaced(expr, wanted)


@lru_cache(maxsize=16384)
def _replaced(expr: Expr, mapping: tuple[tuple[Symbol, Expr], ...]) -> Expr:
    """Replaces part by part: divisions and minima are slow to construct, and many sums share them."""
    for symbol, value in mapping:
        if expr == symbol:
            return value
    args = tuple(_replaced(arg, mapping) for arg in expr.args)  # type: ignore[arg-type]
    if args == expr.args:
        return expr
    return _made_again(expr, args)


def _made_again(expr: Expr, args: tuple[Expr, ...]) -> Expr:
    """The expression with other arguments."""
    if isinstance(expr, FloorDiv):
        return divided(*args)
    if isinstance(expr, Mod):
        return remainder(*args)
    if isinstance(expr, Add):
        return total(args)
    return times(args[1], args[0]) if isinstance(expr, Mul) and len(args) == 2 else expr.func(*args)


@lru_cache(maxsize=16384)
def divided(base: Expr, divisor: Expr | int) -> Expr:
    """``FloorDiv(base, divisor)`` with whole multiples, common numbers and common factors removed. PyTorch
    uses SymPy for that, which takes milliseconds.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> divided(8 * i + 4 * j, sympy.Integer(12)), divided(i * (j + 1), 3 * i)
    (((2*i + j)//3), ((j + 1)//3))
    >>> divided(6 * i - j + 5, sympy.Integer(2)), divided(divided(j, sympy.Integer(2)), sympy.Integer(3))
    (3*i + (((5 - j)//2)), (j//6))
    """
    divisor = as_integer(divisor)
    for factor in Mul.make_args(divisor):
        terms = Add.make_args(base)
        if not factor.is_Number and all(factor in Mul.make_args(term) for term in terms):
            base, divisor = Add(*(term / factor for term in terms)), divisor / factor
    if divisor.is_Integer and divisor > 0:
        return _divided(base, int(divisor))
    return quotient_of(base, divisor)


def quotient_of(base: Expr, divisor: Expr) -> Expr:
    """``FloorDiv(base, divisor)``, immediate if base and divisor visibly have no common factor except a
    number.

    >>> i, s = sympy.symbols("i s", integer=True, positive=True)
    >>> quotient_of(2 * i + 3, 4 * s), quotient_of(2 * i, 4 * s), quotient_of(quotient_of(i, s), 2 * s)
    (((2*i + 3)//(4*s)), (i//(2*s)), (i//(2*s**2)))
    >>> quotient_of(i + s * s, s * s + s), quotient_of(6 * i + 4 * s, 2 * s * s)
    (((i + s**2)//(s**2 + s)), ((3*i + 2*s)//(s**2)))
    """
    if _have_no_common_factor(base, divisor) and not isinstance(base, FloorDiv):
        above, below = _parts(base), _parts(divisor)
        if above is not None and below is not None:
            common = math.gcd(*(n for n, _ in (*above, *below)))
            if common > 1:
                base, divisor = (
                    total(times(rest, sympy.Integer(n // common)) for n, rest in parts)
                    for parts in (above, below)
                )
            if divisor != 1 and not isinstance(base, FloorDiv):
                return FloorDiv(base, divisor, evaluate=False)
    return FloorDiv(base, divisor)


@lru_cache(maxsize=16384)
def _have_no_common_factor(base: Expr, divisor: Expr) -> bool:
    """Whether base and divisor visibly have no common factor except a number."""
    of_base, of_divisor = _variables(base), _variables(divisor)
    if not of_base or not of_divisor or of_base.isdisjoint(of_divisor):
        return bool(of_base and of_divisor)
    return all(_is_prime_to(factor, divisor, of_divisor) for factor in Mul.make_args(base))


def _is_prime_to(expr: Expr, divisor: Expr, of_divisor: frozenset[Expr]) -> bool:
    """Whether a variable that is not the divisor's has a number as its coefficient, which a common factor
    would have to divide; or a constant is added and the divisor is a product of variables.
    """
    terms = [(term, _variables(term)) for term in _terms(expr)]
    if of_divisor.isdisjoint(frozenset().union(*(found for _, found in terms))):
        return True
    if len(terms) > 1 and terms[0][0].is_Integer and not divisor.is_Add:
        return all(_is_variable(factor) for factor in Mul.make_args(divisor.as_coeff_Mul()[1]))
    alone = [found for term, found in terms if found.isdisjoint(of_divisor) and _is_multiple(term, found)]
    return any(sum(not found.isdisjoint(others) for _, others in terms) == 1 for found in alone)


def _is_multiple(term: Expr, found: frozenset[Expr]) -> bool:
    """Whether a term is one variable, or a number times that."""
    return len(found) == 1 and term.as_coeff_Mul()[1] in found


@lru_cache(maxsize=16384)
def _variables(expr: Expr) -> frozenset[Expr]:
    """The generators of an expression as a polynomial: symbols, and quotients and other functions as
    units.
    """
    if expr.is_Number:
        return frozenset()
    if isinstance(expr, (Add, Mul)):
        return frozenset().union(*map(_variables, expr.args))  # type: ignore[arg-type]
    base, _ = _power(expr)
    return frozenset({expr}) if base is expr else _variables(base)


def _divided(base: Expr, divisor: int) -> Expr:
    if isinstance(base, FloorDiv):
        return divided(base.args[0], times(base.args[1], sympy.Integer(divisor)))
    parts = _parts(base)
    if parts is None:
        return FloorDiv(base, sympy.Integer(divisor))
    whole = [times(rest, sympy.Integer(n // divisor)) for n, rest in parts if n % divisor == 0]
    parts = [(n, rest) for n, rest in parts if n % divisor]
    if all(rest == 1 for _, rest in parts):
        return total([*whole, *(sympy.Integer(n // divisor) for n, _ in parts)])
    common = math.gcd(divisor, *(n for n, _ in parts))
    above, below = total(times(rest, sympy.Integer(n // common)) for n, rest in parts), divisor // common
    if isinstance(above, FloorDiv):
        return total([*whole, _divided(above, below)])
    return total([*whole, FloorDiv(above, sympy.Integer(below), evaluate=False)])


def as_integer(number: Expr | int) -> Expr:
    """A Python number as a SymPy number; an expression is unchanged."""
    return sympy.Integer(number) if isinstance(number, int) else number


def _parts(expr: Expr) -> list[tuple[int, Expr]] | None:
    """The terms of an integer, each a number times an integer; None where that is not certain."""
    parts = [term.as_coeff_Mul() for term in _terms(expr)]
    if all(n.is_Integer and (_is_product(rest) or rest.is_integer) for n, rest in parts):
        return [(int(n), rest) for n, rest in parts]
    return None


def _is_product(expr: Expr) -> bool:
    """Whether an expression is plainly a product of integer variables."""
    factors = Mul.make_args(expr)
    return all(_is_variable(factor) and (factor.is_integer or not factor.is_Symbol) for factor in factors)


@lru_cache(maxsize=16384)
def remainder(base: Expr, divisor: Expr | int) -> Expr:
    """``Mod(base, divisor)``, immediate if there is nothing to simplify, which PyTorch needs milliseconds to
    find out.

    >>> i = sympy.Symbol("i", integer=True, nonnegative=True)
    >>> remainder(6 * i + 3, sympy.Integer(7)), remainder(14 * i + 7, sympy.Integer(7))
    (Mod(6*i + 3, 7), 0)
    >>> remainder(2 * i + 3, sympy.Integer(2))
    1
    """
    divisor = as_integer(divisor)
    parts = _parts(base) if divisor.is_Integer and divisor > 0 else None
    if parts is None:
        return rest_of(base, divisor)
    if all(n % int(divisor) == 0 or rest == 1 for n, rest in parts):
        return sympy.Integer(sum(n for n, rest in parts if rest == 1) % int(divisor))
    return Mod(base, divisor, evaluate=False)


def rest_of(base: Expr, divisor: Expr) -> Expr:
    """``Mod(base, divisor)``, immediate if the two visibly have no common factor."""
    if _have_no_common_factor(base, divisor):
        return Mod(base, divisor, evaluate=False)
    return Mod(base, divisor)


def plus(expr: Expr, number: Expr | int) -> Expr:
    """The sum of an expression and an integer.

    >>> i = sympy.Symbol("i", integer=True)
    >>> plus(i - 3, 3), plus(2 * i, 5)
    (i, 2*i + 5)
    """
    if number == 0:
        return expr
    if expr.is_Integer:
        return sympy.Integer(int(expr) + int(number))
    if expr.is_Number:
        return expr + number
    terms: Sequence[Expr] = _terms(expr)
    if terms[0].is_Number:
        terms, number = terms[1:], terms[0] + number
    return _in_order([as_integer(number), *terms] if number != 0 else terms)


def difference(left: Expr, right: Expr) -> Expr:
    """``left - right``, expanded.

    >>> i, j = sympy.symbols("i j", integer=True)
    >>> difference(3 * i + j, i - 2)
    2*i + j + 2
    """
    if left.is_Integer and right.is_Integer:
        return sympy.Integer(int(left) - int(right))
    return total([left, times(right, MINUS_ONE)]) if right != 0 else left


def times(expr: Expr, number: Expr) -> Expr:
    """The product of an index and an integer; that of a sum is expanded, as in SymPy.

    >>> i, j = sympy.symbols("i j", integer=True)
    >>> times(i, sympy.Integer(3)), times(2 * i, sympy.Integer(3)), times(i + 2 * j, sympy.Integer(3))
    (3*i, 6*i, 3*i + 6*j)
    """
    if number == 1:
        return expr
    if not number.is_Integer or number == 0:
        return expr * number
    if _is_variable(expr):
        return _of(Mul, (number, expr))
    if expr.is_Add:
        return total([times(term, number) for term in expr.args])
    coefficient, factors = ONE, expr.args
    if factors and factors[0].is_Integer:
        coefficient, factors = factors[0], factors[1:]
    if not (expr.is_Mul and all(map(_is_variable, factors))):
        return expr * number
    coefficient *= number
    if coefficient != 1:
        factors = (coefficient, *factors)
    return factors[0] if len(factors) == 1 else _of(Mul, factors)


def total(terms: Iterable[Expr]) -> Expr:
    """The sum. If its terms are numbers and multiples of variables, like terms are collected, and the result
    only has to be sorted.

    >>> i, j = sympy.symbols("i j", integer=True)
    >>> total([j + 3, 2 * i, sympy.Integer(4), -i])
    i + j + 7
    """
    return _total(tuple(terms))


@lru_cache(maxsize=16384)
def _total(sums: tuple[Expr, ...]) -> Expr:
    number = 0
    factors: dict[Expr, int] = {}
    given = [term for each in sums for term in _terms(each)]
    for term in given:
        if term.is_Integer:
            number += int(term)
            continue
        count, variable = 1, term
        if term.is_Mul:
            count = int(term.args[0]) if term.args[0].is_Integer else 1
            variables = term.args[1:] if term.args[0].is_Integer else term.args
            variable = variables[0] if len(variables) == 1 else _of(Mul, variables)
        if not all(map(_is_variable, Mul.make_args(variable))):
            return Add(*given)
        factors[variable] = factors.get(variable, 0) + count
    found = [times(variable, sympy.Integer(count)) for variable, count in factors.items() if count]
    ordered = sorted(found, key=_SYMPYS_ORDER)
    return _in_order([sympy.Integer(number), *ordered] if number else ordered)


def _of(kind: type[Add] | type[Mul], args: Sequence[Expr]) -> Expr:
    """A sum or a product of arguments in SymPy's order, without evaluation. SymPy's ``evaluate=False`` is
    several times slower: it checks each argument, and caches the result.
    """
    return kind._from_args(tuple(args), is_commutative=True)


def _is_variable(expr: Expr) -> bool:
    """Whether an expression is one factor of a product; a power is, as it expands nothing."""
    if isinstance(expr, Pow) and expr.exp.is_Integer and expr.exp > 1:
        return _is_variable(expr.base)
    return bool(expr.is_Symbol) or isinstance(expr, _PARTED)


def _in_order(terms: Sequence[Expr]) -> Expr:
    """The sum of different terms that are in SymPy's order already."""
    if len(terms) < 2:
        return terms[0] if terms else ZERO
    return _of(Add, terms)


@lru_cache(maxsize=16384)
def order_text(expr: Expr) -> str:
    """A text close to ``str(expr)``, for sorting: SymPy's own is slow.

    >>> i, j = sympy.symbols("i j", integer=True)
    >>> order_text(4 * FloorDiv(i + j, 2))
    '4*(Add(i, j)//2)'
    """
    if isinstance(expr, Symbol):
        return expr.name
    if not expr.args:
        return str(expr)
    args = [order_text(arg) for arg in expr.args]
    if isinstance(expr, FloorDiv):
        return f"({'//'.join(args)})"
    return "*".join(args) if isinstance(expr, Mul) else f"{expr.func.__name__}({', '.join(args)})"
