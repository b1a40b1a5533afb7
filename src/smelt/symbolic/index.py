"""Index algebra: flatten, unflatten, reshape and the simplification that keeps indices readable.

Every rule here is tested by running both sides over all values of small ranges. SymPy's own evaluation of
FloorDiv and Mod is slow: our rules come first, build the node without evaluation, and cache it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import gcd

import sympy
from sympy import Expr, Symbol
from torch.utils._sympy.functions import FloorDiv, Mod

from smelt.symbolic.affine import (
    divided,
    expand,
    quotient_of,
    remainder,
    replaced,
    rest_of,
    times,
    total,
)
from smelt.symbolic.bounds import Extents, bounds, is_nonnegative, known_extents, less_than
from smelt.symbolic.expr import same, usual_form

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


def contiguous_strides(shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """Row-major strides, in elements; a dimension of size 0 counts as 1, as in ATen.

    >>> contiguous_strides([sympy.Integer(2), sympy.Integer(3), sympy.Integer(4)])
    (12, 4, 1)
    """
    return _contiguous_strides(tuple(shape))


@lru_cache(maxsize=4096)
def _contiguous_strides(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    strides: list[Expr] = []
    step: Expr = ONE
    for size in reversed(shape):
        strides.append(step)
        step = step * size if size != 0 else step
    return tuple(reversed(strides))


def flatten(index: Sequence[Expr], strides: Sequence[Expr], offset: Expr = ZERO) -> Expr:
    """The element offset of a multi-dimensional index."""
    return _flatten(tuple(index), tuple(strides), offset)


@lru_cache(maxsize=16384)
def _flatten(index: tuple[Expr, ...], strides: tuple[Expr, ...], offset: Expr) -> Expr:
    return total([offset, *(times(i, s) for i, s in zip(index, strides, strict=True))])


def span(shape: Sequence[Expr], strides: Sequence[Expr]) -> Expr:
    """The number of elements from the first to the last one of a strided buffer.

    >>> span([sympy.Integer(2), sympy.Integer(3)], [sympy.Integer(8), sympy.Integer(1)])
    11
    """
    if any(size == 0 for size in shape):
        return ZERO
    return expand(total([ONE, *(times(size - 1, stride) for size, stride in zip(shape, strides))]))


def unflatten(flat: Expr, shape: Sequence[Expr], extents: Extents | None = None) -> list[Expr]:
    """The row-major multi-dimensional index of element ``flat`` of ``shape``, simplified under ``extents``.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> unflatten(4 * i + j, [sympy.Integer(3), sympy.Integer(4)], {i: sympy.Integer(3), j: sympy.Integer(4)})
    [i, j]
    """
    return list(_unflatten(flat, tuple(shape), known_extents((flat,), extents)))


@lru_cache(maxsize=8192)
def _unflatten(
    flat: Expr, shape: tuple[Expr, ...], known: tuple[tuple[Symbol, Expr], ...]
) -> tuple[Expr, ...]:
    extents = dict(known)
    if any(size == 0 for size in shape):
        return (ZERO,) * len(shape)
    index: list[Expr] = []
    leading = True  # the first dimension of more than one element needs no modulo
    for size, stride in zip(shape, contiguous_strides(shape)):
        if size == 1:
            index.append(ZERO)
            continue
        coordinate = floor_div(flat, stride, extents)
        index.append(coordinate if leading else modulo(coordinate, size, extents))
        leading = False
    return tuple(index)


def reshape_index(
    old: Sequence[Expr], new: Sequence[Expr], index: Sequence[Expr], extents: Extents | None = None
) -> list[Expr]:
    """The index into shape ``old`` of the element at ``index`` of shape ``new`` (equal element counts).

    Dimensions are matched in the smallest groups with equal products, so that a split or a merge of one
    dimension leaves the others alone.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> n = sympy.Integer
    >>> reshape_index([n(6), n(5)], [n(2), n(3), n(5)], [i, j, n(4)])
    [3*i + j, 4]
    """
    place = tuple(index)
    return list(_reshape_index(tuple(old), tuple(new), place, known_extents(place, extents)))


@lru_cache(maxsize=16384)
def _reshape_index(
    old: tuple[Expr, ...],
    new: tuple[Expr, ...],
    index: tuple[Expr, ...],
    known: tuple[tuple[Symbol, Expr], ...],
) -> tuple[Expr, ...]:
    extents = dict(known)
    for position, size in zip(index, new, strict=True):
        if isinstance(position, Symbol) and position not in extents:
            extents[position] = size
    result: list[Expr] = []
    for old_group, new_group in match_groups(old, new):
        old_sizes, new_sizes = [old[d] for d in old_group], [new[d] for d in new_group]
        positions = [index[d] for d in new_group]
        if len(old_sizes) == 1 and len(new_sizes) == 1:
            result += positions
            continue
        opaque: dict[Symbol, Expr] = {}
        for d, (position, size) in enumerate(zip(positions, new_sizes)):
            if size == 1:
                positions[d] = ZERO
            elif len(old_sizes) > 1 and not less_than(position, size, extents):
                # in range all the same: stands for itself by a symbol with that extent
                symbol = Symbol(f"_position{d}", integer=True, nonnegative=True)
                opaque[symbol], extents[symbol], positions[d] = position, size, symbol
        flat = flatten(positions, contiguous_strides(new_sizes))
        if len(old_sizes) == 1:
            result.append(flat)
            continue
        found = unflatten(flat, old_sizes, extents)
        result += [replaced(expr, opaque) for expr in found]
    return tuple(result)


@lru_cache(maxsize=4096)
def match_groups(
    old: tuple[Expr, ...], new: tuple[Expr, ...]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Pair up runs of dimensions of two shapes whose products are equal, the shortest runs possible.

    >>> n = sympy.Integer
    >>> match_groups((n(6), n(5)), (n(2), n(3), n(5)))
    (((0,), (0, 1)), ((1,), (2,)))
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
            else:
                break
        while a < len(old) and old[a] == 1 and (b >= len(new)):
            left.append(a)
            a += 1
        while b < len(new) and new[b] == 1 and (a >= len(old)):
            right.append(b)
            b += 1
        groups.append((left, right))
    return tuple((tuple(left), tuple(right)) for left, right in groups)


def _smaller(left: Expr, right: Expr) -> bool:
    if left.is_number and right.is_number:
        return bool(left < right)
    quotient = divide(right, left)
    return quotient is not None and quotient != 1


def refine(sizes: Sequence[Expr], other: Sequence[Expr]) -> list[Expr] | None:
    """The coarsest shape of which both shapes are row-major merges, or None if there is none.

    >>> n = sympy.Integer
    >>> refine([n(6), n(5)], [n(2), n(15)])
    [2, 3, 5]
    >>> refine([n(6)], [n(4)]) is None
    True
    """
    found = _refine(tuple(sizes), tuple(other))
    return None if found is None else list(found)


@lru_cache(maxsize=8192)
def _refine(sizes: tuple[Expr, ...], other: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
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
        # The trailing parts are compared last: row-major merges share their prefixes.
        ratio = divide(x, y)
        if ratio is not None:
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
    return tuple(result) if a == len(left) and b == len(right) else None


@lru_cache(maxsize=8192)
def divide(numerator: Expr, denominator: Expr) -> Expr | None:
    """The exact quotient, or None where it is not known to be a whole number.

    >>> divide(sympy.Integer(12), sympy.Integer(4)), divide(sympy.Integer(12), sympy.Integer(5))
    (3, None)
    """
    if denominator == 0:
        return None
    if numerator.is_Integer and denominator.is_Integer:
        return numerator / denominator if int(numerator) % int(denominator) == 0 else None
    quotient = sympy.cancel(numerator / denominator)
    whole = sympy.fraction(quotient)[1] == 1 and all(number.is_Integer for number in _coefficients(quotient))
    return quotient if whole else None


def _coefficients(expr: Expr) -> list[Expr]:
    return [term.as_coeff_Mul()[0] for term in sympy.Add.make_args(expand(expr))]


# -- division ---------------------------------------------------------------------------------------------


def terms_of(expr: Expr) -> tuple[Expr, ...]:
    """The terms of a sum, with products of sums multiplied out."""
    terms = sympy.Add.make_args(expr)
    for term in terms:
        if isinstance(term, (sympy.Mul, sympy.Pow)) and any(not arg.is_Atom for arg in term.args):
            return sympy.Add.make_args(expand(expr))
    return terms


def split_multiple(expr: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """Split a sum into (quotient, rest) with ``expr == quotient * divisor + rest``, term by term.

    A number is split as Python's divmod does it: ``7 + 4*i -> (i + 1, 3)`` for the divisor 4.
    """
    if isinstance(divisor, sympy.Add):
        return _split_by_sum(list(terms_of(expr)), divisor)
    quotient, rest = [], []
    for term in terms_of(expr):
        if term.is_Integer and divisor.is_Integer:
            whole, part = divmod(int(term), int(divisor))
            quotient.append(sympy.Integer(whole))
            rest.append(sympy.Integer(part))
            continue
        exact = _exact_term(term, divisor)
        if exact is None:
            rest.append(term)
        else:
            quotient.append(exact)
    return sympy.Add(*quotient), sympy.Add(*rest)


def _split_by_sum(rest: list[Expr], divisor: sympy.Add) -> tuple[Expr, Expr]:
    """``i*n + i + j -> (i, j)`` for the divisor ``n + 1``: all terms of a multiple are present."""
    first, *others = (part for part in reversed(divisor.args))
    quotient = []
    for term in tuple(rest):
        exact = _exact_term(term, first)
        multiple = [] if exact is None else [term, *(exact * other for other in others)]
        if multiple and all(part in rest for part in multiple):
            rest = [part for part in rest if part not in multiple]
            quotient.append(exact)
    return sympy.Add(*quotient), sympy.Add(*rest)


def _exact_term(term: Expr, divisor: Expr) -> Expr | None:
    if divisor == 1:
        return term
    coefficient, symbols = term.as_coeff_Mul()
    if divisor.is_Integer:
        if not coefficient.is_Integer or int(coefficient) % int(divisor) != 0:
            return None
        return sympy.Integer(int(coefficient) // int(divisor)) * symbols
    number, divisor_symbols = divisor.as_coeff_Mul()
    if not (coefficient.is_Integer and number.is_Integer) or int(coefficient) % int(number) != 0:
        return None
    factors = list(sympy.Mul.make_args(symbols))
    for needed in sympy.Mul.make_args(divisor_symbols):
        if needed not in factors:
            return None
        factors.remove(needed)
    return sympy.Mul(sympy.Integer(int(coefficient) // int(number)), *factors)


def floor_div(expr: Expr, divisor: Expr, extents: Extents | None = None) -> Expr:
    """``expr // divisor`` (a positive divisor) with whole multiples taken out.

    ``(a*d + r) // d -> a`` where ``0 <= r < d``; ``(f*a + r) // (f*d) -> a // d`` where ``0 <= r < f``. The
    remaining dividend is shifted to be nonnegative if any bound is known.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> floor_div(8 * i + j, sympy.Integer(8), {j: sympy.Integer(8)})
    i
    """
    return _floor_div(expr, divisor, known_extents((expr, divisor), extents))


@lru_cache(maxsize=16384)
def _floor_div(expr: Expr, divisor: Expr, known: tuple[tuple[Symbol, Expr], ...]) -> Expr:
    extents = dict(known)
    if divisor == 1:
        return expr
    if isinstance(expr, FloorDiv) and divisor.is_positive and expr.args[1].is_positive:
        return floor_div(expr.args[0], expr.args[1] * divisor, extents)  # (a // b) // c -> a // (b * c)
    quotient, rest = split_multiple(expr, divisor)
    if less_than(rest, divisor, extents):
        return quotient
    carry, dividend = _lift(rest, divisor, extents)
    if dividend is None:
        return divided(expr, divisor)
    if less_than(dividend, divisor, extents):
        return quotient - carry
    reduced = _common_factor(dividend, divisor, extents)
    if reduced is None:
        plain = divisor.is_Integer  # our rules have said it all; by a symbol, SymPy may know more
        reduced = usual_form(
            FloorDiv(dividend, divisor, evaluate=False) if plain else quotient_of(dividend, divisor)
        )
    return quotient - carry + reduced


def modulo(expr: Expr, divisor: Expr, extents: Extents | None = None) -> Expr:
    """``expr % divisor`` (a positive divisor, Python's sign) with whole multiples dropped.

    ``(a*d + r) % d -> r`` where ``0 <= r < d``; ``(f*a + r) % (f*d) -> f*(a % d) + r`` where ``0 <= r < f``.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> modulo(8 * i + j, sympy.Integer(8), {j: sympy.Integer(8)})
    j
    """
    return _modulo(expr, divisor, known_extents((expr, divisor), extents))


@lru_cache(maxsize=16384)
def _modulo(expr: Expr, divisor: Expr, known: tuple[tuple[Symbol, Expr], ...]) -> Expr:
    extents = dict(known)
    if divisor == 1:
        return ZERO
    _, rest = split_multiple(expr, divisor)
    if less_than(rest, divisor, extents):
        return rest
    _, dividend = _lift(rest, divisor, extents)
    if dividend is None:
        return remainder(expr, divisor) if not expr.is_Integer else expr % divisor
    if less_than(dividend, divisor, extents):
        return dividend
    for factor in _factors(dividend, divisor):
        quotient, rest = split_multiple(dividend, sympy.Integer(factor))
        if quotient != 0 and less_than(rest, sympy.Integer(factor), extents):
            return factor * modulo(quotient, divisor / factor, extents) + rest
    return Mod(dividend, divisor, evaluate=False) if divisor.is_Integer else rest_of(dividend, divisor)


def _lift(expr: Expr, divisor: Expr, extents: Extents) -> tuple[Expr, Expr | None]:
    """(k, expr + k*divisor) with a sum known to be nonnegative; (0, None) if no bound is known."""
    if is_nonnegative(expr, extents):
        return ZERO, expr
    low = bounds(expr, extents)[0]
    if low is not None and low.is_Integer and divisor.is_Integer and divisor > 0:
        count = sympy.Integer(-(int(low) // int(divisor)))
        return count, expr + count * divisor
    return ZERO, None


def _factors(expr: Expr, divisor: Expr) -> list[int]:
    """Proper common factors of the divisor and one of the terms, the largest first."""
    if not divisor.is_Integer:
        return []
    number = int(divisor)
    found = set()
    for term in terms_of(expr):
        coefficient = term.as_coeff_Mul()[0]
        if coefficient.is_Integer and not term.is_Integer:
            found.add(gcd(int(coefficient), number))
    return sorted((factor for factor in found if 1 < factor < number), reverse=True)


def _common_factor(expr: Expr, divisor: Expr, extents: Extents) -> Expr | None:
    """``(6*i + j) // 12 -> i // 2`` where ``0 <= j < 6``: the terms below the common factor cannot carry."""
    for factor in _factors(expr, divisor):
        quotient, rest = split_multiple(expr, sympy.Integer(factor))
        if quotient != 0 and less_than(rest, sympy.Integer(factor), extents):
            return floor_div(quotient, divisor / factor, extents)
    return None


def simplify(expr: Expr, extents: Mapping[Symbol, Expr]) -> Expr:
    """Rewrite FloorDiv and Mod from the inside out, knowing that each loop variable is in ``[0, extent)``.

    >>> i, j = sympy.symbols("i j", integer=True, nonnegative=True)
    >>> simplify(FloorDiv(8 * i + j, 8), {i: sympy.Integer(4), j: sympy.Integer(8)})
    i
    """
    if not has_division(expr):
        return expr
    return _simplify(expr, known_extents((expr,), extents))


def has_division(expr: Expr) -> bool:
    """Whether a FloorDiv or Mod occurs anywhere in the expression."""
    return bool(expr.args) and _has_division(expr)


@lru_cache(maxsize=16384)
def _has_division(expr: Expr) -> bool:
    return isinstance(expr, (FloorDiv, Mod)) or any(has_division(arg) for arg in expr.args)  # type: ignore[arg-type]


@lru_cache(maxsize=16384)
def _simplify(expr: Expr, known: tuple[tuple[Symbol, Expr], ...]) -> Expr:
    if not has_division(expr):
        return expr
    extents = dict(known)
    args = [_simplify(arg, known) for arg in expr.args]
    if isinstance(expr, FloorDiv):
        return floor_div(args[0], args[1], extents)
    if isinstance(expr, Mod):
        return modulo(args[0], args[1], extents)
    result = expr.func(*args)
    return _recombined(result) if isinstance(result, sympy.Add) and result.has(Mod) else result


def _recombined(total: Expr) -> Expr:
    """A sum in which quotient and remainder of one division are recombined.

    ``c * (x % q) + c * q * (x // q)`` is ``c * x``, and ``c * ((x // p) % q) + c * q * (x // (p * q))`` is
    ``c * (x // p)``: the terms of a flattened index that was split.
    """
    terms = list(sympy.Add.make_args(total))
    changed = True
    while changed:
        changed = False
        for term in terms:
            found = _remainder_of(term)
            if found is None:
                continue
            scale, base, modulus = found
            if isinstance(base, FloorDiv):
                numerator, divisor = base.args[0], base.args[1] * modulus
            else:
                numerator, divisor = base, modulus
            partner = scale * modulus * FloorDiv(numerator, divisor, evaluate=False)
            if partner in terms:
                terms.remove(term)
                terms.remove(partner)
                terms += sympy.Add.make_args(expand(scale * base))
                changed = True
                break
    return sympy.Add(*terms)


def _remainder_of(term: Expr) -> tuple[Expr, Expr, Expr] | None:
    """(c, x, q) of a term ``c * (x % q)``."""
    factors = sympy.Mul.make_args(term)
    remainders = [factor for factor in factors if isinstance(factor, Mod)]
    if len(remainders) != 1:
        return None
    base, modulus = remainders[0].args
    return sympy.Mul(*(factor for factor in factors if factor is not remainders[0])), base, modulus
