"""Contractions as matrix products: the dimensions of each operand, and its memory layout.

A convolution is a matrix product as well: its rows are output positions, its columns channels, its terms the
elements of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import sympy
import torch
from sympy import Expr, Symbol

from smelt.loops.dependencies import variables
from smelt.loops.ir import Buffer, Contraction, Graph, Index, Value, accumulator
from smelt.loops.record import LoadHook, Recorder
from smelt.loops.straightline import Instruction, MaskedInstruction, Recordable
from smelt.ops import ops
from smelt.records import dataclass, replace
from smelt.schedule.tilings import Tiles
from smelt.symbolic import FloorDiv, Mod, flatten, free_symbols, least, numel, same, simplify, size_hint
from smelt.symbolic.affine import affine, expand, linear, replaced

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)
SHORTEST_RUN = 16
"""Contiguous terms of lhs from which on it is read in place; and contiguous columns of rhs."""
CACHED_LHS_BYTES = 1 << 19
"""Bytes of lhs up to which it is read in place although rows, not terms, are contiguous: part of a cache."""


@dataclass(frozen=True, slots=True)
class Product:
    """``out[batch, row, column] = sum over terms of lhs[batch, row, term] * rhs[batch, column, term]``.

    ``batch``, ``rows`` and ``columns`` are numbers of dimensions of the contraction's shape: those of both
    operands, of lhs alone, of rhs alone. If rhs has no dimension of its own, the batch is the columns: then
    lhs depends on these as well (``shared``), as in a depthwise convolution. ``split``: the splits of
    dimensions between the graph's contraction and the body. ``frozen``: rhs is constant and packed ahead.
    ``swapped``: the operands are swapped, so that rows are contiguous in a result. ``tiles``: those of a GPU,
    by measurement. ``pairs``: a tile is summed in matrix registers (`smelt.schedule.products.matrix_tiles`).
    """

    body: Contraction
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    shared: bool = False
    split: Split | None = None
    frozen: bool = False
    swapped: bool = False
    tiles: Tiles | None = None
    pairs: bool = False

    def sizes(self, dims: Iterable[int]) -> tuple[Expr, ...]:
        return tuple(self.body.shape[d] for d in dims)

    @property
    def extents(self) -> tuple[Expr, ...]:
        """The batch's sizes, all rows, all columns."""
        return (*self.sizes(self.batch), numel(self.sizes(self.rows)), numel(self.sizes(self.columns)))

    @property
    def depth(self) -> Expr:
        return numel(self.body.reduce_shape)

    def rhs_at(self, index: Mapping[int, Expr], terms: Mapping[int, Expr]) -> Value:
        """rhs by dimension numbers, of the result and summed ones; 0 where none is given."""
        return self.body.rhs(
            tuple(index.get(d, ZERO) for d in range(len(self.body.shape))),
            tuple(terms.get(d, ZERO) for d in range(len(self.body.reduce_shape))),
        )

    def lhs_at(self, index: Mapping[int, Expr], term: Expr, dtype: torch.dtype) -> Value:
        """lhs by dimension numbers of the result, as ``dtype``, which is the dtype before it is converted."""
        return ops.to_dtype(
            self.body.lhs(tuple(index.get(d, ZERO) for d in range(len(self.body.shape))), (term,)), dtype
        )

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions in the memory order of a result: the batch, rows, then contiguous columns. Pieces of
        one dimension are adjacent.
        """
        inner = (*self.columns, *self.rows) if self.swapped else (*self.rows, *self.columns)
        order = (*self.batch, *inner)
        return order if self.split is None else self.split.together(order, self.batch)

    @property
    def strides(self) -> tuple[Expr, ...]:
        """Strides of a result of the body's shape in this order."""
        return strides_in_order(self.body.shape, self.order)

    @property
    def whole(self) -> Contraction:
        """The contraction of the graph, with no dimension split."""
        return self.body if self.split is None else self.split.whole

    @property
    def whole_strides(self) -> tuple[Expr, ...]:
        """`strides` of a result of the shape of the graph's contraction."""
        if self.split is None:
            return self.strides
        order = dict.fromkeys(self.split.source(dim) for dim in self.order)
        return strides_in_order(self.whole.shape, tuple(order))

    @property
    def counts(self) -> dict[int, Expr]:
        """The number of leading terms of a summed dimension that contribute, where phases decide it."""
        found: dict[int, Expr] = {}
        for phase in () if self.split is None else self.split.phases:
            if phase.count is not None:
                found[phase.term] = least(found.get(phase.term, phase.count), phase.count)
        return found

    @property
    def phases(self) -> tuple[int, ...]:
        """The dimensions of the batch whose iterations are adjacent in a result."""
        return () if self.split is None else tuple(phase.dim for phase in self.split.phases)


