"""The base of all targets: array operations as MLIR operations of a dialect, and parts of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from smelt.loops.ir import Extern, Graph
from smelt.mlir import bindings
from smelt.mlir.arrays.bodies import ArrayBodies
from smelt.mlir.arrays.dialect import Arguments, Array, Arrays, Branch, Kind, Shape, Step
from smelt.mlir.arrays.evaluate import EvaluatedArrays
from smelt.mlir.arrays.loops import LoopBodies, View
from smelt.mlir.attributes import elements, ranked
from smelt.mlir.bindings import ir, passmanager
from smelt.mlir.capabilities import Capabilities
from smelt.mlir.external import call
from smelt.symbolic.solving import solve_sizes

SIMPLIFYING = "builtin.module(func.func(canonicalize,cse))"


class Target(EvaluatedArrays):
    """Array operations that are MLIR operations, at the current insertion point.

    Cached values (sizes, constants) are valid only inside of the region that defines them (`region`).
    ``title``: the target's name, for messages; ``capabilities``: its support for loop graphs.
    """

    title: str
    capabilities: Capabilities

    def __init__(self) -> None:
        super().__init__()
        self.memo: dict[Any, Any] = {}

    # -- types --------------------------------------------------------------------------------------

    def element(self, dtype: torch.dtype) -> Any:
        """The element type of arrays."""
        return bindings.element_type(dtype)

    def type(self, dtype: torch.dtype, shape: Shape) -> Any:
        """The tensor type of arrays."""
        return ranked(self.element(dtype), shape)

    def attribute(self, tensor: torch.Tensor) -> Any:
        """The elements of a tensor as an attribute."""
        return elements(tensor, self.element(tensor.dtype))

    # -- operations ---------------------------------------------------------------------------------

    namespace, branching, looping, ending = "", "", "", ""
    """Names of the dialect and of its operations: the branch, the loop, the end of a region."""

    def operation(
        self,
        name: str,
        results: Sequence[Any],
        operands: Sequence[Any],
        attributes: dict[str, Any] | None = None,
        regions: int = 0,
    ) -> Any:
        """One operation of the dialect."""
        return ir.Operation.create(
            f"{self.namespace}.{name}",
            results=list(results),
            operands=list(operands),
            attributes=attributes or {},
            regions=regions,
        )

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

        ``arguments``: by names that no call has used before (sizes are cached by their symbols).
        ``conditions``: further assumptions of the program on its sizes, checked by targets that can raise.
        """
        shapes = [(name, array.shape) for name, array in arguments.items()]
        symbols = [each for _, shape in shapes for size in shape for each in size.free_symbols]
        for each in solve_sizes(shapes, [symbol for symbol in symbols if symbol.name in self.symbols]):
            self.bind(each.size, self.dimension(arguments[each.tensor], each.dim))
            self.bind(each.symbol, self.size(each.value))

    def external_call(
        self, body: Extern, arguments: Arguments, results: Sequence[Kind], unsigned: Sequence[bool]
    ) -> list[Array]:
        plain = [(name, each.value if isinstance(each, Array) else each) for name, each in arguments]
        values = call(body, plain, [self.type(*each) for each in results], unsigned)
        return [Array(value, *each) for value, each in zip(values, results)]

    # -- transposed arrays ----------------------------------------------------------------------------

    def remember_transposed(self, result: Array, x: Array, order: Sequence[int]) -> Array:
        """``result``, recorded as a transpose of ``x`` for `untransposed`."""
        self.memo["transposed", result.value] = (x, tuple(order))
        return result

    def untransposed(self, x: Array, dims: Sequence[int]) -> tuple[Array, list[int]]:
        """An equivalent operand for a reduction of ``x`` over ``dims``: the source of the transpose ``x``, if
        the remaining dimensions have the same order in it, and the reduced dimensions there."""
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
        """Values cached inside the block are dropped after it."""
        symbols, memo = dict(self.symbols), dict(self.memo)
        try:
            yield
        finally:
            self.symbols.clear()
            self.symbols.update(symbols)
            self.memo = memo

    def solid(self, x: Array) -> Array:
        """The array with all its elements in its value."""
        return x

    def truth(self, condition: Array) -> Any:
        """An array of rank 0 as the operand of a branch."""
        return self.solid(condition).value

    def fill(self, region: Any, kinds: Sequence[Kind], body: Step) -> None:
        """Write a region: ``body`` computes its results from the block's arguments (of ``kinds``)."""
        types = [self.type(*kind) for kind in kinds]
        block = region.blocks.append(*types, arg_locs=[ir.Location.unknown()] * len(types))
        with ir.InsertionPoint(block), self.region():
            results = body([Array(value, *kind) for value, kind in zip(block.arguments, kinds)])
            self.operation(self.ending, [], [self.solid(each).value for each in results])

    def branch(self, condition: Array, functions: Sequence[Branch], kinds: Sequence[Kind]) -> list[Array]:
        types = [self.type(*kind) for kind in kinds]
        made = self.operation(self.branching, types, [self.truth(condition)], regions=2)
        for region, function in zip(made.regions, functions, strict=True):
            self.fill(region, [], partial(self._of_kinds, function, kinds))
        return [Array(value, *kind) for value, kind in zip(made.results, kinds)]

    def _of_kinds(self, function: Branch, kinds: Sequence[Kind], state: Arrays) -> list[Array]:
        return [self.relabel(each, shape) for each, (_, shape) in zip(function(), kinds, strict=True)]

    def loop(self, initial: Arrays, test: Callable[[Arrays], Array], step: Step) -> list[Array]:
        values = [self.solid(each).value for each in initial]
        kinds = [(each.dtype, each.shape) for each in initial]
        made = self.operation(self.looping, [each.type for each in values], values, regions=2)
        self.fill(made.regions[0], kinds, lambda state: [test(state)])
        self.fill(
            made.regions[1],
            kinds,
            lambda state: [self.relabel(new, old.shape) for new, old in zip(step(state), state, strict=True)],
        )
        return [Array(value, *kind) for value, kind in zip(made.results, kinds)]

    # -- the program --------------------------------------------------------------------------------

    def bodies(self, graph: Graph, buffers: Mapping[str, Array], view: View) -> LoopBodies:
        """The evaluator for the loop bodies of a graph; ``view`` gives the array of a view of a buffer."""
        return ArrayBodies(self, buffers, view)

    def number_type(self, dtype: torch.dtype) -> Any:
        """The type of a number argument."""
        return self.type(dtype, ())

    def number_argument(self, value: Any, dtype: torch.dtype) -> Array:
        """An argument of the function that is a number."""
        return Array(value, dtype, ())

    def declare(self) -> None:
        """Write the declarations that an emitted function needs in its module."""

    def simplified(self, module: Any) -> Any:
        """A module after canonicalization."""
        with module.context:
            passmanager.PassManager.parse(SIMPLIFYING).run(module.operation)
        return module

    def finish(self, array: Array, dtype: torch.dtype) -> Array:
        """A result in its returned form."""
        return self.convert(array, dtype)
