"""Fourier transforms as chains of pointwise nodes.

A transform of ``n = r1 * r2 * …`` numbers is a chain of stages (Stockham's order: the result needs no
permutation). With ``m = n / r``:

    y[p, j, q] = sum over k < r of x[p + m * k, q] * w(n) ** (j * (p + m * k))        for p < m, j < r

``q`` are the digits of earlier stages; ``m`` is the next stage's size. Roots of unity are tables, rounded
once. Real numbers of an even count are transformed as half as many complex ones. A count with a large prime
factor becomes a convolution, by transforms of a larger count (Bluestein). A count that is not known while
compiling is a sum by the definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import canonical_dim, cast, convert
from smelt.lowering.registry import lowers_own
from smelt.lowering.shapes.views import reshape
from smelt.lowering.tables import table
from smelt.lowering.tensor import Complex, Index, Tensor
from smelt.ops import ops
from smelt.symbolic import FloorDiv, Mod, as_expr, numel

aten = torch.ops.aten
ZERO = sympy.Integer(0)

LANES = 16
"""The least size of a first stage, if the count has such a divisor."""

UNROLLED = 2 * LANES
"""Stages of at most so many terms are written out, larger ones are loops."""

LARGEST_PRIME = 64
"""Stages of a larger prime are slower than two larger transforms."""


class Number(NamedTuple):
    """A value of a signal under an `ops` handler; a real one has no imaginary part."""

    real: Any
    imaginary: Any = None


Load = Callable[[Sequence[Expr], Expr, Sequence[Expr]], Number]
"""The number at an index: outer dimensions, place along the transform's dimension, inner dimensions."""


class Line(NamedTuple):
    """A dimension to be transformed, between outer and inner dimensions, and its direction."""

    ctx: Builder
    outer: tuple[Expr, ...]
    inner: tuple[Expr, ...]
    dtype: torch.dtype
    sign: int

    def node(self, shape: Sequence[Expr], value: Callable[[Index], Number]) -> Complex:
        """A buffer for each part of a value; ``shape`` are the sizes between outer and inner ones."""
        whole = (*self.outer, *shape, *self.inner)

        def part(number: int) -> Tensor:
            return self.ctx.pointwise(lambda index: value(index)[number], shape=whole, dtype=self.dtype)

        return Complex(part(0), part(1))

    def split(self, index: Index, between: int = 1) -> tuple[Index, Index, Index]:
        """An index as outer, own and inner ones."""
        first = len(self.outer)
        return index[:first], index[first : first + between], index[first + between :]

    def root(self, name: str, *numbers: int | float) -> Callable[..., Number]:
        """The elements of a table."""
        roots = table(self.ctx, name, *numbers, dtype=self.dtype)
        return lambda *place: Number(*(roots.load((*place, sympy.Integer(part))) for part in range(2)))


def _times(x: Number, y: Number) -> Number:
    if x.imaginary is None:
        return Number(ops.mul(x.real, y.real), ops.mul(x.real, y.imaginary))
    real = ops.sub(ops.mul(x.real, y.real), ops.mul(x.imaginary, y.imaginary))
    return Number(real, ops.add(ops.mul(x.real, y.imaginary), ops.mul(x.imaginary, y.real)))


def _plus_product(total: Number, x: Number, y: Number) -> Number:
    """``total + x * y``."""
    real, imaginary = ops.fma(x.real, y.real, total.real), ops.fma(x.real, y.imaginary, total.imaginary)
    if x.imaginary is None:
        return Number(real, imaginary)
    real = ops.fma(ops.neg(x.imaginary), y.imaginary, real)
    return Number(real, ops.fma(x.imaginary, y.real, imaginary))


def _compared(name: str, left: Expr, right: Expr) -> Any:
    return getattr(ops, name)(ops.index_expr(left, torch.int64), ops.index_expr(right, torch.int64))


# -- one dimension -----------------------------------------------------------------------------------------