def swapped(product: Product) -> Product:
    """The same product with swapped operands: rows are columns, and columns rows."""
    body = replace(product.body, lhs=product.body.rhs, rhs=product.body.lhs)
    return replace(product, body=body, rows=product.columns, columns=product.rows, swapped=True)


@dataclass(frozen=True, slots=True)
class Phase:
    """Dimension ``dim`` of a body: the remainder of a position by a stride, which selects taps.

    lhs reads a position of its own that is ``shift`` further, over the body's variables, and at most ``most``
    further; in the body's lhs it replaces the phase until it is copied (`box`). Of the summed dimension
    ``term`` the first ``count`` terms contribute; None: all of them.
    """

    dim: int
    shift: Expr
    most: int
    term: int
    count: Expr | None


@dataclass(frozen=True, slots=True)
class Split:
    """The splits of the dimensions of ``whole``: where ``steps`` has a number, a dimension of the result is
    split into two, the quotient and the remainder by it.
    """

    whole: Contraction
    steps: tuple[int | None, ...]
    phases: tuple[Phase, ...] = ()

    def pieces(self, dim: int) -> tuple[int, ...]:
        """The body's dimensions of a dimension of the whole."""
        first = dim + sum(step is not None for step in self.steps[:dim])
        return (first,) if self.steps[dim] is None else (first, first + 1)

    def source(self, piece: int) -> int:
        """The dimension of the whole of a dimension of the body."""
        return next(dim for dim in range(len(self.steps)) if piece in self.pieces(dim))

    def together(self, order: Sequence[int], batch: Sequence[int]) -> tuple[int, ...]:
        """``order`` with the pieces of a dimension adjacent: at the place of the one that is not of the
        batch.
        """
        found: list[int] = []
        for dim in order:
            pieces = self.pieces(self.source(dim))
            if dim not in batch or all(piece in batch for piece in pieces):
                found += [piece for piece in pieces if piece not in found]
        return tuple(found)

    def index(self, index: Index) -> tuple[Expr, ...]:
        """The index in the body of the element at ``index`` of the whole."""
        found: list[Expr] = []
        for position, step in zip(index, self.steps, strict=True):
            by = None if step is None else sympy.Integer(step)
            found += [position] if by is None else [FloorDiv(position, by), Mod(position, by)]
        return tuple(found)


def strides_in_order(shape: Sequence[Expr], order: Sequence[int]) -> tuple[Expr, ...]:
    """Strides of a dense buffer with the dimensions in memory order ``order``, outermost first; missing
    dimensions have one element.

    >>> strides_in_order([sympy.Integer(size) for size in (2, 3, 4)], [0, 2, 1])
    (12, 1, 3)
    """
    strides: list[Expr] = [ONE] * len(shape)
    step: Expr = ONE
    for dim in reversed(order):
        strides[dim] = step
        step = step * shape[dim]
    return tuple(strides)


