"""Padding without a copy: zeros around a buffer in memory, which windows read beyond its edges.

    y = pad(x);  out = conv(y)    →    x has a halo of zeros;  out = conv(x), reading x at -1 too

The kernel that writes x also writes the zeros around it, after its own loops, which is cheaper than a copy of
x. Depthwise convolutions gain from it. Other convolutions read a copy many times: its cost is small, and it
places data close to the threads that use it. The copy has the halo then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.loops.dependencies import bound_symbols, variables
from smelt.loops.ir import Buffer, Contraction, Graph, Index, Node, Pointwise, StridedView, Value
from smelt.loops.record import record
from smelt.loops.straightline import MaskedInstruction, Recordable
from smelt.nest.ir import Block, For, Let, LoopKind, Param, Stmt, Store
from smelt.nest.primitives import memories_of
from smelt.ops import ops
from smelt.records import dataclass, replace
from smelt.schedule.fills import fills
from smelt.schedule.graph.layouts import Layouts
from smelt.schedule.nests import BuiltKernel
from smelt.schedule.products.boxes import Boxed, Place
from smelt.schedule.products.operands import (
    Dtypes,
    Product,
    operand_code,
    readable_in_place,
    strides_in_order,
)
from smelt.symbolic import flatten, loop_var, same, simplify, size_hint
from smelt.symbolic.affine import divided, expand
from smelt.symbolic.bounds import bounds

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)
Sides = tuple[tuple[Expr, Expr], ...]
"""Numbers of elements before and after each dimension."""


class Halos:
    """Adds halos to buffers of a graph, so that products can read beyond their edges.

    ``graph``: has the nodes up to the product; ``frozen``: its buffers that are computed ahead.
    """

    def __init__(
        self, graph: Graph, layouts: Layouts, frozen: Collection[str], nodes: Sequence[Node]
    ) -> None:
        self.graph, self.layouts, self.frozen = graph, layouts, frozen
        self.sizes_are_late = any(bound_symbols(node) for node in nodes)
        """If true, buffers are allocated separately, not in the arena."""
        self.given_out = {view.buffer for view in graph.outputs if isinstance(view, StridedView)}
        """Buffers that are returned are not in the arena either, though those saved for the backward may have
        any layout.
        """
        self.makers: dict[str, Node] = {}
        self.padding: dict[str, Sides] = {}
        """The padding of the padded copy of a buffer that was eliminated last, by buffer."""

    def note(self, node: Node) -> None:
        """Adds ``node``, which is in the graph now."""
        self.makers.update((name, node) for name in node.outputs if name is not None)

    def read_beyond(self, product: Product) -> Contraction | None:
        """The product's body, with lhs a plain load of a buffer that has a halo now; None where lhs has no
        padding, the buffer can't have a halo, or a copy is better.
        """
        body = product.body
        if not product.shared or product.phases or self.sizes_are_late or body.dtype != torch.float32:
            return None
        symbols = (*variables("i", len(body.shape)), *variables("r", len(body.reduce_shape)))
        extents = dict(zip(symbols, (*body.shape, *body.reduce_shape)))
        self.padding.clear()
        seen = _padded_load(operand_code(body.lhs, body, self.graph, self._through_padding))
        if seen is None or not self._may_have_halo(seen.buffer):
            return None
        before = self.graph.buffers[seen.buffer]
        halo = _halo(seen, before, extents) or self.padding.get(seen.buffer)
        if halo is None or not seen.is_of(before) or not any(size != 0 for sides in halo for size in sides):
            return None
        self.graph.buffers[seen.buffer] = _with_halo(before, halo)
        found = replace(body, lhs=Place(seen.buffer, seen.places, symbols))
        if readable_in_place(replace(product, body=found), self.graph):
            return found
        self.graph.buffers[seen.buffer] = before
        return None

    def around_copy(self, found: Boxed) -> tuple[Boxed, Sides]:
        """Splits a box of a whole buffer with zeros around it into a box without zeros and its halo, so that
        the copy needs no bounds tests. Other boxes are unchanged, and so are all where buffers can have no
        halo.
        """
        if self.sizes_are_late:
            return found, ()
        seen, beyond = self._copied(found.fill, found.shape)
        if seen is None or beyond is None or seen.buffer in self.frozen:
            return found, ()
        outer = variables("i", len(found.shape))
        shape, halo = [ONE] * len(outer), [(ZERO, ZERO)] * len(outer)
        dims: list[int | None] = []
        sizes = self.graph.buffers[seen.buffer].shape
        for place, size, (before, after) in zip(seen.places, sizes, beyond):
            dim = next((dim for dim, variable in enumerate(outer) if place + before == variable), None)
            if dim is not None and dim not in dims:
                shape[dim], halo[dim] = size, (before, after)
            elif dim is not None or not place == before == after == 0 or size != 1:
                return found, ()
            dims.append(dim)
        whole = all(same(n + sum(sides), size) for n, sides, size in zip(shape, halo, found.shape))
        if not whole or all(size == 0 for sides in halo for size in sides):
            return found, ()
        places = tuple(expand(place - before) for place, (before, _) in zip(found.places, halo))
        return Boxed(tuple(shape), _Copy(seen.buffer, tuple(dims)), places, found.symbols), tuple(halo)

    def _may_have_halo(self, name: str) -> bool:
        maker = self.makers.get(name)
        computed = maker is not None and isinstance(maker.body, Pointwise)
        return computed and not (name in self.layouts.fixed or name in self.frozen or name in self.given_out)

    def _through_padding(self, buffer: str, index: tuple[Expr, ...]) -> Any:
        """The element of a padded copy at ``index``, read through it; None for any other buffer."""
        maker = self.makers.get(buffer)
        if maker is None or not isinstance(maker.body, Pointwise):
            return None
        seen, halo = self._copied(maker.body.inner_fn, maker.body.shape)
        if seen is None:
            return None
        if halo is not None:
            self.padding[seen.buffer] = halo
        return maker.body.inner_fn(index)

    def _copied(
        self, function: Callable[[Index], Value], shape: Sequence[Expr]
    ) -> tuple[_PaddedLoad, Sides | None] | tuple[None, None]:
        """The loaded element of a loop function that is a padded copy, and the copy's zeros (`_halo`)."""
        outer = variables("i", len(shape))
        extents = dict(zip(outer, shape))
        seen = _padded_load(record(function, [outer], Dtypes(self.graph.buffers), extents).instructions)
        if seen is None or not seen.tests or not seen.is_of(self.graph.buffers[seen.buffer]):
            return None, None
        return seen, _halo(seen, self.graph.buffers[seen.buffer], extents)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A loop function: the element of ``buffer`` at these dimensions of the index (None: at 0)."""

    buffer: str
    dims: tuple[int | None, ...]

    def __call__(self, index: Index) -> Value:
        return ops.load(self.buffer, tuple(ZERO if dim is None else index[dim] for dim in self.dims))


@dataclass(frozen=True, slots=True)
class _PaddedLoad:
    """A load of ``buffer`` at ``places`` where all of ``tests`` (operator, left, right) hold, 0 elsewhere."""

    buffer: str
    places: tuple[Expr, ...]
    tests: tuple[tuple[str, Expr, Expr], ...]

    def is_of(self, buffer: Buffer) -> bool:
        """Whether the tests only check that places are inside of the buffer."""
        if buffer.dtype != torch.float32:
            return False
        for op, left, right in self.tests:
            dims = [dim for dim, place in enumerate(self.places) if same(place, left)]
            ends = [ZERO] if op == "ge" else [buffer.shape[dim] for dim in dims]
            if not dims or not any(same(right, end) for end in ends):
                return False
        return True


def _padded_load(steps: Sequence[Recordable]) -> _PaddedLoad | None:
    """The load of straight-line code that does nothing else but test positions."""
    loads: list[tuple[str, tuple[Expr, ...]]] = []
    numbers: dict[str, Expr] = {}
    tests: list[tuple[str, Expr, Expr]] = []

    def walk(block: Sequence[Recordable]) -> bool:
        for step in block:
            if isinstance(step, MaskedInstruction):
                if step.other != 0 or not walk(step.body):
                    return False
            elif step.op == "load":
                loads.append((step.args[0], tuple(step.args[1])))
            elif step.op == "index_expr":
                numbers[step.name] = step.args[0]
            elif step.op in ("ge", "lt") and all(arg in numbers for arg in step.args):
                tests.append((step.op, numbers[step.args[0]], numbers[step.args[1]]))
            elif step.op != "logical_and":
                return False
        return True

    if not walk(steps) or len(loads) != 1:
        return None
    ((buffer, places),) = loads
    return _PaddedLoad(buffer, places, tuple(tests))


def _halo(seen: _PaddedLoad, buffer: Buffer, extents: dict[Any, Expr]) -> Sides | None:
    """The number of elements that are read before and after each dimension; None where that depends on
    sizes.
    """
    found: list[tuple[Expr, Expr]] = []
    for place, size in zip(seen.places, buffer.shape):
        least, most = bounds(place, extents)
        if least is None or most is None:
            return None
        after = simplify(expand(most - size + 1), {})
        if not (least.is_Integer and after.is_Integer):
            return None
        found.append((max(ZERO, -least), max(ZERO, after)))
    return tuple(found)


def _with_halo(buffer: Buffer, halo: Sides) -> Buffer:
    """The buffer with (at least) this halo; its dimensions keep their order in memory."""
    if buffer.halo:
        halo = tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(halo, buffer.halo))
    whole = replace(buffer, halo=halo).whole_shape
    dims = [dim for dim, size in enumerate(whole) if size != 1]
    dims.sort(key=lambda dim: -size_hint(buffer.strides[dim], {}))
    return replace(buffer, strides=strides_in_order(whole, dims), halo=halo)


# -- the zeros ---------------------------------------------------------------------------------------------


def with_zeros(built: BuiltKernel, buffers: Mapping[str, Buffer]) -> BuiltKernel:
    """The kernel, which also fills the halos of its outputs: a part in each iteration of its parallel loops
    if it has them already, else after its loops.
    """
    stmts: list[For] = []
    for param, name in zip(built.kernel.params, built.buffers):
        if param.written and buffers[name].halo:
            stmts += _zeros(param, buffers[name], len(stmts))
    if not stmts:
        return built
    body, memories = built.kernel.body, memories_of(built.kernel)

    def placed(loop: For) -> tuple[Stmt, ...]:
        return (fills(loop, memories) if built.arranged else ()) or (loop,)

    shared = _interleaved(body, stmts, placed, ZERO, ONE) if built.arranged else None
    body = shared or Block((*body.stmts, *(stmt for each in stmts for stmt in placed(each))))
    return replace(built, kernel=replace(built.kernel, body=body))


def _interleaved(
    body: Block,
    stmts: Sequence[For],
    placed: Callable[[For], tuple[Stmt, ...]],
    iteration: Expr,
    iterations: Expr,
) -> Block | None:
    """``body``, one nest of parallel loops, with a part of the loops ``stmts``, as it is ``placed``, in each
    of its innermost iterations; None for other bodies. ``iteration`` and ``iterations``: number and count of
    the iterations of the outer loops.
    """
    loop = body.stmts[0] if len(body.stmts) == 1 else None
    if not (isinstance(loop, For) and loop.kind is LoopKind.PARALLEL and loop.begin == 0 and loop.step == 1):
        return None
    iteration, iterations = expand(iteration * loop.end + loop.var), iterations * loop.end
    within = _interleaved(loop.body, stmts, placed, iteration, iterations)
    if within is None:
        parts = (placed(_part(each, iteration, iterations)) for each in stmts)
        within = Block((*loop.body.stmts, *(stmt for each in parts for stmt in each)))
    return Block((replace(loop, body=within),))


def _part(loop: For, iteration: Expr, iterations: Expr) -> For:
    """The outermost loop with several iterations, cut into ``iterations``: part number ``iteration``."""
    inner = loop.body.stmts[0]
    if loop.end == 1 and isinstance(inner, For):
        return replace(loop, body=Block((_part(inner, iteration, iterations),)))
    return replace(
        loop,
        begin=divided(iteration * loop.end, iterations),
        end=divided((iteration + 1) * loop.end, iterations),
    )


def _zeros(param: Param, buffer: Buffer, number: int) -> list[For]:
    """Loops over a halo, each element once: the elements beyond a dimension's ends, inside the earlier
    dimensions. The innermost loop follows memory.

    ``number``: of the first loop's variables.
    """
    found: list[For] = []
    *order, inner = sorted(range(len(buffer.shape)), key=lambda dim: -size_hint(buffer.strides[dim], {}))
    for dim, (before, after) in enumerate(buffer.halo):
        for begin, width in ((-before, before), (buffer.shape[dim], after)):
            if width == 0:
                continue
            over = [loop_var(f"z{number + len(found)}_{d}") for d in range(len(buffer.shape))]
            zero = f"zero{number + len(found)}"
            outside = list(zip(buffer.halo, buffer.shape))[dim + 1 :]
            trips = [*buffer.shape[:dim], width, *(least + size + most for (least, most), size in outside)]
            first = [*[ZERO] * dim, begin, *(-least for (least, _), _ in outside)]
            place = tuple(variable + start for variable, start in zip(over, first))
            flat = (expand(flatten(place, buffer.strides)),)
            stmts: tuple[Stmt, ...] = (
                Let(zero, buffer.dtype, "constant", (0.0,)),
                Store(param.name, place if len(param.shape) == len(place) else flat, zero),
            )
            loop = For(over[inner], ZERO, trips[inner], Block(stmts))
            for d in reversed(order):
                loop = For(over[d], ZERO, trips[d], Block((loop,)))
            found.append(loop)
    return found
