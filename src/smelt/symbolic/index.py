"""Index algebra: flatten, unflatten, reshape and the simplification that keeps indices readable.

Every rule here is proved in the tests by running both sides over small ranges, all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import sympy
from sympy import Expr, Symbol
from torch.utils._sympy.functions import FloorDiv, Mod

from smelt.symbolic.expr import same

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


def contiguous_strides(shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """Row-major strides, in elements.

    >>> contiguous_strides([sympy.Integer(2), sympy.Integer(3), sympy.Integer(4)])
    (12, 4, 1)
    """
    strides: list[Expr] = []
    step: Expr = ONE
    for size in reversed(shape):
        strides.append(step)
        step = step * size if size != 0 else step
    return tuple(reversed(strides))


def flatten(index: Sequence[Expr], strides: Sequence[Expr], offset: Expr = ZERO) -> Expr:
    """The element offset of a multi-dimensional index."""
    return sympy.Add(offset, *(i * s for i, s in zip(index, strides, strict=True)))


def unflatten(flat: Expr, shape: Sequence[Expr], extents: Mapping[Symbol, Expr] | None = None) -> list[Expr]:
    """The row-major multi-dimensional index of element ``flat`` of ``shape``, simplified under ``extents``."""
    extents = extents or {}
    index: list[Expr] = []
    for dim, (size, stride) in enumerate(zip(shape, contiguous_strides(shape))):
        if size == 1:
            index.append(ZERO)
            continue
        coordinate = floor_div(flat, stride, extents)
        index.append(coordinate if _leading(shape, dim) else modulo(coordinate, size, extents))
    return index


def _leading(shape: Sequence[Expr], dim: int) -> bool:
    return all(size == 1 for size in shape[:dim])


def reshape_index(
    old: Sequence[Expr], new: Sequence[Expr], index: Sequence[Expr], extents: Mapping[Symbol, Expr] | None = None
) -> list[Expr]:
    """The index into shape ``old`` of the element at ``index`` of shape ``new`` (equal element counts).

    Dimensions are matched in the smallest groups with equal products, so that a split or a merge of one
    dimension leaves the others alone.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> n = sympy.Integer
    >>> reshape_index([n(6), n(5)], [n(2), n(3), n(5)], [i, j, n(4)])
    [3*i + j, 4]
    """
    extents = dict(extents or {})
    for position, size in zip(index, new, strict=True):
        if isinstance(position, Symbol) and position not in extents:
            extents[position] = size
    result: list[Expr] = []
    for old_group, new_group in match_groups(tuple(old), tuple(new)):
        old_sizes, new_sizes = [old[d] for d in old_group], [new[d] for d in new_group]
        positions = [index[d] for d in new_group]
        if len(old_sizes) == 1 and len(new_sizes) == 1:
            result += positions
            continue
        flat = flatten(positions, contiguous_strides(new_sizes))
        result += [flat] if len(old_sizes) == 1 else unflatten(flat, old_sizes, extents)
    return result


@lru_cache(maxsize=4096)
def match_groups(old: tuple[Expr, ...], new: tuple[Expr, ...]) -> list[tuple[list[int], list[int]]]:
    """Pair up runs of dimensions of two shapes whose products are equal, the shortest runs possible.

    >>> n = sympy.Integer
    >>> match_groups((n(6), n(5)), (n(2), n(3), n(5)))
    [([0], [0, 1]), ([1], [2])]
    """
    groups: list[tuple[list[int], list[int]]] = []
    a = b = 0
    while a < len(old) or b < len(new):
        left, right = [], []
        left_size: Expr = ONE
        right_size: Expr = ONE
        if a < len(old):
            left.append(a)
            left_size = old[a]
            a += 1
        if b < len(new):
            right.append(b)
            right_size = new[b]
            b += 1
        while not same(left_size, right_size):
            grow_left = _smaller(left_size, right_size)
            if (grow_left or b >= len(new)) and a < len(old):
                left.append(a)
                left_size = left_size * old[a]
                a += 1
            elif b < len(new):
                right.append(b)
                right_size = right_size * new[b]
                b += 1
            elif a < len(old):
                left.append(a)
                left_size = left_size * old[a]
                a += 1
            else:
                break
        while a < len(old) and old[a] == 1 and (b >= len(new)):
            left.append(a)
            a += 1
        while b < len(new) and new[b] == 1 and (a >= len(old)):
            right.append(b)
            b += 1
        groups.append((left, right))
    return groups


def _smaller(left: Expr, right: Expr) -> bool:
    if left.is_number and right.is_number:
        return bool(left < right)
    quotient = sympy.cancel(right / left)
    if quotient.is_number:
        return bool(quotient > 1)
    denominator = sympy.fraction(quotient)[1]
    return bool(denominator == 1)


def refine(sizes: Sequence[Expr], other: Sequence[Expr]) -> list[Expr] | None:
    """The coarsest shape that both shapes are row-major merges of, or None where there is none.

    >>> n = sympy.Integer
    >>> refine([n(6), n(5)], [n(2), n(15)])
    [2, 3, 5]
    >>> refine([n(6)], [n(4)]) is None
    True
    """
    left = [size for size in sizes if size != 1]
    right = [size for size in other if size != 1]
    result: list[Expr] = []
    a = b = 0
    while a < len(left) and b < len(right):
        x, y = left[a], right[b]
        if same(x, y):
            result.append(x)
            a, b = a + 1, b + 1
            continue
        ratio = divide(x, y)
        if ratio is not None:  # x = outer part handled last: y is a prefix of x
            result.append(y)
            left[a] = ratio
            b += 1
            continue
        ratio = divide(y, x)
        if ratio is None:
            return None
        result.append(x)
        right[b] = ratio
        a += 1
    return result if a == len(left) and b == len(right) else None


def divide(numerator: Expr, denominator: Expr) -> Expr | None:
    """The exact quotient, or None where it is not known to be a whole number."""
    if denominator == 0:
        return None
    if numerator.is_Integer and denominator.is_Integer:
        return numerator / denominator if int(numerator) % int(denominator) == 0 else None
    quotient = sympy.cancel(numerator / denominator)
    parts = sympy.fraction(quotient)
    return quotient if parts[1] == 1 else None


def upper_bound(expr: Expr, extents: Mapping[Symbol, Expr]) -> Expr | None:
    """The largest value of an index over loop variables in ``[0, extent)``, or None where it is unknown."""
    if expr.is_number:
        return expr
    if isinstance(expr, Symbol):
        extent = extents.get(expr)
        return None if extent is None else extent - 1
    if isinstance(expr, sympy.Add):
        bounds = [upper_bound(term, extents) for term in expr.args]
        return None if any(bound is None for bound in bounds) else sympy.Add(*bounds)  # type: ignore[arg-type]
    if isinstance(expr, sympy.Mul):
        bounds = []
        for factor in expr.args:
            if factor.is_number and not factor.is_nonnegative:
                return None
            if isinstance(factor, Symbol) and factor not in extents:
                bounds.append(factor if factor.is_nonnegative else None)  # a size symbol bounds itself
            else:
                bounds.append(upper_bound(factor, extents))
        return None if any(bound is None for bound in bounds) else sympy.Mul(*bounds)  # type: ignore[arg-type]
    if isinstance(expr, Mod):
        return expr.args[1] - 1
    if isinstance(expr, FloorDiv):
        inner = upper_bound(expr.args[0], extents)
        if inner is not None and expr.args[1].is_positive:
            return FloorDiv(inner, expr.args[1])
    return None


def is_nonnegative(expr: Expr, extents: Mapping[Symbol, Expr]) -> bool:
    """Whether an index is known never to be negative."""
    if expr.is_nonnegative:
        return True
    if isinstance(expr, (sympy.Add, sympy.Mul)):
        return all(is_nonnegative(arg, extents) for arg in expr.args)
    return isinstance(expr, Symbol) and expr in extents


def less_than(expr: Expr, bound: Expr, extents: Mapping[Symbol, Expr]) -> bool:
    """Whether ``0 <= expr < bound`` is known to hold."""
    if not is_nonnegative(expr, extents):
        return False
    top = upper_bound(expr, extents)
    if top is None:
        return False
    gap = sympy.expand(bound - top - 1)
    return bool(gap.is_nonnegative)


def split_multiple(expr: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """Split a sum into (quotient, rest) with ``expr == quotient * divisor + rest``, term by term."""
    quotient, rest = [], []
    for term in sympy.Add.make_args(sympy.expand(expr)):
        exact = _exact_term(term, divisor)
        if exact is None:
            rest.append(term)
        else:
            quotient.append(exact)
    return sympy.Add(*quotient), sympy.Add(*rest)


def _exact_term(term: Expr, divisor: Expr) -> Expr | None:
    if divisor == 1:
        return term
    coefficient, symbols = term.as_coeff_Mul()
    if divisor.is_Integer:
        return term / divisor if coefficient.is_Integer and int(coefficient) % int(divisor) == 0 else None
    number, divisor_symbols = divisor.as_coeff_Mul()
    if not (coefficient.is_Integer and number.is_Integer) or int(coefficient) % int(number) != 0:
        return None
    factors = list(sympy.Mul.make_args(symbols))
    for needed in sympy.Mul.make_args(divisor_symbols):
        if needed not in factors:
            return None
        factors.remove(needed)
    return sympy.Mul(coefficient / number, *factors)


def floor_div(expr: Expr, divisor: Expr, extents: Mapping[Symbol, Expr]) -> Expr:
    """``expr // divisor`` with whole multiples taken out: ``(a*d + r) // d -> a`` where ``0 <= r < d``."""
    if divisor == 1:
        return expr
    quotient, rest = split_multiple(expr, divisor)
    if less_than(rest, divisor, extents):
        return quotient
    if quotient != 0 and is_nonnegative(rest, extents):
        return quotient + floor_div(rest, divisor, extents)
    reduced = _common_factor(rest if quotient == 0 else expr, divisor, extents)
    return reduced if reduced is not None else FloorDiv(expr, divisor)