def as_product(
    body: Contraction, graph: Graph, split: Split | None = None, codes: Codes | None = None
) -> Product | None:
    """The contraction as a matrix product in float32; None where it is none.

    The operands are swapped if rhs alone reads windows and both have a batch (the weight's gradient of a
    depthwise convolution) or there are few contiguous columns (that of one of an image). Columns that move a
    window come before contiguous ones. ``split``: the splits that made the body, its phases are a batch.
    ``codes``: `operand_codes`, where known.
    """
    if accumulator(body.dtype) != torch.float32 or len(body.shape) < 2:
        return None
    left, right = operand_codes(body, graph) if codes is None else codes
    of_left, of_right = symbols_of(left), symbols_of(right)
    phases = () if split is None else tuple(phase.dim for phase in split.phases)
    dims: dict[str, list[int]] = {"batch": [], "rows": [], "columns": []}
    outer = variables("i", len(body.shape))
    for dim, (variable, size) in enumerate(zip(outer, body.shape)):
        if dim in phases:
            continue
        if variable in of_left:
            dims["batch" if variable in of_right else "rows"].append(dim)
        elif variable in of_right:
            dims["columns"].append(dim)
        elif size == 1:
            dims["rows"].append(dim)
        else:
            return None
    batch, rows, columns = (tuple(found) for found in dims.values())
    terms = variables("r", len(body.reduce_shape))
    moved, moved_left = (_moved_with(loads_of(code), terms) for code in (right, left))
    windowed = any(outer[d] in moved for d in columns) and not any(outer[d] in moved_left for d in rows)
    contiguous = numel([body.shape[d] for d in columns if outer[d] not in moved])
    few = not batch and size_hint(contiguous, graph.hints) < SHORTEST_RUN
    if windowed and (few if rows else batch):
        return as_product(replace(body, lhs=body.rhs, rhs=body.lhs), graph, split, (right, left))
    if not rows or not (columns or batch):
        return None
    if not columns:
        return Product(body, phases, rows, batch, shared=True, split=split)
    columns = tuple(sorted(columns, key=lambda d: outer[d] not in moved))
    return Product(body, (*batch, *phases), rows, columns, split=split)


def _moved_with(loads: Iterable[tuple[str, tuple[Expr, ...]]], terms: Sequence[Symbol]) -> set[Symbol]:
    """The symbols that share an index of some load with a term: those that move a window."""
    places = [place.free_symbols for _, index in loads for place in index]
    return {symbol for place in places if place & set(terms) for symbol in place} - set(terms)


Codes = tuple[list[Recordable], list[Recordable]]


class Dtypes(Mapping[str, torch.dtype]):
    """The dtypes of buffers."""

    def __init__(self, buffers: Mapping[str, Buffer]) -> None:
        self.buffers = buffers

    def __getitem__(self, name: str) -> torch.dtype:
        return self.buffers[name].dtype

    def __iter__(self) -> Iterator[str]:
        return iter(self.buffers)

    def __len__(self) -> int:
        return len(self.buffers)


def operand_code(
    function: Callable[[Index, Index], Value],
    body: Contraction,
    graph: Graph,
    load_hook: LoadHook | None = None,
) -> list[Recordable]:
    """The steps of ``lhs`` or ``rhs`` at ``variables``; ``load_hook``: see `Recorder`."""
    if load_hook is not None:
        return _recorded(function, body, graph, load_hook)
    return graph.worked_out(
        "code", function, lambda: _recorded(function, body, graph, None), body.shape, body.reduce_shape
    )


def _recorded(
    function: Callable[[Index, Index], Value], body: Contraction, graph: Graph, load_hook: LoadHook | None
) -> list[Recordable]:
    outer, terms = variables("i", len(body.shape)), variables("r", len(body.reduce_shape))
    extents = dict(zip((*outer, *terms), (*body.shape, *body.reduce_shape)))
    recorder = Recorder(Dtypes(graph.buffers), extents, load_hook)
    recorder.run(function, outer, terms)
    return list(recorder.instructions)