def _radices(count: int) -> list[int]:
    """The sizes of the stages: at first one that fills a vector's lanes, with which later stages compute.

    >>> _radices(400), _radices(1000), _radices(202), _radices(7)
    ([16, 5, 5], [25, 8, 5], [2, 101], [7])
    """
    fitting = [n for n in range(LANES, 2 * LANES) if count % n == 0]
    first = min(fitting, key=lambda n: (-n % LANES / n, n), default=1)
    found: list[int] = []
    for prime in sympy.factorint(count // first, multiple=True):
        if found and found[-1] * prime <= 9:
            found[-1] *= int(prime)
        else:
            found.append(int(prime))
    return [first, *found] if first > 1 or not found else found


def _transformed(line: Line, load: Load, count: Expr, scale: float, more: bool = False) -> Complex:
    """The transform of ``count`` numbers along the line, times ``scale``; ``more``: the first numbers follow
    again, one or more.
    """
    if not count.is_Integer:
        return _summed(line, load, count)
    radices = _radices(int(count))
    if radices[-1] > LARGEST_PRIME:
        return _convolved(line, load, int(count), scale, more)
    rest, digits = int(count), tuple[Expr, ...]()
    found: Complex | None = None
    for radix in radices:
        rest //= radix
        results = radix + int(more and rest == 1)
        found = _stage(line, load, (radix, rest, results), digits, scale if rest == 1 else 1.0)
        digits = (sympy.Integer(results), *digits)
        load = _loader(found)
    assert found is not None
    return Complex(*(reshape(part, (*line.outer, numel(digits), *line.inner)) for part in found.parts))


def _loader(x: Complex) -> Load:
    """Loads what a stage has stored; its digits count as inner dimensions."""

    def load(outer: Sequence[Expr], place: Expr, inner: Sequence[Expr]) -> Number:
        return Number(*x.load((*outer, place, *inner)))

    return load


def _stage(
    line: Line, load: Load, size: tuple[int, int, int], digits: Sequence[Expr], scale: float
) -> Complex:
    """``[outer, p, j, digits, inner]``; ``size``: the radix, the numbers of ``p`` and of ``j``."""
    radix, rest, results = size
    inside = bool(digits) or bool(line.inner)  # lanes of a vector have equal weights
    weights = table(line.ctx, "stage", *size, line.sign, scale, int(inside), dtype=line.dtype)
    sizes = (sympy.Integer(rest), sympy.Integer(results))

    def weight(p: Expr, j: Expr, k: Expr) -> Number:
        places = ((p, j, k, part) if inside else (p, k, part, j) for part in map(sympy.Integer, range(2)))
        return Number(*map(weights.load, places))

    def value(index: Index) -> Number:
        outer, (p, j), inner = line.split(index, 2)
        total = Number(ops.constant(0.0, line.dtype), ops.constant(0.0, line.dtype))
        for k in range(radix):
            x, y = load(outer, p + rest * k, inner), weight(p, j, sympy.Integer(k))
            total = _times(x, y) if k == 0 else _plus_product(total, x, y)
        return total

    if radix <= UNROLLED:
        return line.node((*sizes, *digits), value)

    def term(index: Index, k: Expr) -> Number:
        outer, (p, j), inner = line.split(index, 2)
        return _times(load(outer, p + rest * k, inner), weight(p, j, k))

    whole, terms = (*line.outer, *sizes, *digits, *line.inner), (sympy.Integer(radix),)

    def summed(part: int) -> Tensor:
        inner_fn = lambda index, at: term(index, at[0])[part]  # noqa: E731
        found = line.ctx.reduction("sum", inner_fn, shape=whole, reduce_shape=terms, dtype=line.dtype)
        return found[0]

    return Complex(summed(0), summed(1))


def _summed(line: Line, load: Load, count: Expr) -> Complex:
    """The transform of a count that is not known, by its definition, in float64: the root of each product is
    looked up in a table that the program makes at first.
    """
    wide = torch.float64
    if line.ctx.device.type != "cpu":
        raise Unsupported("a Fourier transform of a size that is not known")

    def root(index: Index) -> Number:
        turn = ops.mul(
            ops.to_dtype(ops.index_expr(8 * index[0], torch.int64), wide), ops.constant(0.25, wide)
        )
        share = ops.truediv(turn, ops.to_dtype(ops.index_expr(count, torch.int64), wide))
        angle = ops.mul(share, ops.constant(math.pi, wide))
        return Number(ops.cos(angle), ops.mul(ops.sin(angle), ops.constant(float(line.sign), wide)))

    table = line._replace(outer=(), inner=(), dtype=wide).node((count,), root)
    whole = (*line.outer, count, *line.inner)

    def term(index: Index, at: Index) -> Number:
        outer, (j,), inner = line.split(index)
        product = ops.mul(ops.index_expr(j, torch.int64), ops.index_expr(at[0], torch.int64))
        rest = ops.remainder(product, ops.index_expr(count, torch.int64))
        place = ops.indirect_index(rest, count, wrap=False, check=False)
        value = load(outer, at[0], inner)
        parts = (None if part is None else convert(part, line.dtype, wide) for part in value)
        return _times(Number(*parts), Number(*table.load((place,))))

    def summed(part: int) -> Tensor:
        inner_fn = lambda index, at: term(index, at)[part]  # noqa: E731
        (found,) = line.ctx.reduction("sum", inner_fn, shape=whole, reduce_shape=(count,), dtype=wide)
        return found if line.dtype == wide else cast(line.ctx, found, line.dtype)

    return Complex(summed(0), summed(1))


def _convolved(line: Line, load: Load, count: int, scale: float, more: bool) -> Complex:
    """Bluestein's way: ``j * k = (j**2 + k**2 - (k - j)**2) / 2`` makes a transform a convolution."""
    padded = next(n for n in range(-(-2 * count // LANES) * LANES, 4 * count, LANES) if _is_good(n))
    chirp, scaled = line.root("chirp", count, line.sign, 1.0), line.root("chirp", count, line.sign, scale)
    spectrum = line.root("filter", count, padded, line.sign)

    def given(outer: Sequence[Expr], place: Expr, inner: Sequence[Expr]) -> Number:
        inside = _compared("lt", place, sympy.Integer(count))

        def part(number: int) -> Any:
            return ops.masked(inside, lambda: _times(load(outer, place, inner), chirp(place))[number], 0.0)

        return Number(part(0), part(1))

    ahead = _transformed(line._replace(sign=-1), given, sympy.Integer(padded), 1.0)

    def weighted(outer: Sequence[Expr], place: Expr, inner: Sequence[Expr]) -> Number:
        return _times(_loader(ahead)(outer, place, inner), spectrum(place))

    back = _transformed(line._replace(sign=1), weighted, sympy.Integer(padded), 1.0)

    def value(index: Index) -> Number:
        outer, (place,), inner = line.split(index)
        at = Mod(place, count) if more else place
        return _times(_loader(back)(outer, at, inner), scaled(at))

    return line.node((sympy.Integer(count + more),), value)


def _is_good(count: int) -> bool:
    """Whether a count has no prime factor above 5."""
    return max(sympy.primefactors(count), default=1) <= 5


# -- real numbers ------------------------------------------------------------------------------------------


def _from_real(line: Line, x: Tensor, count: Expr, scale: float) -> Complex:
    """The first ``count // 2 + 1`` numbers of the transform of real ones.

    Of an even count, neighbours are the parts of half as many complex numbers, whose transform is ``z``:
    ``X[k] = (z[k] + conj(z[-k])) / 2 - i / 2 * w ** k * (z[k] - conj(z[-k]))``.
    """

    def single(outer: Sequence[Expr], place: Expr, inner: Sequence[Expr]) -> Number:
        return Number(x.load((*outer, place, *inner)))

    def paired(outer: Sequence[Expr], place: Expr, inner: Sequence[Expr]) -> Number:
        return Number(*(x.load((*outer, 2 * place + part, *inner)) for part in range(2)))

    if not count.is_Integer or count % 2 == 1:
        return _narrowed(_transformed(line, single, count, scale), len(line.outer), FloorDiv(count, 2) + 1)
    half = FloorDiv(count, 2)
    z = _transformed(line, paired, half, 0.5 * scale, more=True)
    root = line.root("half", int(count), line.sign, 1.0)

    def value(index: Index) -> Number:
        outer, (k,), inner = line.split(index)
        one, other = (_loader(z)(outer, at, inner) for at in (k, half - k))
        total = Number(ops.add(one.real, other.real), ops.sub(one.imaginary, other.imaginary))
        rest = Number(ops.add(one.imaginary, other.imaginary), ops.sub(other.real, one.real))  # by i
        return _plus_product(total, rest, root(k))

    return line.node((half + 1,), value)


def _to_real(line: Line, x: Complex, count: Expr, scale: float) -> Tensor:
    """The real transform of ``count // 2 + 1`` numbers, which stand for ``count`` with their conjugates.

    The imaginary parts of the first one, and of the middle one of an even count, do not matter. Of an even
    count, the results are the parts of half as many complex numbers.
    """
    half = FloorDiv(count, 2)

    def given(outer: Sequence[Expr], place: Expr, inner: Sequence[Expr]) -> Number:
        real, imaginary = x.load((*outer, place, *inner))
        alone = _compared("eq", place, ZERO)
        if count.is_Integer and count % 2 == 0:
            alone = ops.logical_or(alone, _compared("eq", place, half))
        return Number(real, ops.where(alone, ops.constant(0.0, line.dtype), imaginary))

    if not count.is_Integer or count % 2 == 1:

        def mirrored(outer: Sequence[Expr], place: Expr, inner: Sequence[Expr]) -> Number:
            beyond = _compared("gt", place, half)
            near, far = ops.index_expr(place, torch.int64), ops.index_expr(count - place, torch.int64)
            at = ops.indirect_index(ops.where(beyond, far, near), half + 1, wrap=False, check=False)
            real, imaginary = given(outer, at, inner)
            return Number(real, ops.where(beyond, ops.neg(imaginary), imaginary))

        return _transformed(line, mirrored, count, scale).real

    root = line.root("half", int(count), line.sign, 1.0)

    def folded(outer: Sequence[Expr], k: Expr, inner: Sequence[Expr]) -> Number:
        one, other = given(outer, k, inner), given(outer, half - k, inner)
        total = Number(ops.add(one.real, other.real), ops.sub(one.imaginary, other.imaginary))
        rest = Number(  # times i
            ops.neg(ops.add(one.imaginary, other.imaginary)), ops.sub(one.real, other.real)
        )
        return _plus_product(total, rest, root(k))

    z = _transformed(line, folded, half, scale)

    def value(index: Index) -> Any:
        outer, (place, part), inner = line.split(index, 2)
        is_real = _compared("eq", part, ZERO)
        return ops.where(is_real, *z.load((*outer, place, *inner)))

    shape = (*line.outer, half, sympy.Integer(2), *line.inner)
    both = line.ctx.pointwise(value, shape=shape, dtype=line.dtype)
    return reshape(both, (*line.outer, count, *line.inner))


# -- rows --------------------------------------------------------------------------------------------------


def _narrowed(x: Complex, dim: int, size: Expr) -> Complex:
    shape = tuple(size if d == dim else each for d, each in enumerate(x.shape))
    return Complex(*(part.view(shape, tuple) for part in x.parts))


def _along(ctx: Builder, x: Tensor | Complex, dim: int, sign: int) -> Line:
    dtype = x.dtype.to_real() if x.dtype.is_complex else x.dtype
    if dtype not in (torch.float32, torch.float64):
        raise Unsupported(f"a Fourier transform of {x.dtype}")
    return Line(ctx, x.shape[:dim], x.shape[dim + 1 :], dtype, sign)


def _every(ctx: Builder, x: Complex, dims: Sequence[int], sign: int, scale: float) -> Complex:
    """The transforms along some dimensions, the last one first."""
    for number, dim in enumerate(reversed(dims)):
        factor = scale if number == len(dims) - 1 else 1.0
        x = _transformed(_along(ctx, x, dim, sign), _loader(x), x.shape[dim], factor)
    return x


def _scale(sizes: Sequence[Expr], normalization: int) -> float:
    """The factor of a transform: 1, or 1 by the root of its size, or by its size; sizes that are not known
    are left to `_divided`.
    """
    count = numel(sizes)
    if normalization == 0 or not count.is_Integer:
        return 1.0
    return 1.0 / (math.sqrt(int(count)) if normalization == 1 else int(count))


def _divided(ctx: Builder, x: Tensor, sizes: Sequence[Expr], normalization: int) -> Tensor:
    """``x`` times the factor of a transform, where the sizes are not known."""
    count = numel(sizes)
    if normalization == 0 or count.is_Integer:
        return x

    def value(index: Index) -> Any:
        divisor = ops.to_dtype(ops.index_expr(count, torch.int64), torch.float64)
        divisor = ops.sqrt(divisor) if normalization == 1 else divisor
        return ops.truediv(x.load(index), convert(divisor, torch.float64, x.dtype))

    return ctx.pointwise(value, shape=x.shape, dtype=x.dtype)


@lowers_own(aten._fft_c2c.default)
def fft_c2c(ctx: Builder, x: Complex, dim: Sequence[int], normalization: int, forward: bool) -> Complex:
    dims = [canonical_dim(each, len(x.shape)) for each in dim]
    sizes = [x.shape[each] for each in dims]
    found = _every(ctx, x, dims, -1 if forward else 1, _scale(sizes, normalization))
    return Complex(*(_divided(ctx, part, sizes, normalization) for part in found.parts))


@lowers_own(aten._fft_r2c.default)
def fft_r2c(ctx: Builder, x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Complex:
    *others, last = (canonical_dim(each, len(x.shape)) for each in dim)
    count = x.shape[last]
    sizes = [x.shape[each] for each in (*others, last)]
    scale = _scale(sizes, normalization)
    line = _along(ctx, x, last, -1)
    found = _from_real(line, x, count, 1.0 if others else scale)
    if not onesided:
        found = _two_sided(line, found, count)
    found = _every(ctx, found, others, -1, scale) if others else found
    return Complex(*(_divided(ctx, part, sizes, normalization) for part in found.parts))


def _two_sided(line: Line, x: Complex, count: Expr) -> Complex:
    """All numbers of the transform of real ones, of which the first half is known."""

    def value(index: Index) -> Number:
        outer, (k,), inner = line.split(index)
        beyond = _compared("gt", k, FloorDiv(count, 2))
        near, far = ops.index_expr(k, torch.int64), ops.index_expr(count - k, torch.int64)
        at = ops.indirect_index(ops.where(beyond, far, near), FloorDiv(count, 2) + 1, wrap=False, check=False)
        real, imaginary = x.load((*outer, at, *inner))
        return Number(real, ops.where(beyond, ops.neg(imaginary), imaginary))

    return line.node((count,), value)


@lowers_own(aten._fft_c2r.default)
def fft_c2r(ctx: Builder, x: Complex, dim: Sequence[int], normalization: int, last_dim_size: Any) -> Tensor:
    *others, last = (canonical_dim(each, len(x.shape)) for each in dim)
    count = as_expr(last_dim_size)
    sizes = [*(x.shape[each] for each in others), count]
    x = _every(ctx, x, others, 1, 1.0)
    found = _to_real(_along(ctx, x, last, 1), x, count, _scale(sizes, normalization))
    return _divided(ctx, found, sizes, normalization)
