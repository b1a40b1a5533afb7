"""Size symbols from the sizes of tensors: a symbol that stands alone, or an affine expression inverted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sympy import Expr, Symbol

from smelt.records import dataclass
from smelt.symbolic.affine import difference, divided, linear, symbols_in


@dataclass(frozen=True, slots=True)
class Solution:
    """``symbol = value``, where ``value`` is an expression of ``size``, the size of dimension ``dim`` of
    ``tensor``, and of symbols solved before.
    """

    symbol: Symbol
    tensor: str
    dim: int
    size: Symbol
    value: Expr

    @property
    def is_plain(self) -> bool:
        """Whether the symbol is the size itself."""
        return self.value == self.size


def solve_sizes(
    shapes: Iterable[tuple[str, Sequence[Expr]]], known: Collection[Symbol] = ()
) -> list[Solution]:
    """The solutions for all symbols of ``shapes`` (tensor, shape) that are not ``known`` and that the sizes
    determine, in computation order.

    >>> h, w = Symbol("h", integer=True), Symbol("w", integer=True)
    >>> [(each.symbol, each.value) for each in solve_sizes([("x", (2 * h + 1, h + w)), ("y", (2 * w,))])]
    [(h, ((x_size_0 - 1)//2)), (w, -h + x_size_1)]
    """
    found: dict[Symbol, Solution] = {}
    rest: list[tuple[Expr, str, int]] = []
    for tensor, shape in shapes:
        for dim, size in enumerate(shape):
            if isinstance(size, Symbol):
                if size not in known and size not in found:
                    own = _size_of(tensor, dim)
                    found[size] = Solution(size, tensor, dim, own, own)
            elif not size.is_Integer:
                rest.append((size, tensor, dim))
    before = -1
    while before != len(found):  # one that is found may leave another one alone
        before = len(found)
        for size, tensor, dim in rest:
            unknown = [each for each in symbols_in(size) if each not in found and each not in known]
            if len(unknown) == 1:
                own = _size_of(tensor, dim)
                value = inverse(size, unknown[0], own)
                if value is not None:
                    found[unknown[0]] = Solution(unknown[0], tensor, dim, own, value)
    return list(found.values())


def inverse(size: Expr, symbol: Symbol, value: Symbol) -> Expr | None:
    """The solution for ``symbol`` of ``size == value``, where ``size`` is affine in it; None if it is not
    affine.

    >>> h, n = Symbol("h", integer=True), Symbol("n", integer=True)
    >>> inverse(4 * h + 2, h, n), inverse(h * h, h, n)
    (((n - 2)//4), None)
    """
    factor, rest = linear(size, symbol)
    if not factor.is_Integer or factor == 0 or symbol in symbols_in(rest):
        return None
    if factor < 0:
        return divided(difference(rest, value), -factor)
    return divided(difference(value, rest), factor)


def _size_of(tensor: str, dim: int) -> Symbol:
    return Symbol(f"{tensor}_size_{dim}", integer=True, nonnegative=True)