def operand_codes(body: Contraction, graph: Graph) -> Codes:
    """The steps of ``lhs`` and ``rhs`` at ``variables``."""
    return operand_code(body.lhs, body, graph), operand_code(body.rhs, body, graph)


def is_plain(steps: Sequence[Recordable]) -> bool:
    """Whether code has neither masks nor indirect indices."""
    return all(isinstance(step, Instruction) and step.index is None for step in steps)


def looks_up(steps: Sequence[Recordable]) -> bool:
    """Whether code computes an index from data, also inside masks."""
    return any(
        looks_up(step.body) if isinstance(step, MaskedInstruction) else step.index is not None
        for step in steps
    )


def expressions(steps: Iterable[Recordable]) -> list[Expr]:
    """The index expressions of loads, and those used as values, also inside masks."""
    found: list[Expr] = []
    for step in steps:
        if isinstance(step, MaskedInstruction):
            found += expressions(step.body)
        elif step.op == "load":
            found += step.args[1]
        elif step.op == "index_expr":
            found.append(step.args[0])
    return found


def symbols_of(steps: Iterable[Recordable]) -> set[Symbol]:
    """The symbols that loads and index expressions depend on."""
    return free_symbols(expressions(steps))


def loads_of(steps: Iterable[Recordable]) -> set[tuple[str, tuple[Expr, ...]]]:
    """(buffer, index) of every load, inside masks too."""
    found: set[tuple[str, tuple[Expr, ...]]] = set()
    for step in steps:
        if isinstance(step, MaskedInstruction):
            found |= loads_of(step.body)
        elif step.op == "load":
            found.add((step.args[0], tuple(step.args[1])))
    return found


# -- layout of lhs ------------------------------------------------------------------------------------------


def is_windowed(product: Product, graph: Graph) -> bool:
    """Whether lhs reads windows, which move with rows and are traversed by terms."""
    body = product.body
    moved = _moved_with(loads_of(operand_code(body.lhs, body, graph)), variables("r", len(body.reduce_shape)))
    outer = variables("i", len(body.shape))
    return any(outer[d] in moved for d in product.rows)


def lhs_place(body: Contraction, graph: Graph) -> tuple[str, Expr] | None:
    """`operand_place` of lhs."""
    return operand_place(body.lhs, body, graph)


def place_before_cast(
    function: Callable[[Index, Index], Value], body: Contraction, graph: Graph
) -> tuple[str, Expr] | None:
    """`operand_place` of an operand whose elements are converted."""
    steps = operand_code(function, body, graph)
    last = steps[-1]
    casts = len(steps) == 2 and isinstance(last, Instruction) and last.op == "to_dtype"
    return _place(steps[:1], body, graph) if casts else None


def operand_place(
    function: Callable[[Index, Index], Value], body: Contraction, graph: Graph
) -> tuple[str, Expr] | None:
    """(buffer, flat index at ``variables``) if ``lhs`` or ``rhs`` is one plain load, else None."""
    return _place(operand_code(function, body, graph), body, graph)


def _place(steps: Sequence[Recordable], body: Contraction, graph: Graph) -> tuple[str, Expr] | None:
    if len(steps) != 1 or not isinstance(steps[0], Instruction) or steps[0].op != "load":
        return None
    buffer, index = steps[0].args
    symbols = (*variables("i", len(body.shape)), *variables("r", len(body.reduce_shape)))
    extents = dict(zip(symbols, (*body.shape, *body.reduce_shape)))
    flat = simplify(expand(flatten(index, graph.buffers[buffer].strides)), extents)
    return buffer, expand(flat)


def memory_order(place: Expr, over: Sequence[Symbol], sizes: Sequence[Expr]) -> list[int] | None:
    """Dimensions of more than one element in memory order, outermost first; None where the index is not
    affine in them.
    """
    found = affine(place, over)
    if found is None:
        return None
    dims = [d for d in range(len(sizes)) if sizes[d] != 1]
    return sorted(dims, key=lambda d: -abs(size_hint(found[0][d], {})))


