"""Calls on complex tensors, which have no loop functions: elements are values of the ``complex`` dialect."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.loops.dependencies import variables
from smelt.loops.ir import Graph, StridedView
from smelt.mlir import bindings
from smelt.mlir.linalg.bodies import Bodies
from smelt.mlir.linalg.operands import ZERO
from smelt.mlir.linalg.scalars import ELEMENTWISE, Scalar, constant, convert, select, word
from smelt.mlir.linalg.sizes import IndexArithmetic
from smelt.mlir.linalg.writer import Operand, Writer, loop_index
from smelt.symbolic import is_one

Shape = Sequence[Expr]
Complex = tuple[Scalar, Scalar]


class Complexes:
    """Writes calls of one loop graph. ``view`` gives the tensor of a strided view of a buffer; results have
    the dtype and the shape of the buffer that they go to."""

    def __init__(self, bodies: Bodies, graph: Graph, view: Callable[[StridedView], Any]) -> None:
        self.bodies, self.graph, self.view = bodies, graph, view
        self.writer: Writer = bodies.writer

    def dtype(self, view: StridedView) -> torch.dtype:
        return self.graph.buffers[view.buffer].dtype

    def elementwise(
        self,
        views: Sequence[StridedView],
        dtype: torch.dtype,
        shape: Shape,
        function: Callable[..., Any],
    ) -> Any:
        """A tensor of ``function`` of the elements, which broadcast."""
        index = variables("i", len(shape))
        inputs = []
        for view in views:
            tail = index[len(shape) - len(view.shape) :]
            place = tuple(ZERO if is_one(size) else v for v, size in zip(tail, view.shape))
            inputs.append(Operand(self.view(view), place))
        out = Operand(self.writer.empty(dtype, shape), index)

        def body(seen: Sequence[Any], _: Sequence[Any]) -> list[Any]:
            values = [parts_of(value, self.dtype(view)) for value, view in zip(seen, views)]
            return [_joined(function(*values), dtype)]

        return self.writer.generic(index, 0, inputs, [out], body)[0]

    # -- calls -------------------------------------------------------------------------------------------

    def create(self, dtype: torch.dtype, shape: Shape, real: StridedView, imaginary: StridedView) -> Any:
        return self.elementwise([real, imaginary], dtype, shape, lambda x, y: (x[0], y[0]))

    def polar(self, dtype: torch.dtype, shape: Shape, length: StridedView, angle: StridedView) -> Any:
        def point(x: Complex, y: Complex) -> Complex:
            times = ELEMENTWISE["mul"]
            return times(x[0], ELEMENTWISE["cos"](y[0])), times(x[0], ELEMENTWISE["sin"](y[0]))

        return self.elementwise([length, angle], dtype, shape, point)

    def mul(self, dtype: torch.dtype, shape: Shape, x: Any, y: Any) -> Any:
        within = dtype.to_real()

        def product(a: Complex, b: Complex) -> Complex:
            (p, q), (r, s) = ([convert(part, within) for part in each] for each in (a, b))
            times = ELEMENTWISE["mul"]
            return (
                ELEMENTWISE["sub"](times(p, r), times(q, s)),
                ELEMENTWISE["add"](times(p, s), times(q, r)),
            )

        return self.elementwise(_tensors(x, y), dtype, shape, product)

    def sum(self, name: str, dtype: torch.dtype, shape: Shape, x: Any, y: Any, alpha: Any = 1) -> Any:
        within = dtype.to_real()
        if alpha != 1:
            raise Unsupported(f"{name} of complex numbers with a factor")

        def result(a: Complex, b: Complex) -> Any:
            return tuple(
                ELEMENTWISE[name](convert(p, within), convert(q, within)) for p, q in zip(a, b, strict=True)
            )

        return self.elementwise(_tensors(x, y), dtype, shape, result)

    def conjugate(self, dtype: torch.dtype, shape: Shape, x: StridedView) -> Any:
        return self.elementwise([x], dtype, shape, lambda a: (a[0], ELEMENTWISE["neg"](a[1])))

    def length(self, dtype: torch.dtype, shape: Shape, x: StridedView) -> Any:
        return self.elementwise([x], dtype, shape, lambda a: (_length(a),))

    def as_real(self, dtype: torch.dtype, shape: Shape, x: StridedView) -> Any:
        index, last = variables("i", len(shape)), len(shape) - 1
        out = Operand(self.writer.empty(dtype, shape), index)

        def body(seen: Sequence[Any], _: Sequence[Any]) -> list[Any]:
            real, imaginary = parts_of(seen[0], self.dtype(x))
            place = Scalar(loop_index(last), torch.int64)
            zero = IndexArithmetic().constant(0, torch.int64)
            return [select(ELEMENTWISE["eq"](place, zero), real, imaginary).value]

        return self.writer.generic(index, 0, [Operand(self.view(x), index[:-1])], [out], body)[0]

    def as_complex(self, dtype: torch.dtype, shape: Shape, x: StridedView) -> Any:
        index = variables("i", len(shape))
        tensor, out = self.view(x), Operand(self.writer.empty(dtype, shape), index)
        inputs = [Operand(tensor, (*index, sympy.Integer(part))) for part in range(2)]

        def body(seen: Sequence[Any], _: Sequence[Any]) -> list[Any]:
            real, imaginary = (Scalar(value, self.dtype(x)) for value in seen)
            return [_joined((real, imaginary), dtype)]

        return self.writer.generic(index, 0, inputs, [out], body)[0]

    def concatenate(
        self, dtype: torch.dtype, shape: Shape, parts: Sequence[StridedView], dim: int = 0
    ) -> Any:
        """One part after the other put into the whole."""
        within, dim = dtype.to_real(), dim % len(shape)
        whole = self.writer.empty(dtype, shape)
        start: Expr = ZERO
        for part in parts:
            if len(part.shape) != len(shape):
                continue  # ATen leaves out empty tensors of rank 1
            made = self.elementwise(
                [part], dtype, part.shape, lambda a: tuple(convert(each, within) for each in a)
            )
            starts = [start if d == dim else ZERO for d in range(len(shape))]
            whole = self.writer.insert(made, whole, starts, part.shape)
            start = start + part.shape[dim]
        return whole

    def vector_norm(
        self,
        dtype: torch.dtype,
        shape: Shape,
        x: StridedView,
        order: Any = 2,
        dims: Sequence[int] | None = None,
        keepdim: bool = False,
    ) -> Any:
        """``(sum of |x| ** order) ** (1 / order)``, in float64."""
        rank, wide = len(x.shape), torch.float64
        over = {d % rank for d in (dims or range(rank))}
        order = float(order)
        if order in (0.0, math.inf, -math.inf):
            raise Unsupported(f"the norm of order {order} of complex numbers")
        index = variables("i", rank)
        kept = [v for d, v in enumerate(index) if d not in over]
        reduced = [v for d, v in enumerate(index) if d in over]
        line = [x.shape[d] for d in range(rank) if d not in over]
        start = Operand(self.writer.fill(0.0, wide, line), tuple(kept))

        def add(seen: Sequence[Any], before: Sequence[Any]) -> list[Any]:
            parts = tuple(convert(part, wide) for part in parts_of(seen[0], self.dtype(x)))
            if order == 2:
                value = ELEMENTWISE["add"](*(ELEMENTWISE["mul"](part, part) for part in parts))
            else:
                value = ELEMENTWISE["pow"](_length(parts), constant(order, wide))
            return [ELEMENTWISE["add"](Scalar(before[0], wide), value).value]

        source = Operand(self.view(x), index)
        totals = self.writer.generic([*kept, *reduced], len(reduced), [source], [start], add)[0]
        places = variables("i", len(shape))
        dropped = [v for d, v in enumerate(places) if d not in over] if keepdim else list(places)
        out = Operand(self.writer.empty(dtype, shape), places)

        def root(seen: Sequence[Any], _: Sequence[Any]) -> list[Any]:
            value = ELEMENTWISE["pow"](Scalar(seen[0], wide), constant(1.0 / order, wide))
            if order == 2:
                value = ELEMENTWISE["sqrt"](Scalar(seen[0], wide))
            return [convert(value, dtype).value]

        return self.writer.generic(places, 0, [Operand(totals, tuple(dropped))], [out], root)[0]

    def real_transform(
        self,
        dtype: torch.dtype,
        shape: Shape,
        x: StridedView,
        dims: Sequence[int],
        normalization: int,
        onesided: bool,
    ) -> Any:
        """``sum over j of x[j] * exp(-2 pi i * j * k / n)``, in float64, from a table of n cosines and
        sines."""
        if len(dims) != 1:
            raise Unsupported("a Fourier transform over several dimensions")
        wide, rank, sizes = torch.float64, len(shape), self.writer.sizes
        dim = dims[0] % rank
        count = x.shape[dim]
        tables = self._circle(count)
        index, (j,) = variables("i", rank), variables("r", 1)
        place = tuple(j if d == dim else v for d, v in enumerate(index))
        starts = [Operand(self.writer.fill(0.0, wide, shape), index) for _ in range(2)]
        extent = Scalar(sizes.size(count), torch.int64)

        def add(seen: Sequence[Any], before: Sequence[Any]) -> list[Any]:
            value, numbers = convert(Scalar(seen[0], self.dtype(x)), wide), IndexArithmetic()
            turns = (Scalar(loop_index(n), torch.int64) for n in (dim, rank))
            at = numbers.elementwise("remainder", numbers.elementwise("mul", *turns), extent)
            result = []
            for table, so_far in zip(tables, before):
                factor = self.writer.element(table, [at.value], wide)
                result.append(
                    ELEMENTWISE["add"](Scalar(so_far, wide), ELEMENTWISE["mul"](value, factor)).value
                )
            return result

        source = Operand(self.view(x), place)
        totals = self.writer.generic([*index, j], 1, [source], starts, add)
        scale = convert(sizes.number(count), wide)
        scale = ELEMENTWISE["sqrt"](scale) if normalization == 1 else scale
        out = Operand(self.writer.empty(dtype, shape), index)

        def join(seen: Sequence[Any], _: Sequence[Any]) -> list[Any]:
            parts = [Scalar(value, wide) for value in seen]
            if normalization != 0:
                parts = [ELEMENTWISE["truediv"](part, scale) for part in parts]
            return [_joined(tuple(convert(part, dtype.to_real()) for part in parts), dtype)]

        return self.writer.generic(index, 0, [Operand(each, index) for each in totals], [out], join)[0]

    def _circle(self, count: Expr) -> list[Any]:
        """``cos`` and ``-sin`` of ``2 pi m / count``."""
        wide = torch.float64
        index = variables("i", 1)
        outputs = [Operand(self.writer.empty(wide, [count]), index) for _ in range(2)]
        number = convert(self.writer.sizes.number(count), wide)

        def body(_: Sequence[Any], __: Sequence[Any]) -> list[Any]:
            turn = convert(word(Scalar(loop_index(0), torch.int64)), wide)
            angle = ELEMENTWISE["truediv"](ELEMENTWISE["mul"](turn, constant(2 * math.pi, wide)), number)
            return [
                ELEMENTWISE["cos"](angle).value,
                ELEMENTWISE["neg"](ELEMENTWISE["sin"](angle)).value,
            ]

        return self.writer.generic(index, 0, [], outputs, body)

    # -- the table ---------------------------------------------------------------------------------------

    def call(
        self, target: str, dtype: torch.dtype, shape: Shape, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """The result of a call in `CALLS`.

        Raises:
            Unsupported: arguments that there is no way for.
        """
        given = {name: value for name, value in kwargs.items() if value is not None}
        if given.keys() - {"alpha"}:
            raise Unsupported(f"{target} of complex numbers with {', '.join(given)}")
        return CALLS[target](self, dtype, shape, *args, **given)


CALLS: dict[str, Callable[..., Any]] = {
    "aten.complex.default": Complexes.create,
    "aten.polar.default": Complexes.polar,
    "aten.mul.Tensor": Complexes.mul,
    "aten.add.Tensor": lambda self, *args, **given: self.sum("add", *args, **given),
    "aten.sub.Tensor": lambda self, *args, **given: self.sum("sub", *args, **given),
    "aten._conj_physical.default": Complexes.conjugate,
    "aten._conj_copy.default": Complexes.conjugate,
    "aten.abs.default": Complexes.length,
    "aten.view_as_real_copy.default": Complexes.as_real,
    "aten.view_as_complex_copy.default": Complexes.as_complex,
    "aten.cat.default": Complexes.concatenate,
    "aten.linalg_vector_norm.default": Complexes.vector_norm,
    "aten._fft_r2c.default": Complexes.real_transform,
}
"""ATen call → function of (`Complexes`, the result's dtype and shape, the call's arguments)."""


def parts_of(value: Any, dtype: torch.dtype) -> Complex:
    """Real and imaginary part of an element; a real number has 0 for the second."""
    from torch_mlir.dialects import complex as dialect

    if not dtype.is_complex:
        return Scalar(value, dtype), constant(0, dtype)
    real = dtype.to_real()
    return Scalar(dialect.re(value), real), Scalar(dialect.im(value), real)


def _joined(parts: Sequence[Scalar], dtype: torch.dtype) -> Any:
    from torch_mlir.dialects import complex as dialect

    if not dtype.is_complex:
        return parts[0].value
    return dialect.create_(bindings.element_type(dtype), parts[0].value, parts[1].value)


def _length(parts: Sequence[Scalar]) -> Scalar:
    """``sqrt(re² + im²)`` in float64: float32 neither overflows nor loses digits."""
    real, imaginary = (convert(part, torch.float64) for part in parts)
    square = ELEMENTWISE["mul"]
    total = ELEMENTWISE["add"](square(real, real), square(imaginary, imaginary))
    return convert(ELEMENTWISE["sqrt"](total), parts[0].dtype)


def _tensors(*arguments: Any) -> list[StridedView]:
    if not all(isinstance(each, StridedView) for each in arguments):
        raise Unsupported("complex numbers and a number")
    return list(arguments)
