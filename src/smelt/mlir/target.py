"""A target: array operations as MLIR operations of one dialect, and what a function of them needs besides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from sympy import Symbol

from smelt.loops.ir import Extern, Graph, Origin
from smelt.mlir import bindings
from smelt.mlir.arrays.bodies import ArrayBodies, Loop, View
from smelt.mlir.arrays.dialect import Array, Shape
from smelt.mlir.arrays.evaluate import EvaluatedArrays
from smelt.mlir.external import call
from smelt.symbolic.solving import solve_sizes


class Bodies(Protocol):
    """Evaluates loop bodies: the part of the walk over a graph in which whole arrays and Linalg differ."""

    def evaluate(self, body: Loop, origin: Origin | None = None) -> list[Array]:
        """The arrays that a body computes, one for each of its results."""
        ...


class Target(EvaluatedArrays):
    """Array operations that are MLIR operations, at the current insertion point.

    What is remembered (sizes, constants) holds inside of the region where it was made: `region`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.memo: dict[Any, Any] = {}
        self._solvable: dict[Symbol, tuple[Array, int]] = {}

    # -- types --------------------------------------------------------------------------------------

    def element(self, dtype: torch.dtype) -> Any:
        """The element type of arrays."""
        return bindings.element_type(dtype)

    def type(self, dtype: torch.dtype, shape: Shape) -> Any:
        """The tensor type of arrays."""
        from torch_mlir import ir

        unknown = ir.ShapedType.get_dynamic_size()
        sizes = [int(size) if size.is_Integer else unknown for size in shape]
        return ir.RankedTensorType.get(sizes, self.element(dtype))

    def attribute(self, tensor: torch.Tensor) -> Any:
        """The elements of a tensor as an attribute."""
        from torch_mlir import ir

        values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        kind = self.element(tensor.dtype)
        if tensor.numel() == 0 or tensor.dtype.is_complex:
            whole = ir.RankedTensorType.get(list(tensor.shape), kind)
            return ir.Attribute.parse(f"{_text(values)} : {whole}")
        if tensor.dtype is torch.bool:
            return ir.DenseElementsAttr.get(values.numpy())
        if tensor.dtype is torch.bfloat16:
            values = values.view(torch.int16)
        return ir.DenseElementsAttr.get(values.numpy(), type=kind, shape=list(tensor.shape))

    # -- sizes --------------------------------------------------------------------------------------

    def dimension(self, x: Array, dim: int) -> Array:
        """The size of one dimension, as int64 of rank 0."""
        raise NotImplementedError

    def size(self, expr: Any) -> Array:
        key = ("size", expr)
        if key not in self.memo:
            self.memo[key] = super().size(expr)
        return self.memo[key]

    def know(self, arguments: Mapping[str, Array], conditions: Iterable[Any] = ()) -> None:
        """Solve the size symbols from the arguments' dimensions.

        ``arguments``: by names that no call has used before (the size of an expression is remembered by its
        symbols). ``conditions``: what the program takes for granted of its sizes besides, to be checked by
        targets that can raise.
        """
        shapes = [(name, array.shape) for name, array in arguments.items()]
        symbols = [each for _, shape in shapes for size in shape for each in size.free_symbols]
        for each in solve_sizes(shapes, [symbol for symbol in symbols if symbol.name in self.symbols]):
            self.bind(each.size, self.dimension(arguments[each.tensor], each.dim))
            self.bind(each.symbol, self.size(each.value))

    def external_call(
        self,
        body: Extern,
        arguments: Sequence[tuple[str, Any]],
        results: Sequence[tuple[torch.dtype, Shape]],
        unsigned: Sequence[bool],
    ) -> list[Array]:
        plain = [(name, each.value if isinstance(each, Array) else each) for name, each in arguments]
        values = call(body, plain, [self.type(*each) for each in results], unsigned)
        return [Array(value, *each) for value, each in zip(values, results)]

    # -- transposed arrays ----------------------------------------------------------------------------

    def remember_transposed(self, result: Array, x: Array, order: Sequence[int]) -> Array:
        """``result``, of which `untransposed` knows then where it comes from."""
        self.memo["transposed", result.value] = (x, tuple(order))
        return result

    def untransposed(self, x: Array, dims: Sequence[int]) -> tuple[Array, list[int]]:
        """What a reduction of ``x`` over ``dims`` may as well be made of: the array that ``x`` is the
        transposed of, where the dimensions that stay have one order in both, and the dimensions there."""
        found = self.memo.get(("transposed", x.value))
        if found is not None:
            source, order = found
            stay = [place for d, place in enumerate(order) if d not in dims]
            if stay == sorted(stay) and tuple(source.shape[d] for d in order) == x.shape:
                return source, [order[d] for d in dims]
        return x, list(dims)

    # -- regions ------------------------------------------------------------------------------------

    @contextmanager
    def region(self) -> Iterator[None]:
        """What is made inside the block is not known outside of it."""
        symbols, memo = dict(self.symbols), dict(self.memo)
        try:
            yield
        finally:
            self.symbols.clear()
            self.symbols.update(symbols)
            self.memo = memo

    # -- the program --------------------------------------------------------------------------------

    def bodies(self, graph: Graph, buffers: Mapping[str, Array], view: View) -> Bodies:
        """What evaluates the loop bodies of a graph; ``view`` gives the array of a view of a buffer."""
        return ArrayBodies(self, buffers, view)

    def number_type(self, dtype: torch.dtype) -> Any:
        """The type of a number that is an argument."""
        return self.type(dtype, ())

    def number_argument(self, value: Any, dtype: torch.dtype) -> Array:
        """A number that is an argument."""
        return Array(value, dtype, ())

    def declare(self) -> None:
        """Write what the function needs in the module beside it, where it has been written."""

    def finish(self, array: Array, dtype: torch.dtype) -> Array:
        """A result as it is returned."""
        return array if array.dtype == dtype else self.convert(array, dtype)


def _text(values: torch.Tensor) -> str:
    if values.numel() == 0:
        return "dense<>"

    def nested(part: torch.Tensor) -> str:
        if part.dim() == 0:
            number = complex(part.item())
            return f"({number.real!r}, {number.imag!r})"
        return "[" + ", ".join(map(nested, part)) + "]"

    return f"dense<{nested(values)}>"