def together(
    place: Expr, over: Sequence[Symbol], sizes: Sequence[Expr], order: Sequence[int]
) -> list[list[int]]:
    """The dimensions in ``order``, with contiguous neighbours, which can be one loop, in one list.

    >>> r = sympy.symbols("r:3", integer=True)
    >>> sizes = [sympy.Integer(64), sympy.Integer(3), sympy.Integer(3)]
    >>> together(r[0] + 64 * r[2] + 4096 * r[1], r, sizes, [1, 2, 0])
    [[1], [2, 0]]
    """
    found = affine(place, over)
    groups: list[list[int]] = []
    for dim in order:
        if found and groups and same(found[0][groups[-1][-1]], found[0][dim] * sizes[dim]):
            groups[-1].append(dim)
        else:
            groups.append([dim])
    return groups


def columns_in_a_row(
    product: Product, graph: Graph, columns: Sequence[int], terms: Sequence[int]
) -> tuple[str, Expr] | None:
    """The buffer, and the offset of rhs's first column over the variables of the batch, if columns are
    contiguous, each with all its terms. ``columns`` (dimensions of the result) and ``terms`` are given
    outermost first.
    """
    body = product.body
    found = operand_place(body.rhs, body, graph)
    if found is None:
        return None
    buffer, flat = found
    outer, summed = variables("i", len(body.shape)), variables("r", len(body.reduce_shape))
    symbols, sizes = (*outer, *summed), (*body.shape, *body.reduce_shape)
    order = [*columns, *(len(outer) + term for term in terms)]
    own = [dim for dim in order if sizes[dim] != 1]
    split = affine(flat, symbols)
    if split is None or len(together(flat, symbols, sizes, own)) != 1 or split[0][own[-1]] != 1:
        return None
    return buffer, replaced(flat, dict.fromkeys((*(outer[dim] for dim in columns), *summed), ZERO))


def readable_in_place(product: Product, graph: Graph) -> bool:
    """Whether the register tile can read lhs in place: it is one plain load, with terms or rows contiguous in
    memory. An lhs that is shared with rhs needs contiguous columns instead.
    """
    body = product.body
    place = lhs_place(body, graph)
    if place is None or product.phases:
        return False
    terms = variables("r", len(body.reduce_shape))
    order = memory_order(place[1], terms, body.reduce_shape)
    if order is None:
        return False
    if product.shared:
        return bool(linear(place[1], variables("i", len(body.shape))[product.columns[-1]])[0] == 1)
    groups = together(place[1], terms, body.reduce_shape, order)
    if not groups:
        return True  # one term
    length = size_hint(numel([body.reduce_shape[d] for d in groups[-1]]), graph.hints)
    if len(groups) > 1 and length < SHORTEST_RUN:
        return False
    return linear(place[1], terms[groups[-1][-1]])[0] == 1 or _rows_adjacent(product, place[1], graph)


def _rows_adjacent(product: Product, place: Expr, graph: Graph) -> bool:
    """Whether many rows of lhs are contiguous in memory, as those of a gradient are in a weight's gradient:
    the elements of a tile's rows are adjacent then, for each term. A large lhs is copied, because of memory
    latency; and a weight of that layout is packed faster than it is read here.
    """
    if product.swapped:
        return False
    outer = variables("i", len(product.body.shape))
    sizes = (*product.sizes(product.rows), *product.body.reduce_shape)
    contiguous = [dim for dim in product.rows if linear(place, outer[dim])[0] == 1]
    many = any(size_hint(product.body.shape[dim], graph.hints) >= SHORTEST_RUN for dim in contiguous)
    return many and 4 * size_hint(numel(sizes), graph.hints) <= CACHED_LHS_BYTES
