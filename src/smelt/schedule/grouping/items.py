"""The schedule's units of work: nodes with a loop order, and their reads after inlining."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
from sympy import Expr, Symbol

from smelt.loops.dependencies import Read
from smelt.loops.ir import (
    Body,
    Buffer,
    Fold,
    Graph,
    Host,
    Native,
    Node,
    Origin,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
)
from smelt.loops.ranges import Interval
from smelt.loops.record import RecordedValue, Recorder
from smelt.ops import using
from smelt.records import dataclass, field
from smelt.symbolic import loop_var, reshape_index, size_hint
from smelt.symbolic.affine import replaced
from smelt.symbolic.index import simplify

ZERO = sympy.Integer(0)
SPACE = tuple(loop_var(f"i{d}") for d in range(32))
"""The loop variables of kernels, outermost first."""


@dataclass(slots=True)
class Item:
    """A node to be scheduled, with its loops in execution order.

    ``order`` lists the natural dimensions (shape first, then reduce_shape; a fold's iterations are one) that
    have loops, outermost first: sizes of one have none. The first ``outer`` are neither reduced nor scanned.
    ``writes`` is the buffer written (for a mutation: an input).
    """

    node: Node
    sizes: tuple[Expr, ...]
    order: tuple[int, ...]
    outer: int
    writes: tuple[str | None, ...]
    reads: tuple[Read, ...] = ()
    exprs: tuple[Expr, ...] = ()
    """Index expressions that the loop function uses as values, in addition to the indices of its reads."""
    cost: int = 0
    code: int | None = None
    """The number of the loop function's structure, independent of buffer names (`Work.codes`); ``reads`` is
    in its order. None where there is none.
    """
    inlined: tuple[str, ...] = ()
    """The buffers that are computed inside the loop function."""
    access_order: str = "rows"
    """The access order of the largest read: ``rows`` along the innermost loop, ``columns`` (a reduction that
    is contiguous along a loop that is not reduced), ``across`` (a pointwise item that reads in another order
    than it writes).
    """

    @property
    def body(self) -> Body:
        return self.node.body

    @property
    def buffers(self) -> list[str]:
        """The buffers read, then the buffers written, in an order that items of equal `code` have in
        common.
        """
        return [*(read.buffer for read in self.reads), *(name for name in self.writes if name is not None)]

    @property
    def ordered_sizes(self) -> tuple[Expr, ...]:
        """Loop extents, outermost first."""
        return tuple(self.sizes[d] for d in self.order)

    @property
    def rank(self) -> int:
        """The number of natural dimensions that are dimensions of the outputs."""
        return 0 if isinstance(self.node.body, (Host, Native)) else len(self.node.body.shape)

    def natural_index(self, coordinates: Sequence[Expr]) -> list[Expr]:
        """The natural index (shape, then reduce_shape) at given coordinates of the ordered loops."""
        index: list[Expr] = [ZERO] * len(self.sizes)
        for dim, coordinate in zip(self.order, coordinates, strict=True):
            index[dim] = coordinate
        return index

    def written_coordinates(self, index: Sequence[Expr]) -> list[Expr]:
        """Coordinates of the ordered loops over written elements, for the output element ``index``."""
        return [index[d] for d in self.order[: self.written]]

    @property
    def written(self) -> int:
        """The number of ordered loops over elements of the outputs: a scan writes in each iteration."""
        return len(self.order) if isinstance(self.node.body, Scan) else self.outer

    @property
    def written_sizes(self) -> tuple[Expr, ...]:
        """The extents of the ordered loops that run over elements of the outputs."""
        return self.ordered_sizes[: self.written]


def record_values(
    item: Item, index: Sequence[Expr], recorder: Recorder, state: Sequence[RecordedValue] = ()
) -> Any:
    """Runs the item's loop function at a natural index under ``recorder``; returns its result.

    ``state``: the carried values of a scan's or fold's iteration.
    """
    body = item.node.body
    rank = item.rank
    with using(recorder):
        if isinstance(body, Reduction):
            return body.inner_fn(tuple(index[:rank]), tuple(index[rank:]))
        if isinstance(body, Scan):
            return body.inner_fn(tuple(index), tuple(state))
        if isinstance(body, Fold):
            return body.inner_fn(tuple(index[:rank]), index[rank], tuple(state))
        assert isinstance(body, (Pointwise, Scatter))
        return body.inner_fn(tuple(index))


def natural_vars(sizes: Sequence[Expr]) -> list[Expr]:
    """A loop variable for each dimension of more than one element, 0 for the others."""
    return [ZERO if size == 1 else SPACE[d] for d, size in enumerate(sizes)]


def in_space(item: Item, space: Sequence[Expr], variables: Sequence[Expr]) -> list[Expr]:
    """The item's natural index in terms of ``variables`` over ``space``, a refinement of its ordered
    sizes.
    """
    ordered = item.ordered_sizes
    if tuple(space) == ordered:
        return item.natural_index(variables)
    return item.natural_index(reshape_index(ordered, space, variables))


@dataclass(slots=True)
class Work:
    """The graph while the schedule decides."""

    graph: Graph
    buffers: dict[str, Buffer]
    items: list[Item]
    inlined: dict[str, Pointwise] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    """The origin of each inlined buffer."""
    dtypes: dict[str, Any] = field(default_factory=dict)
    codes: dict[Any, int] = field(default_factory=dict)
    """The structures of items' loop functions, numbered (`Item.code`)."""
    contents: dict[str, Interval] = field(default_factory=dict)
    """Known ranges of the integers in a buffer (positions, clamped indices)."""
    inlined_never: set[str] = field(default_factory=set)
    """Buffers that must be in memory, at any cost."""
    outside: set[str] = field(default_factory=set)
    """Buffers with readers that are no loop functions: ATen calls, outputs."""
    blocks: bool = False
    """The target is a GPU: many programs have to run in parallel."""
    ordered: bool = False
    """The order of sums must not depend on what else is computed (numerics ``strict``)."""

    def hint(self, expr: Expr) -> int:
        return size_hint(expr, self.graph.hints)

    def hint_product(self, sizes: Sequence[Expr]) -> int:
        total = 1
        for size in sizes:
            total *= self.hint(size)
        return total


def extents_of(variables: Sequence[Expr], sizes: Sequence[Expr]) -> dict[Symbol, Expr]:
    return {v: size for v, size in zip(variables, sizes) if isinstance(v, Symbol)}


def substitute(expr: Expr, mapping: Mapping[Symbol, Expr], extents: Mapping[Symbol, Expr]) -> Expr:
    """Replaces loop variables in an index, and simplifies the result."""
    if expr.is_Integer:
        return expr
    if isinstance(expr, Symbol):
        return mapping.get(expr, expr)
    return simplify(replaced(expr, mapping), extents)
