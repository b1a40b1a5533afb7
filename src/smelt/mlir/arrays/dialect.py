"""The interface of targets that run loop functions on whole arrays: `ArrayDialect`, about 30 operations.

StableHLO and TOSA subclass it (and the tests, on torch tensors). `smelt.mlir.arrays.evaluate` chooses the
operations; a dialect only emits them. Shapes are SymPy throughout: a static size is a SymPy Integer, a
dynamic one an expression of the program's size symbols. `ArrayDialect.size` gives its value as an array of
rank 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sympy import Expr, Integer, Symbol

from smelt.errors import Unsupported
from smelt.loops.ir import Extern
from smelt.lowering.products.contractions import Geometry
from smelt.symbolic import numel

ONE = Integer(1)
Shape = tuple[Expr, ...]
Number = int | float | bool
Kind = tuple[torch.dtype, Shape]
Arguments = Sequence[tuple[str, Any]]
"""Names and values of the arguments of an external function."""


def single(value: Number | None, dtype: torch.dtype) -> torch.Tensor:
    """A number as a tensor of rank 0, converted as ``Tensor.to`` does."""
    assert value is not None
    wide = torch.float64 if dtype.is_floating_point else torch.bool if dtype is torch.bool else torch.int64
    return torch.tensor(value, dtype=wide).to(dtype)


@dataclass(frozen=True, slots=True)
class Array:
    """A whole array: the target's value (an ``ir.Value``, a tensor …), the elements' dtype, and the shape.

    ``number``: the value of every element, if it is a known constant.
    """

    value: Any
    dtype: torch.dtype
    shape: Shape
    number: Number | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)


Arrays = Sequence[Array]
Branch = Callable[[], Arrays]
Step = Callable[[Arrays], Arrays]
"""The states of a loop before and after an iteration."""


@dataclass(frozen=True, slots=True)
class Dot:
    """The batch and contracted dimensions of a product's two operands.

    The result has the batch dimensions, then the other dimensions of ``lhs``, then those of ``rhs``.
    """

    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]


class ArrayDialect:
    """The operations of a target on arrays. Methods raise `Unsupported` for what the target cannot express.

    ``symbols``: the value of each size symbol by name (assumptions on a symbol may differ between the
    captured program and its loops), an array of rank 0: int64, or float64 or bool for numbers that are
    inputs. The evaluation fills it. ``raises``: whether the target can raise (`require`).
    ``complexes``: whether it has complex arrays. If not, complex arguments and results are pairs of reals in
    a last dimension of two, as inside of programs.
    """

    raises = False
    complexes = True

    def __init__(self) -> None:
        self.symbols: dict[str, Array] = {}

    # -- numbers ------------------------------------------------------------------------------------

    def full(self, value: Number, dtype: torch.dtype, shape: Shape) -> Array:
        """An array filled with one number."""
        raise NotImplementedError

    def zeros(self, dtype: torch.dtype, shape: Shape) -> Array:
        return self.full(False if dtype is torch.bool else 0, dtype, shape)

    def literal(self, tensor: torch.Tensor, name: str) -> Array:
        """A constant array: a weight or a table; ``name`` labels it for readers."""
        raise NotImplementedError

    def iota(self, size: Expr, dtype: torch.dtype) -> Array:
        """``[0, 1, … size - 1]``, rank 1."""
        raise NotImplementedError

    def size(self, expr: Any) -> Array:
        """The value of an expression of sizes, rank 0: int64, or float64 or bool if it is no integer."""
        raise NotImplementedError

    def bind(self, symbol: Symbol, number: Array) -> None:
        """Make ``number`` the value of a size symbol."""
        self.symbols[symbol.name] = number

    def item(self, x: Array) -> Array:
        """The value of an array of one element, rank 0."""
        return self.reshape(x, ())

    def seed(self) -> Array:
        """A random number among all int64 values, rank 0: a new number at each run."""
        raise Unsupported(f"{type(self).__name__} has no random numbers")

    def external_call(
        self, body: Extern, arguments: Arguments, results: Sequence[Kind], unsigned: Sequence[bool]
    ) -> list[Array]:
        """The results of a call of an external function (`smelt.mlir.external`); ``arguments``: (name,
        value); ``unsigned``: whether each argument is uint8."""
        raise Unsupported(f"{type(self).__name__} has no external functions")

    def require(self, condition: Array, message: str) -> None:
        """Raise the exception that ``message`` begins with at run time, unless all of ``condition`` holds."""
        raise NotImplementedError

    # -- elementwise --------------------------------------------------------------------------------

    def apply(self, name: str, *args: Array) -> Array:
        """A row of `smelt.ops.table.TABLE` on arrays of one shape, for any argument values."""
        raise NotImplementedError

    def elementwise(self, name: str, *args: Array) -> Array:
        """A row of `smelt.ops.table.TABLE` on arrays of one shape.

        For ``NotImplemented`` the decomposition in `smelt.mlir.arrays.decomposed` is used.
        Integer divisors are never 0.
        """
        raise NotImplementedError

    def convert(self, x: Array, dtype: torch.dtype) -> Array:
        """Converts as ``Tensor.to`` (``x`` itself if it has that dtype): to nearest even, float to integer by
        truncation, to bool by ``!= 0``."""
        raise NotImplementedError

    def bitcast(self, x: Array, dtype: torch.dtype) -> Array:
        """The same bits as another dtype of the same width."""
        raise NotImplementedError

    def parts(self, x: Array) -> tuple[Array, Array]:
        """Real and imaginary parts of a complex array. Programs represent complex numbers by these two."""
        raise Unsupported(f"{type(self).__name__} has no complex numbers")

    def pairs(self, x: Array) -> Array:
        """A complex array as reals, with the two parts in a last dimension."""
        line = (*x.shape, Integer(1))
        return self.concatenate([self.reshape(part, line) for part in self.parts(x)], x.rank)

    def joined(self, real: Array, imaginary: Array) -> Array:
        """The complex array with these parts, or their pairs of reals (see `complexes`)."""
        line = (*real.shape, Integer(1))
        return self.concatenate([self.reshape(part, line) for part in (real, imaginary)], real.rank)

    def outside(self, dtype: torch.dtype, shape: Shape) -> tuple[torch.dtype, Shape]:
        """Dtype and shape of the caller's array for an array of this dtype and shape."""
        if dtype.is_complex and not self.complexes:
            return dtype.to_real(), (*shape, Integer(2))
        return dtype, shape

    # -- structure ----------------------------------------------------------------------------------

    def broadcast(self, x: Array, shape: Shape, dims: Sequence[int]) -> Array:
        """Dimension ``k`` of ``x`` becomes dimension ``dims[k]`` (ascending) of ``shape``; it has the same
        size, or one element, which is repeated. The other dimensions repeat the array."""
        raise NotImplementedError

    def reshape(self, x: Array, shape: Shape) -> Array:
        """The same elements, row-major, in another shape; ``x`` itself if it has that shape already."""
        raise NotImplementedError

    def relabel(self, x: Array, shape: Shape) -> Array:
        """The same array with its sizes written as in ``shape`` (equal in every run)."""
        return x if x.shape == tuple(shape) else Array(x.value, x.dtype, tuple(shape))

    def transpose(self, x: Array, order: Sequence[int]) -> Array:
        """Dimension ``k`` of the result is dimension ``order[k]`` of ``x``."""
        raise NotImplementedError

    def slice(self, x: Array, starts: Shape, sizes: Shape, steps: Shape) -> Array:
        """``sizes[d]`` elements from ``starts[d]``, every ``steps[d]``-th (positive), of each dimension d."""
        raise NotImplementedError

    def part(self, x: Array, dim: int, start: Expr, size: Expr, step: Expr = ONE) -> Array:
        """``size`` elements of one dimension from ``start``, every ``step``-th."""
        starts, sizes, steps = [Integer(0)] * x.rank, list(x.shape), [Integer(1)] * x.rank
        starts[dim], sizes[dim], steps[dim] = start, size, step
        return self.slice(x, tuple(starts), tuple(sizes), tuple(steps))

    def reverse(self, x: Array, dims: Sequence[int]) -> Array:
        """The array with the dimensions ``dims`` reversed."""
        raise NotImplementedError

    def pad(self, x: Array, low: Shape, high: Shape, value: Number) -> Array:
        """Pad with ``value``: ``low[d]`` elements before, ``high[d]`` after dimension d; never negative."""
        raise NotImplementedError

    def concatenate(self, arrays: Sequence[Array], dim: int) -> Array:
        """Concatenates arrays along ``dim``; all other sizes are equal."""
        raise NotImplementedError

    # -- by positions that are data -----------------------------------------------------------------

    def take(self, x: Array, positions: Array) -> Array:
        """``out[*w, *rest] = x[positions[*w], *rest]``; positions (int64, any rank) are in range."""
        raise NotImplementedError

    def pick(self, x: Array, dim: int, position: Array) -> Array:
        """``x`` at one position (rank 0, int64, in range) of ``dim``; the result has no ``dim``."""
        order = [dim, *(d for d in range(x.rank) if d != dim)]
        return self.take(x if dim == 0 else self.transpose(x, order), position)

    def store(self, x: Array, line: Array, dim: int, position: Array) -> Array:
        """``x`` with ``line`` (its shape without ``dim``) at one position (rank 0, int64, in range)."""
        others = [d for d in range(x.rank) if d != dim]
        here = self.broadcast(self.iota(x.shape[dim], torch.int64), x.shape, [dim])
        there = self.broadcast(position, x.shape, [])
        return self.apply("where", self.apply("eq", here, there), self.broadcast(line, x.shape, others), x)

    def put(self, base: Array, positions: Array, values: Array, mode: str | None) -> Array:
        """``base`` (rank 1) with ``values[w]`` at ``positions[w]`` (int64, in range, rank 1).

        ``mode`` None: the values are stored, and the last of duplicates wins. Else an operator of
        `smelt.loops.ir.ACCUMULATIONS` combines the elements with the values.
        """
        raise NotImplementedError

    # -- reductions and order -----------------------------------------------------------------------

    def reduce(self, kind: str, x: Array, dims: Sequence[int]) -> Array:
        """``sum prod max min any all xor_sum`` over ``dims``, which go away. max and min propagate NaN."""
        raise NotImplementedError

    def sort(self, x: Array, descending: bool) -> tuple[Array, Array]:
        """Sorted values and positions (int64) of the last dimension, stable; NaN is largest, -0 equals 0."""
        raise NotImplementedError

    # -- contractions -------------------------------------------------------------------------------

    def matmul(self, lhs: Array, rhs: Array) -> Array:
        """``[b, m, k] x [b, k, n] -> [b, m, n]`` in the operands' dtype."""
        raise NotImplementedError

    def dot(self, lhs: Array, rhs: Array, dims: Dot) -> Array:
        """A general product in the operands' dtype (see `Dot`); by default through `matmul`."""
        left = [d for d in range(lhs.rank) if d not in (*dims.lhs_batch, *dims.lhs_contracting)]
        right = [d for d in range(rhs.rank) if d not in (*dims.rhs_batch, *dims.rhs_contracting)]
        batch = tuple(lhs.shape[d] for d in dims.lhs_batch)
        rows, columns = tuple(lhs.shape[d] for d in left), tuple(rhs.shape[d] for d in right)
        x = self._as_matrices(lhs, (dims.lhs_batch, left, dims.lhs_contracting))
        y = self._as_matrices(rhs, (dims.rhs_batch, dims.rhs_contracting, right))
        return self.reshape(self.matmul(x, y), (*batch, *rows, *columns))

    def _as_matrices(self, x: Array, groups: Sequence[Sequence[int]]) -> Array:
        order = [d for group in groups for d in group]
        sizes = tuple(numel([x.shape[d] for d in group]) for group in groups)
        return self.reshape(x if order == list(range(x.rank)) else self.transpose(x, order), sizes)

    def convolution(self, x: Array, weight: Array, geometry: Geometry, shape: Shape) -> Array | None:
        """ATen's convolution without bias: x (N, C, *), weight as in ATen, result of ``shape``. None if the
        dialect has no such convolution; the caller then uses a sum of products."""
        return None

    # -- control ------------------------------------------------------------------------------------

    def branch(self, condition: Array, functions: Sequence[Branch], kinds: Sequence[Kind]) -> list[Array]:
        """The first function's results (of ``kinds``) if ``condition`` (rank 0) holds, else the second's."""
        raise Unsupported(f"{type(self).__name__} has no branches")

    def loop(self, initial: Arrays, test: Callable[[Arrays], Array], step: Step) -> list[Array]:
        """``while test(state): state = step(state)``; shapes and dtypes do not change."""
        raise Unsupported(f"{type(self).__name__} has no loops")

    def repeat(self, turns: Expr, initial: Arrays, step: Callable[[Array, Arrays], Arrays]) -> list[Array]:
        """``for turn in range(turns): state = step(turn, state)``, as a counting `loop`."""

        def test(carried: Arrays) -> Array:
            return self.apply("lt", carried[0], self.size(turns))

        def counted(carried: Arrays) -> list[Array]:
            after = self.apply("add", carried[0], self.size(Integer(1)))
            return [after, *step(carried[0], carried[1:])]

        return self.loop([self.size(Integer(0)), *initial], test, counted)[1:]
