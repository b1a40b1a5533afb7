"""Complex arrays as two real ones, and the calls on them: complex numbers have no loop functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.mlir.arrays.dialect import Array, ArrayDialect, Dot, Shape
from smelt.mlir.arrays.evaluate import elementwise_on
from smelt.symbolic import is_one, numel
from smelt.symbolic.index import floor_div

ONE = sympy.Integer(1)
WIDE = torch.float64


@dataclass(frozen=True, slots=True)
class Complex:
    """Real and imaginary parts, of one dtype and one shape."""

    real: Array
    imaginary: Array

    @property
    def dtype(self) -> torch.dtype:
        return self.real.dtype.to_complex()

    @property
    def shape(self) -> Shape:
        return self.real.shape

    def each(self, function: Callable[[Array], Array]) -> Complex:
        return Complex(function(self.real), function(self.imaginary))


Either = Array | Complex


def each_part(x: Either, function: Callable[[Array], Array]) -> Either:
    """``function`` of an array, or of both parts."""
    return x.each(function) if isinstance(x, Complex) else function(x)


class Complexes:
    """The calls of a loop graph on complex arrays, under a dialect. Results have ``dtype`` and ``shape``."""

    def __init__(self, dialect: ArrayDialect) -> None:
        self.dialect = dialect

    def call(
        self, target: str, dtype: torch.dtype, shape: Shape, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Either:
        """The result of a call in `CALLS`; arrays among the arguments are `Array` or `Complex`.

        Raises:
            Unsupported: arguments that there is no way for.
        """
        given = {name: value for name, value in kwargs.items() if value is not None}
        if target == "aten._to_copy.default":
            given = {}  # its dtype is the result's; where the result lies does not matter here
        if given.keys() - {"alpha"}:
            raise Unsupported(f"{target} of complex numbers with {', '.join(given)}")
        return CALLS[target](self, dtype, shape, *args, **given)

    # -- helpers ----------------------------------------------------------------------------------------

    def apply(self, name: str, *args: Array) -> Array:
        return elementwise_on(self.dialect, name, *args)

    def convert(self, x: Array, dtype: torch.dtype) -> Array:
        return x if x.dtype == dtype else self.dialect.convert(x, dtype)

    def fit(self, x: Array, shape: Shape) -> Array:
        """The array repeated to ``shape``."""
        first = len(shape) - x.rank
        if first == 0 and all(is_one(size) == is_one(wanted) for size, wanted in zip(x.shape, shape)):
            return self.dialect.relabel(x, shape)
        return self.dialect.broadcast(x, shape, range(first, len(shape)))

    def number(self, value: float, like: Array) -> Array:
        return self.dialect.full(value, like.dtype, like.shape)

    def parts(self, x: Any, within: torch.dtype, shape: Shape) -> Complex:
        """An argument, maybe a number or a real array, as parts of ``within`` repeated to ``shape``."""
        if isinstance(x, (int, float, complex)):
            whole = complex(x)
            real, imaginary = (self.dialect.full(p, within, shape) for p in (whole.real, whole.imag))
            return Complex(real, imaginary)
        if isinstance(x, Array):
            real = self.fit(self.convert(x, within), shape)
            return Complex(real, self.dialect.full(0.0, within, shape))
        if not isinstance(x, Complex):
            raise Unsupported(f"complex numbers and {x}")
        return x.each(lambda part: self.fit(self.convert(part, within), shape))

    def length(self, x: Complex) -> Array:
        return self.apply("hypot", x.real, x.imaginary)

    def times(self, x: Complex, y: Complex) -> Complex:
        real = self.apply(
            "sub", self.apply("mul", x.real, y.real), self.apply("mul", x.imaginary, y.imaginary)
        )
        imaginary = self.apply(
            "add", self.apply("mul", x.real, y.imaginary), self.apply("mul", x.imaginary, y.real)
        )
        return Complex(real, imaginary)

    # -- elementwise ------------------------------------------------------------------------------------

    def create(self, dtype: torch.dtype, shape: Shape, real: Array, imaginary: Array) -> Complex:
        return Complex(self.fit(real, shape), self.fit(imaginary, shape))

    def polar(self, dtype: torch.dtype, shape: Shape, length: Array, angle: Array) -> Complex:
        length, angle = self.fit(length, shape), self.fit(angle, shape)
        real, imaginary = (self.apply("mul", length, self.apply(name, angle)) for name in ("cos", "sin"))
        return Complex(real, imaginary)

    def mul(self, dtype: torch.dtype, shape: Shape, x: Any, y: Any) -> Complex:
        within = dtype.to_real()
        return self.times(self.parts(x, within, shape), self.parts(y, within, shape))

    def sum_of(self, name: str, dtype: torch.dtype, shape: Shape, x: Any, y: Any, alpha: Any = 1) -> Complex:
        within = dtype.to_real()
        left, right = (self.parts(each, within, shape) for each in (x, y))
        if alpha != 1:
            right = self.times(right, self.parts(alpha, within, shape))
        return Complex(
            self.apply(name, left.real, right.real), self.apply(name, left.imaginary, right.imaginary)
        )

    def div(self, dtype: torch.dtype, shape: Shape, x: Any, y: Any) -> Complex:
        """``x * conj(y) / |y|²``, in float64, where complex64 does not overflow."""
        left, right = (self.parts(each, WIDE, shape) for each in (x, y))
        square = self.apply(
            "add",
            self.apply("mul", right.real, right.real),
            self.apply("mul", right.imaginary, right.imaginary),
        )
        product = self.times(left, Complex(right.real, self.apply("neg", right.imaginary)))
        return product.each(lambda part: self.convert(self.apply("truediv", part, square), dtype.to_real()))

    def neg(self, dtype: torch.dtype, shape: Shape, x: Complex) -> Complex:
        return x.each(lambda part: self.apply("neg", part))

    def conjugate(self, dtype: torch.dtype, shape: Shape, x: Complex) -> Complex:
        return Complex(x.real, self.apply("neg", x.imaginary))

    def abs(self, dtype: torch.dtype, shape: Shape, x: Complex) -> Array:
        return self.length(x)

    def angle(self, dtype: torch.dtype, shape: Shape, x: Complex) -> Array:
        return self.apply("atan2", x.imaginary, x.real)

    def exp(self, dtype: torch.dtype, shape: Shape, x: Complex) -> Complex:
        return self.polar(dtype, shape, self.apply("exp", x.real), x.imaginary)

    def to(self, dtype: torch.dtype, shape: Shape, x: Either) -> Either:
        """Real numbers have 0 for an imaginary part, which is lost the other way."""
        if dtype.is_complex:
            return self.parts(x, dtype.to_real(), shape)
        return self.convert(x.real if isinstance(x, Complex) else x, dtype)

    # -- structure --------------------------------------------------------------------------------------

    def flip(self, dtype: torch.dtype, shape: Shape, x: Complex, dims: Sequence[int]) -> Complex:
        over = sorted({int(d) % len(shape) for d in dims})
        return x.each(lambda part: self.dialect.reverse(part, over))

    def as_real(self, dtype: torch.dtype, shape: Shape, x: Complex) -> Array:
        line = (*x.shape, ONE)
        pair = [self.dialect.reshape(part, line) for part in (x.real, x.imaginary)]
        return self.dialect.concatenate(pair, len(line) - 1)

    def as_complex(self, dtype: torch.dtype, shape: Shape, x: Array) -> Complex:
        real, imaginary = (
            self.dialect.reshape(self._part(x, x.rank - 1, number, ONE), x.shape[:-1]) for number in range(2)
        )
        return Complex(real, imaginary)

    def _part(self, x: Array, dim: int, start: int, size: Expr) -> Array:
        starts, sizes = [sympy.Integer(0)] * x.rank, list(x.shape)
        starts[dim], sizes[dim] = sympy.Integer(start), size
        return self.dialect.slice(x, tuple(starts), tuple(sizes), (ONE,) * x.rank)

    def concatenate(self, dtype: torch.dtype, shape: Shape, parts: Sequence[Any], dim: int = 0) -> Complex:
        whole = [
            self.parts(part, dtype.to_real(), part.shape)
            for part in parts
            if len(part.shape) == len(shape)  # ATen leaves out empty tensors of rank 1
        ]
        along = dim % len(shape)
        return Complex(
            self.dialect.concatenate([each.real for each in whole], along),
            self.dialect.concatenate([each.imaginary for each in whole], along),
        )

    # -- sums -------------------------------------------------------------------------------------------

    def sum(
        self,
        dtype: torch.dtype,
        shape: Shape,
        x: Complex,
        dims: Sequence[int] | None = None,
        keepdim: bool = False,
    ) -> Complex:
        over = _dims(dims, len(x.shape))
        return x.each(lambda part: self.dialect.reshape(self.dialect.reduce("sum", part, over), shape))

    def vector_norm(
        self,
        dtype: torch.dtype,
        shape: Shape,
        x: Complex,
        order: Any = 2,
        dims: Sequence[int] | None = None,
        keepdim: bool = False,
    ) -> Array:
        """``(sum of |x| ** order) ** (1 / order)``, in float64."""
        over, order = _dims(dims, len(x.shape)), float(order)
        wide = x.each(lambda part: self.convert(part, WIDE))
        if order in (math.inf, -math.inf):
            found = self.dialect.reduce("max" if order > 0 else "min", self.length(wide), over)
        elif order == 0:
            there = self.apply("ne", self.length(wide), self.number(0.0, wide.real))
            found = self.dialect.reduce("sum", self.dialect.convert(there, WIDE), over)
        elif order == 2:
            squares = [self.apply("mul", part, part) for part in (wide.real, wide.imaginary)]
            found = self.apply("sqrt", self.dialect.reduce("sum", self.apply("add", *squares), over))
        else:
            powers = self.apply("pow", self.length(wide), self.number(order, wide.real))
            total = self.dialect.reduce("sum", powers, over)
            found = self.apply("pow", total, self.number(1.0 / order, total))
        found = self.convert(found, dtype)
        return found if found.shape == shape else self.dialect.reshape(found, shape)

    def matmul(self, dtype: torch.dtype, shape: Shape, x: Complex, y: Complex) -> Complex:
        rank = len(x.shape)
        batch = tuple(range(rank - 2))

        def dot(a: Array, b: Array) -> Array:
            return self.dialect.dot(a, b, Dot(batch, batch, (rank - 1,), (rank - 2,)))

        real = self.apply("sub", dot(x.real, y.real), dot(x.imaginary, y.imaginary))
        imaginary = self.apply("add", dot(x.real, y.imaginary), dot(x.imaginary, y.real))
        return Complex(real, imaginary)

    # -- Fourier transforms -----------------------------------------------------------------------------

    def _circle(self, rows: Expr, columns: Expr, count: Expr) -> Complex:
        """``exp(2 pi i j k / count)`` at ``[j, k]``, in float64."""
        shape = (rows, columns)
        turns = self.apply(
            "mul",
            self.dialect.broadcast(self.dialect.iota(rows, torch.int64), shape, [0]),
            self.dialect.broadcast(self.dialect.iota(columns, torch.int64), shape, [1]),
        )
        number = self.dialect.broadcast(self.dialect.size(count), shape, [])
        part = self.dialect.convert(self.apply("remainder", turns, number), WIDE)
        turn = self.apply("truediv", part, self.dialect.convert(number, WIDE))
        angle = self.apply("mul", turn, self.number(2 * math.pi, turn))
        return Complex(self.apply("cos", angle), self.apply("sin", angle))

    def _along(self, x: Array, table: Array, dim: int) -> Array:
        """The sum over ``dim`` of ``x[…, j, …] * table[j, k]``, with ``k`` in its place."""
        found = self.dialect.dot(x, table, Dot((), (), (dim,), (0,)))
        order = list(range(found.rank - 1))
        order.insert(dim, found.rank - 1)
        return self.dialect.transpose(found, order)

    def _scaled(self, x: Either, count: Expr, normalization: int, dtype: torch.dtype) -> Any:
        """Divided by the count, or its root; as numbers of ``dtype``."""

        def finish(part: Array) -> Array:
            if normalization:
                number = self.dialect.convert(self.dialect.size(count), WIDE)
                number = self.apply("sqrt", number) if normalization == 1 else number
                part = self.apply("truediv", part, self.dialect.broadcast(number, part.shape, []))
            return self.convert(part, dtype)

        return each_part(x, finish)

    def _turned(self, x: Complex, dim: int, forward: bool) -> Complex:
        """The transform along one dimension."""
        size = x.shape[dim]
        table = self._circle(size, size, size)
        if forward:
            table = Complex(table.real, self.apply("neg", table.imaginary))
        products = [
            [self._along(part, side, dim) for side in (table.real, table.imaginary)]
            for part in (x.real, x.imaginary)
        ]
        real = self.apply("sub", products[0][0], products[1][1])
        return Complex(real, self.apply("add", products[0][1], products[1][0]))

    def transform(
        self,
        dtype: torch.dtype,
        shape: Shape,
        x: Complex,
        dims: Sequence[int],
        normalization: int,
        forward: bool,
    ) -> Complex:
        """``sum over j of x[j] * exp(∓2 pi i j k / n)``, in float64."""
        over, found = _dims(dims, len(shape)), x.each(lambda part: self.convert(part, WIDE))
        for dim in over:
            found = self._turned(found, dim, bool(forward))
        return self._scaled(found, numel([x.shape[d] for d in over]), normalization, dtype.to_real())

    def real_transform(
        self,
        dtype: torch.dtype,
        shape: Shape,
        x: Array,
        dims: Sequence[int],
        normalization: int,
        onesided: bool,
    ) -> Complex:
        """The same of real numbers, of which half of the last dimension tells all."""
        over = [d % len(shape) for d in dims]
        last, wide = over[-1], self.convert(x, WIDE)
        table = self._circle(x.shape[last], shape[last], x.shape[last])
        minus = self.apply("neg", table.imaginary)
        found = Complex(*(self._along(wide, side, last) for side in (table.real, minus)))
        for dim in over[:-1]:
            found = self._turned(found, dim, True)
        return self._scaled(found, numel([x.shape[d] for d in over]), normalization, dtype.to_real())

    def transform_to_real(
        self, dtype: torch.dtype, shape: Shape, x: Complex, dims: Sequence[int], normalization: int, size: Any
    ) -> Array:
        """The inverse of `real_transform`: all but the first number, and the middle one of an even size,
        count twice."""
        over = [d % len(shape) for d in dims]
        last, found = over[-1], x.each(lambda part: self.convert(part, WIDE))
        for dim in over[:-1]:
            found = self._turned(found, dim, False)
        count = shape[last]
        half = floor_div(count, sympy.Integer(2)) + 1
        found = found.each(lambda part: self._part(part, last, 0, half))
        table = self._circle(half, count, count)
        place = self.dialect.iota(half, torch.int64)
        twice = self.apply("add", place, place)
        number = self.dialect.broadcast(self.dialect.size(count), place.shape, [])
        zero, one, two = (self.dialect.full(each, torch.int64, place.shape) for each in (0, 1, 2))
        single = self.apply("logical_or", self.apply("eq", place, zero), self.apply("eq", twice, number))
        weight = self.dialect.convert(self.apply("where", single, one, two), WIDE)
        weight = self.dialect.broadcast(weight, found.shape, [last])
        real, imaginary = (self.apply("mul", part, weight) for part in (found.real, found.imaginary))
        total = self.apply(
            "sub", self._along(real, table.real, last), self._along(imaginary, table.imaginary, last)
        )
        return self._scaled(total, numel([shape[d] for d in over]), normalization, dtype)


def _dims(dims: Sequence[int] | None, rank: int) -> list[int]:
    return sorted({int(d) % rank for d in dims}) if dims else list(range(rank))


CALLS: dict[str, Callable[..., Either]] = {
    "aten.complex.default": Complexes.create,
    "aten.polar.default": Complexes.polar,
    "aten.mul.Tensor": Complexes.mul,
    "aten.mul.Scalar": Complexes.mul,
    "aten.add.Tensor": lambda self, *args, **given: self.sum_of("add", *args, **given),
    "aten.sub.Tensor": lambda self, *args, **given: self.sum_of("sub", *args, **given),
    "aten.div.Tensor": Complexes.div,
    "aten.neg.default": Complexes.neg,
    "aten._conj_physical.default": Complexes.conjugate,
    "aten._conj_copy.default": Complexes.conjugate,
    "aten.abs.default": Complexes.abs,
    "aten.angle.default": Complexes.angle,
    "aten.exp.default": Complexes.exp,
    "aten._to_copy.default": Complexes.to,
    "aten.flip.default": Complexes.flip,
    "aten.view_as_real_copy.default": Complexes.as_real,
    "aten.view_as_complex_copy.default": Complexes.as_complex,
    "aten.cat.default": Complexes.concatenate,
    "aten.sum.dim_IntList": Complexes.sum,
    "aten.linalg_vector_norm.default": Complexes.vector_norm,
    "aten.mm.default": Complexes.matmul,
    "aten.bmm.default": Complexes.matmul,
    "aten._fft_r2c.default": Complexes.real_transform,
    "aten._fft_c2c.default": Complexes.transform,
    "aten._fft_c2r.default": Complexes.transform_to_real,
}
"""ATen call → function of (`Complexes`, the result's dtype and shape, the call's arguments)."""