def _common_factor(expr: Expr, divisor: Expr, extents: Mapping[Symbol, Expr]) -> Expr | None:
    """``(6*i + j) // 12 -> i // 2`` where ``0 <= j < 6``: the terms below the common factor cannot carry."""
    if not divisor.is_Integer:
        return None
    terms = sympy.Add.make_args(expr)
    factors = sorted(
        {
            int(sympy.gcd(term.as_coeff_Mul()[0], divisor))
            for term in terms
            if term.as_coeff_Mul()[0].is_Integer and term.as_coeff_Mul()[0] > 1
        },
        reverse=True,
    )
    for factor in factors:
        if factor <= 1 or factor == int(divisor):
            continue
        quotient, rest = split_multiple(expr, sympy.Integer(factor))
        if quotient != 0 and less_than(rest, sympy.Integer(factor), extents):
            return floor_div(quotient, divisor / factor, extents)
    return None


def modulo(expr: Expr, divisor: Expr, extents: Mapping[Symbol, Expr]) -> Expr:
    """``expr % divisor`` with whole multiples dropped: ``(a*d + r) % d -> r`` where ``0 <= r < d``."""
    if divisor == 1:
        return ZERO
    quotient, rest = split_multiple(expr, divisor)
    if less_than(rest, divisor, extents):
        return rest
    return Mod(rest, divisor) if is_nonnegative(rest, extents) else Mod(expr, divisor)


def simplify(expr: Expr, extents: Mapping[Symbol, Expr]) -> Expr:
    """Rewrite FloorDiv and Mod from the inside out, knowing that each loop variable is in ``[0, extent)``.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> simplify(FloorDiv(8 * i + j, 8), {i: sympy.Integer(4), j: sympy.Integer(8)})
    i
    """
    if not expr.args or not expr.has(FloorDiv, Mod):
        return expr
    args = [simplify(arg, extents) for arg in expr.args]
    if isinstance(expr, FloorDiv):
        return floor_div(args[0], args[1], extents)
    if isinstance(expr, Mod):
        return modulo(args[0], args[1], extents)
    return expr.func(*args)


