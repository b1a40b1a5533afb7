"""The operations on whole tensors that bodies consist of: types, fills, generics, views, loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.mlir import bindings
from smelt.mlir.attributes import i64, ranked
from smelt.mlir.bindings import arith, ir, linalg, scf
from smelt.mlir.bindings import complex as complexes
from smelt.mlir.bindings import tensor as tensors
from smelt.mlir.linalg.scalars import Scalar, constant, convert, word
from smelt.mlir.linalg.sizes import Sizes

Shape = Sequence[Expr]
ONE = sympy.Integer(1)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor, and the element that an iteration reads: affine expressions of loop variables."""

    tensor: Any
    place: tuple[Expr, ...]


class Writer:
    """Writes at the current insertion point. ``sizes`` holds the values of the program's symbols."""

    def __init__(self, symbols: dict[str, Any]) -> None:
        self.sizes = Sizes(symbols)

    # -- types -------------------------------------------------------------------------------------------

    def type(self, dtype: torch.dtype, shape: Shape) -> Any:
        """``tensor<?x3xf32>``."""
        return ranked(bindings.element_type(dtype), shape)

    def cast(self, tensor: Any, dtype: torch.dtype, shape: Shape) -> Any:
        """The tensor with this shape; the two shapes differ at most in the sizes that are static."""
        return self.as_type(tensor, self.type(dtype, shape))

    def as_type(self, tensor: Any, kind: Any) -> Any:
        """The tensor with a type that has more or fewer static sizes."""
        return tensor if tensor.type == kind else tensors.cast(kind, tensor)

    # -- new tensors -------------------------------------------------------------------------------------

    def empty(self, dtype: torch.dtype, shape: Shape) -> Any:
        """A tensor with uninitialized elements."""
        return tensors.empty([self.sizes.mixed(size) for size in shape], bindings.element_type(dtype))

    def fill(self, number: Scalar | float | bool, dtype: torch.dtype, shape: Shape) -> Any:
        """A tensor filled with one number."""
        value = number if isinstance(number, Scalar) else constant(number, dtype)
        out = self.empty(dtype, shape)
        return result_of(linalg.fill(value.value, outs=[out]))

    def of_number(self, number: Scalar) -> Any:
        """A number as a tensor of rank 0."""
        return tensors.from_elements(self.type(number.dtype, ()), [word(number).value])

    # -- generics ----------------------------------------------------------------------------------------

    def generic(
        self,
        variables: Sequence[Symbol],
        reduced: int,
        inputs: Sequence[Operand],
        outputs: Sequence[Operand],
        body: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
    ) -> list[Any]:
        """``linalg.generic`` over ``variables``, the last ``reduced`` of which are reductions.

        ``body``: the elements of the inputs and of the outputs → the yielded values, at the insertion point.
        """
        places = {variable: n for n, variable in enumerate(variables)}
        maps = [affine_map(each.place, places) for each in (*inputs, *outputs)]
        kinds = ["parallel"] * (len(variables) - reduced) + ["reduction"] * reduced
        iterators = [ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds]
        operation = linalg.GenericOp(
            [each.tensor.type for each in outputs],
            [each.tensor for each in inputs],
            [each.tensor for each in outputs],
            ir.ArrayAttr.get([ir.AffineMapAttr.get(each) for each in maps]),
            ir.ArrayAttr.get(iterators),
        )
        elements = [each.tensor.type.element_type for each in (*inputs, *outputs)]
        block = operation.regions[0].blocks.append(*elements)
        with self.sizes.before(operation.operation), ir.InsertionPoint(block):
            values = list(block.arguments)
            linalg.YieldOp(list(body(values[: len(inputs)], values[len(inputs) :])))
        return list(operation.results)

    def each(self, dtype: torch.dtype, shape: Shape, inputs: Sequence[Any], body: Callable[..., Any]) -> Any:
        """A tensor of ``shape`` with ``body`` of the inputs' elements; they may lack its last dimensions."""
        index = tuple(Symbol(f"i{dim}", integer=True) for dim in range(len(shape)))
        operands = [Operand(each, index[: ir.RankedTensorType(each.type).rank]) for each in inputs]
        out = Operand(self.empty(dtype, shape), index)
        return self.generic(index, 0, operands, [out], lambda seen, _: [body(*seen)])[0]

    # -- complex numbers ---------------------------------------------------------------------------------

    def complex(self, real: Any, imaginary: Any, dtype: torch.dtype, shape: Shape) -> Any:
        """The complex numbers with these parts."""
        kind = bindings.element_type(dtype)
        return self.each(dtype, shape, [real, imaginary], lambda *parts: complexes.create_(kind, *parts))

    def pairs(self, numbers: Any, dtype: torch.dtype, shape: Shape) -> Any:
        """The parts of complex numbers in a last dimension of two, as ``dtype``."""

        def part(number: Any) -> Any:
            zero = arith.constant(ir.IndexType.get(), 0)
            is_real = arith.cmpi(arith.CmpIPredicate.eq, loop_index(len(shape) - 1), zero)
            return arith.select(is_real, complexes.re(number), complexes.im(number))

        return self.each(dtype, shape, [numbers], part)

    def converted(self, tensor: Any, have: torch.dtype, want: torch.dtype, shape: Shape) -> Any:
        """A tensor converted to another dtype."""
        if have == want:
            return tensor
        return self.each(want, shape, [tensor], lambda x: convert(Scalar(x, have), want).value)

    # -- views -------------------------------------------------------------------------------------------

    def slice(self, tensor: Any, starts: Shape, shape: Shape, steps: Shape, kept: Sequence[int]) -> Any:
        """``tensor.extract_slice``; the result keeps the dimensions ``kept``, the others have one element."""
        kind = ranked(tensor.type.element_type, [shape[d] for d in kept])
        known, given = self._parts(starts, shape, steps)
        return tensors.extract_slice(kind, tensor, *given, *known)

    def insert(self, part: Any, whole: Any, starts: Shape, shape: Shape) -> Any:
        """``tensor.insert_slice``: ``whole`` with ``part``, of ``shape`` (without ones), inserted."""
        known, given = self._parts(starts, shape, [ONE] * len(shape))
        return tensors.insert_slice(part, whole, *given, *known)

    def _parts(self, *groups: Sequence[Any]) -> tuple[list[list[int]], list[list[Any]]]:
        """Static sizes and values of dynamic sizes, as MLIR takes them; a group may contain values."""
        unknown = ir.ShapedType.get_dynamic_size()
        known, given = [], []
        for group in groups:
            values = [
                self.sizes.mixed(each) if isinstance(each, (Expr, sympy.Basic)) else each for each in group
            ]
            known.append([each if isinstance(each, int) else unknown for each in values])
            given.append([each for each in values if not isinstance(each, int)])
        return known, given

    def collapse(self, tensor: Any, groups: Sequence[Sequence[int]], shape: Shape) -> Any:
        """``tensor.collapse_shape``: merges the dimensions of each group."""
        return tensors.collapse_shape(ranked(tensor.type.element_type, shape), tensor, _groups(groups))

    def expand(self, tensor: Any, groups: Sequence[Sequence[int]], shape: Shape) -> Any:
        """``tensor.expand_shape``: splits a dimension into those of its group."""
        (known,), (given,) = self._parts(shape)
        return tensors.expand_shape(
            ranked(tensor.type.element_type, shape), tensor, _groups(groups), given, known
        )

    def transpose(self, tensor: Any, order: Sequence[int], shape: Shape) -> Any:
        """``linalg.transpose``: dimension ``d`` of the result, of ``shape``, is dimension ``order[d]``."""
        sizes = [self.sizes.mixed(size) for size in shape]
        out = tensors.empty(sizes, ir.RankedTensorType(tensor.type).element_type)
        return result_of(linalg.transpose(tensor, outs=[out], permutation=list(order)))

    def pad(self, tensor: Any, low: Shape, high: Shape, shape: Shape, value: Scalar) -> Any:
        """``tensor.pad`` with one number, to ``shape``."""
        known, given = self._parts(low, high)
        operation = tensors.PadOp(ranked(tensor.type.element_type, shape), tensor, *given, *known)
        block = operation.regions[0].blocks.append(*[ir.IndexType.get()] * len(low))
        with ir.InsertionPoint(block):
            tensors.YieldOp(value.value)
        return operation.result

    # -- elements ----------------------------------------------------------------------------------------

    def element(self, tensor: Any, index: Sequence[Any], dtype: torch.dtype) -> Scalar:
        """``tensor.extract``."""
        return Scalar(tensors.extract(tensor, list(index)), dtype)

    def dimension(self, tensor: Any, dim: int) -> Scalar:
        """The size of a dimension."""
        return Scalar(tensors.dim(tensor, arith.constant(ir.IndexType.get(), dim)), torch.int64)

    # -- loops -------------------------------------------------------------------------------------------

    def loops(
        self,
        shape: Shape,
        initial: Sequence[Any],
        body: Callable[[list[Any], list[Any]], Sequence[Any]],
    ) -> list[Any]:
        """A row-major nest of ``scf.for`` over ``shape``, which carries ``initial``.

        ``body``: the loop variables (of type ``index``) and the carried values → the new carried values.
        """
        return self._nest([self.sizes.mixed(size) for size in shape], [], list(initial), body)

    def _nest(
        self,
        sizes: list[Any],
        index: list[Any],
        state: list[Any],
        body: Callable[[list[Any], list[Any]], Sequence[Any]],
    ) -> list[Any]:
        if len(index) == len(sizes):
            return list(body(index, state))
        count = sizes[len(index)]
        kind = ir.IndexType.get()
        if isinstance(count, int):
            count = arith.constant(kind, count)
        loop = scf.ForOp(arith.constant(kind, 0), count, arith.constant(kind, 1), state)
        with self.sizes.before(loop.operation), ir.InsertionPoint(loop.body):
            results = self._nest(sizes, [*index, loop.induction_variable], list(loop.inner_iter_args), body)
            scf.YieldOp(results)
        return list(loop.results)

    @contextmanager
    def region(self, block: Any) -> Iterator[None]:
        """Write tensor operations into a block of control flow."""
        with self.sizes.region(), ir.InsertionPoint(block):
            yield


def result_of(made: Any) -> Any:
    """The result tensor of an operation; the bindings return either the operation or the result."""
    return made.results[0] if hasattr(made, "results") else made


def loop_index(number: int) -> Any:
    """``linalg.index``: the current iteration of a generic's loop ``number``."""
    kind = [ir.IndexType.get()]
    return ir.Operation.create("linalg.index", results=kind, attributes={"dim": i64(number)}).results[0]


def _groups(groups: Sequence[Sequence[int]]) -> Any:
    return ir.ArrayAttr.get([ir.ArrayAttr.get([i64(d) for d in group]) for group in groups])


def affine_map(place: Sequence[Expr], variables: dict[Symbol, int]) -> Any:
    """The ``ir.AffineMap`` of affine expressions whose factors are numbers."""
    results = []
    for expr in place:
        total: Any = None
        for term in sympy.Add.make_args(expr):
            factor, rest = term.as_coeff_Mul()
            if rest == 1:
                made = ir.AffineConstantExpr.get(int(factor))
            else:
                made = ir.AffineDimExpr.get(variables[rest])
                made = made if factor == 1 else made * int(factor)
            total = made if total is None else total + made
        results.append(total)
    return ir.AffineMap.get(len(variables), 0, results)
