"""Changes the layout of a buffer, and the iteration order of a stage's axes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol
from sympy.core.relational import Ge
from sympy.logic.boolalg import Boolean

from smelt.nest.ir import (
    Alloc,
    Axis,
    AxisKind,
    Block,
    For,
    Kernel,
    Let,
    SortRow,
    Stage,
    Stmt,
    Store,
)
from smelt.nest.primitives.common import in_loops, refusal, stage_place
from smelt.nest.primitives.copies import Values, copying
from smelt.nest.primitives.inline import inverted
from smelt.nest.primitives.places import in_buffer
from smelt.nest.regions import Facts, Interval, interval
from smelt.nest.scopes import (
    Place,
    buffer_names,
    buffers,
    members,
    reads,
    scope_body,
    shapes_of,
    stage_names,
    unique_name,
    with_alloc,
    writes,
)
from smelt.nest.tree import (
    exchanged,
    loops,
    map_exprs,
    named,
    redirected,
    rewritten,
    stages,
    walk,
    with_blocks,
    with_body,
)
from smelt.records import dataclass, replace
from smelt.symbolic import contiguous_strides, loop_var, simplify
from smelt.symbolic.affine import divided, expand, remainder, replaced, symbols_in

ZERO = sympy.Integer(0)

IndexMap = Callable[..., Any]
"""A function from indices to indices: ``lambda i, j: (i // 16, j, i % 16)``."""


@dataclass(frozen=True, slots=True)
class Position:
    """An index in an index map: integers with Python's ``//`` and ``%``."""

    expr: Expr

    def __add__(self, other: Any) -> Position:
        return Position(expand(self.expr + as_index(other)))

    def __sub__(self, other: Any) -> Position:
        return Position(expand(self.expr - as_index(other)))

    def __rsub__(self, other: Any) -> Position:
        return Position(expand(as_index(other) - self.expr))

    def __mul__(self, other: Any) -> Position:
        return Position(expand(self.expr * as_index(other)))

    def __floordiv__(self, other: Any) -> Position:
        return Position(divided(self.expr, as_index(other)))

    def __mod__(self, other: Any) -> Position:
        return Position(remainder(self.expr, as_index(other)))

    def __neg__(self) -> Position:
        return Position(-self.expr)

    __radd__, __rmul__ = __add__, __mul__


def as_index(value: Any) -> Expr:
    """The expression of an index map's result: a position, a number, an expression."""
    found = getattr(value, "expr", value)
    return found if isinstance(found, Expr) else sympy.Integer(int(found))


def mapped(index_map: IndexMap, index: Sequence[Expr]) -> tuple[Expr, ...]:
    """Applies an index map to an index.

    >>> i, j = map(loop_var, "ij")
    >>> mapped(lambda i, j: (i // 16, j, i % 16), (i, j))
    ((i//16), j, Mod(i, 16))
    >>> mapped(lambda *rest, k: [*rest, k // 4, k % 4], (i, j))
    (i, (j//4), Mod(j, 4))
    """
    given = [Position(expr) for expr in index]
    kinds = [param.kind for param in inspect.signature(index_map).parameters.values()]
    last = [
        name
        for name, param in inspect.signature(index_map).parameters.items()
        if param.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    if last and inspect.Parameter.VAR_POSITIONAL in kinds:
        made = index_map(*given[: len(given) - len(last)], **dict(zip(last, given[len(given) - len(last) :])))
    else:
        made = index_map(*given)
    return tuple(map(as_index, made if isinstance(made, (list, tuple)) else [made]))


def shape_of(made: Sequence[Expr], spans: Mapping[Symbol, Interval], what: str) -> tuple[Expr, ...]:
    """The shape that covers all values of indices, where their symbols have the ranges ``spans``.

    Raises:
        ScheduleError: SM1035, an index may be negative, or its upper bound is unknown.
    """
    facts, sizes = Facts({var: last + 1 for var, (_, last) in spans.items()}), []
    for expr in made:
        span = interval(expr, spans, facts)
        if span is None or not facts.nonnegative(span[0]):
            raise refusal("SM1035", what, f"the range of {expr} is unknown, or below 0")
        sizes.append(expand(span[1] + 1))
    return tuple(sizes)


@dataclass(frozen=True, slots=True)
class _Mapping:
    """An index map over a shape: the symbols of old and new dimensions, and the shapes."""

    old: tuple[Symbol, ...]
    made: tuple[Expr, ...]
    new: tuple[Symbol, ...]
    shape: tuple[Expr, ...]
    back: Mapping[Symbol, Expr]

    @staticmethod
    def of(index_map: IndexMap, shape: Sequence[Expr], what: str, injective: bool = False) -> _Mapping:
        old = tuple(loop_var(f"old{dim}") for dim in range(len(shape)))
        extents = dict(zip(old, shape))
        try:
            made = mapped(index_map, old)
        except TypeError as error:
            raise refusal(
                "SM1035", what, f"the index map does not take {len(shape)} indices: {error}"
            ) from error
        made = tuple(simplify(expr, extents) for expr in made)
        sizes = shape_of(made, {var: (ZERO, size - 1) for var, size in extents.items()}, what)
        new = tuple(loop_var(f"new{dim}") for dim in range(len(made)))
        back = inverted(made, new, extents)
        if isinstance(back, str):  # an index that is always 0 adds nothing
            units = {var: ZERO for var, size in extents.items() if size == 1}
            fewer = tuple([simplify(replaced(expr, units), extents) for expr in made])
            back = inverted(fewer, new, extents) if units else back
        if isinstance(back, str):
            if not injective:
                raise refusal("SM1035", what, f"the index map cannot be inverted: {back}")
            back = {}
        lost = [var for var, size in extents.items() if var not in back and size != 1]
        if lost and not injective:
            raise refusal("SM1035", what, f"the index map forgets index {old.index(lost[0])}")
        whole = {var: back.get(var, ZERO) for var in old}
        return _Mapping(old, made, new, sizes, whole)

    def __call__(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        values = dict(zip(self.old, index, strict=True))
        return tuple(replaced(expr, values) for expr in self.made)

    def padded(self, shape: Sequence[Expr]) -> bool:
        return expand(sympy.Mul(*self.shape) - sympy.Mul(*shape)) != 0


def transform_layout(
    kernel: Kernel,
    buffer: str,
    index_map: IndexMap,
    pad_value: Any = None,
    assume_injective: bool = False,
    what: str | None = None,
) -> Kernel:
    """Changes the layout of a buffer, at all of its reads and writes.

    B[i, j] = …; C[i, j] = B[i, j]   →   B[i // 16, j, i % 16] = …; C[i, j] = B[i // 16, j, i % 16]

    A parameter changes its shape: the caller has to pass it in the new layout. If the new shape has more
    elements, the block after the writer sets them to ``pad_value``, a number or a function of the new
    indices; ``assume_injective``: they stay uninitialized, and the map is trusted.

    Raises:
        ScheduleError: SM1031 there is no such buffer; SM1035 the map is not invertible, pads where no value
        is given, or the value does not fit the buffer's dtype.
    """
    what = what or f"transform_layout of {buffer}"
    shapes = shapes_of(kernel)
    if buffer not in shapes:
        raise refusal("SM1031", what, f"there is no buffer {buffer}")
    change = _Mapping.of(index_map, shapes[buffer], what, assume_injective)
    _check_dtype(kernel, buffer, pad_value, what)
    padded = change.padded(shapes[buffer])
    if padded and pad_value is None and not assume_injective:
        why = f"the new shape {_text(change.shape)} pads {_text(shapes[buffer])}"
        raise refusal("SM1035", what, why, "give a pad_value")
    extents = ranges_of(kernel)

    def moved(index: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(simplify(expand(expr), extents) for expr in change(index))

    def visit(stmt: Stmt) -> Sequence[Stmt] | None:
        if isinstance(stmt, Alloc) and stmt.buffer == buffer:
            return (replace(stmt, shape=change.shape, aligned=()),)
        if isinstance(stmt, SortRow) and buffer in (stmt.source, stmt.values, stmt.positions):
            raise refusal("SM1035", what, f"rows of {buffer} are sorted")
        return None

    params = tuple(
        replace(each, shape=change.shape, strides=contiguous_strides(change.shape))
        if each.name == buffer
        else each
        for each in kernel.params
    )
    body = redirected(kernel.body, buffer, buffer, moved)
    after = replace(kernel, params=params, body=rewritten(body, visit))
    return (
        _with_padding(after, buffer, change, shapes[buffer], pad_value, what)
        if padded and pad_value is not None
        else after
    )


def _text(shape: Sequence[Expr]) -> str:
    return f"({', '.join(map(str, shape))})"


def _check_dtype(kernel: Kernel, buffer: str, pad_value: Any, what: str) -> None:
    if pad_value is None or callable(pad_value):
        return
    dtype = buffers(kernel)[buffer].dtype
    wanted = bool if dtype is torch.bool else float if dtype.is_floating_point else int
    if type(pad_value) is not wanted:
        raise refusal("SM1035", what, f"{buffer} holds {dtype}, the pad_value {pad_value!r} is none")


def ranges_of(kernel: Kernel) -> dict[Symbol, Expr]:
    """The extent of each loop variable and each axis."""
    found = {loop.var: loop.end for loop in loops(kernel.body)}
    return found | {axis.var: axis.begin + axis.extent for s in stages(kernel.body) for axis in s.axes}


def _with_padding(
    kernel: Kernel, buffer: str, change: _Mapping, shape: Sequence[Expr], pad_value: Any, what: str
) -> Kernel:
    """A block that fills the padding of the new shape, after the last block that writes the buffer."""
    writers = [n for n, stmt in enumerate(kernel.body.stmts) if buffer in writes(stmt)]
    if not writers:
        return kernel  # a parameter that is only read: the memory beyond its elements is the caller's
    values = Values(kernel)
    nest_loops = [values.loop(dim, size) for dim, size in enumerate(change.shape)]
    axes = [
        Axis(values.symbol(f"v{dim}"), loop.end, loop.var, label=f"v{dim}")
        for dim, loop in enumerate(nest_loops)
    ]
    at = dict(zip(change.new, [loop.var for loop in nest_loops]))
    facts = Facts().plus(nest_loops)
    outside: list[Boolean] = []
    for var, size in zip(change.old, shape):
        expr = replaced(change.back[var], at)
        limits = {each.var: (ZERO, each.end - 1) for each in nest_loops}
        span = interval(expr, limits, facts)
        if span is None or not facts.at_most(span[1], size - 1):
            outside.append(Ge(expr, size))
    name = values()
    dtype = buffers(kernel)[buffer].dtype
    number = pad_value(*(Position(axis.var) for axis in axes)) if callable(pad_value) else pad_value
    if callable(pad_value) and not isinstance(number, (int, float, Position)):
        why = f"the pad_value {number!r} is made of more than the index"
        raise refusal("SM1035", what, why, "a number, or a function of the index")
    made = isinstance(number, Position)
    let = Let(name, dtype, "index_expr", (number.expr,)) if made else Let(name, dtype, "constant", (number,))
    body = Block((let, Store(buffer, tuple(axis.var for axis in axes), name)))
    label = unique_name(f"buffer_{buffer}_padding", stage_names(kernel))
    nest = in_loops(nest_loops, Stage(label, tuple(axes), body, where=(sympy.Or(*outside),)))
    stmts = kernel.body.stmts
    return with_body(kernel, Block((*stmts[: writers[-1] + 1], nest, *stmts[writers[-1] + 1 :])))


# -- the axes of a block -------------------------------------------------------------------------------------


def reorder_block_iter_var(kernel: Kernel, stage: str, order: Sequence[int]) -> Kernel:
    """Reorders the axes of a block; its computation and its loops stay the same.

    C: v_i, v_j, v_k = i, j, k   →   C: v_k, v_i, v_j = k, i, j      (order [2, 0, 1])

    Raises:
        ScheduleError: SM1002 there is no such block; SM1036 the order does not have each axis once.
    """
    what = f"reorder_block_iter_var of {stage}"
    target = stage_place(kernel, stage, what)[0]
    if sorted(order) != list(range(len(target.axes))):
        why = f"{list(order)} does not name each of its {len(target.axes)} axes once"
        raise refusal("SM1036", what, why)
    new = replace(target, axes=tuple(target.axes[each] for each in order))
    return exchanged(kernel, target, new)


def own_nest(place: Place, what: str) -> tuple[Stmt, list[For]]:
    """The outermost statement that contains only a stage, and the loops from there on.

    Raises:
        ScheduleError: SM1036, a loop around the stage holds something else.
    """
    for loop in place.loops:
        if len(loop.body.stmts) != 1:
            raise refusal("SM1036", what, f"the loop {named(loop)} holds more than the block")
    inside = list(place.loops)
    return (inside[0] if inside else place.stmt), inside


def transform_block_layout(kernel: Kernel, stage: str, index_map: IndexMap) -> Kernel:
    """Iterates over the axes of a block in another way: new loops, one for each result of the map.

    for i in 8, j in 4: S[i, j] = …   →   for ax0 in 32: S[ax0 // 4, ax0 % 4] = …      (i * 4 + j)

    Raises:
        ScheduleError: SM1002 there is no such block; SM1035 the map is not invertible, or one of its results
        mixes axes of two kinds; SM1036 the loops around the block are not its axes, or hold something else.
    """
    what = f"transform_block_layout of {stage}"
    target, place = stage_place(kernel, stage, what)
    top, around = own_nest(place, what)
    moved = [axis.value for axis in target.axes if axis.extent != 1 or axis.value != axis.begin]
    if target.where or moved != [loop.var for loop in around]:
        raise refusal("SM1036", what, "its axes are not the loops around it, one by one")
    if any(axis.begin != 0 for axis in target.axes):
        raise refusal("SM1036", what, "an axis does not begin at 0")
    change = _Mapping.of(index_map, [axis.extent for axis in target.axes], what)
    if change.padded([axis.extent for axis in target.axes]):
        raise refusal("SM1035", what, "the new indices are more than the old ones")
    kinds = dict(zip(change.old, [axis.kind for axis in target.axes]))
    values = Values(kernel)
    axes: list[Axis] = []
    fresh: list[For] = []
    for dim, (expr, size) in enumerate(zip(change.made, change.shape)):
        found = {kinds[var] for var in symbols_in(expr) if var in kinds} or {AxisKind.SPATIAL}
        if len(found) > 1:
            names = " and ".join(sorted(kind.value for kind in found))
            raise refusal("SM1035", what, f"index {dim} of the map is of axes of two kinds: {names}")
        loop = values.loop(dim, size)
        fresh.append(loop)
        axes.append(Axis(values.symbol(f"v{dim}"), size, loop.var, found.pop(), label=f"v{dim}"))
    at = dict(zip(change.new, [axis.var for axis in axes]))
    old = {axis.var: replaced(change.back[var], at) for axis, var in zip(target.axes, change.old)}
    extents = {axis.var: axis.extent for axis in axes}

    def placed(block: Block) -> Block:
        return map_exprs(block, lambda expr: simplify(expand(replaced(expr, old)), extents))

    body, init = placed(target.body), None if target.init is None else placed(target.init)
    nest = in_loops(fresh, replace(target, axes=tuple(axes), body=body, init=init))
    return exchanged(kernel, top, nest)


# -- elements in the order in which a block uses them --------------------------------------------------------


def reindex(kernel: Kernel, stage: str, buffer: str) -> tuple[Kernel, str]:
    """Copies the region of a buffer that a block reads or writes into a buffer that is indexed by the block's
    own axes; returns the copy's block.

    for i, j: B[i, j] = A[j, i]   →   for ax0, ax1: A_reindex[ax0, ax1] = A[ax1, ax0]
                                      for i, j: B[i, j] = A_reindex[i, j]

    Raises:
        ScheduleError: SM1002 there is no such block; SM1031 it has not one index for the buffer, or does not
        touch it; SM1033 another block writes the buffer, where this one does, or uses it in the same loops.
    """
    what = f"reindex of {stage}"
    target, place = stage_place(kernel, stage, what)
    limits = {axis.var: axis.begin + axis.extent for axis in target.axes}
    own = set(limits)
    stored = buffer in writes(target)
    found = indices_of(target, buffer, limits)
    if len(found) != 1:
        why = f"it uses {buffer} at {len(found)} places" if found else f"it does not use {buffer}"
        raise refusal("SM1031", what, why)
    (index,) = found
    if not symbols_in(sympy.Tuple(*index)) <= own | set(kernel.sizes):
        raise refusal("SM1031", what, f"its index of {buffer} is not in terms of its axes alone")
    others = [
        s.name for s in members(scope_body(kernel, place.scope)) if s is not target and buffer in writes(s)
    ]
    if stored and others:
        raise refusal("SM1033", what, f"{buffer} has two producers: {others[0]} writes it too")
    used = [axis for axis in target.axes if any(axis.var in symbols_in(expr) for expr in index)]
    if stored and any(axis.kind is not AxisKind.SPATIAL for axis in used):
        raise refusal("SM1031", what, f"the index at which it writes {buffer} depends on a reduce axis")
    values = Values(kernel)
    name = unique_name(f"{buffer}_reindex", stage_names(kernel) | buffer_names(kernel))
    nest_loops: list[For] = []
    axes: list[Axis] = []
    for dim, axis in enumerate(used):
        loop = values.loop(dim, axis.begin + axis.extent, axis.begin)
        nest_loops.append(loop)
        axes.append(
            replace(
                axis, var=values.symbol(f"v{dim}"), value=loop.var, kind=AxisKind.SPATIAL, label=f"v{dim}"
            )
        )
    renamed = {axis.var: new.var for axis, new in zip(used, axes)}
    far = (buffer, tuple(replaced(expr, renamed) for expr in index))
    near = (name, tuple(axis.var - axis.begin for axis in axes))
    load, store = (near, far) if stored else (far, near)
    at = {axis.var: new.value for axis, new in zip(used, axes)}
    facts = Facts({loop.var: loop.end for loop in nest_loops})
    where = in_buffer([replaced(expr, at) for expr in index], shapes_of(kernel)[buffer], facts)
    dtype = buffers(kernel)[buffer].dtype
    copy = copying(name, nest_loops, axes, load, store, dtype, values, where)
    own_index = tuple(axis.var - axis.begin for axis in used)
    new = with_blocks(
        target, lambda block: redirected(block, buffer, name, lambda _: own_index, stores=stored)
    )
    alloc = Alloc(name, dtype, tuple(axis.extent for axis in used))
    for other in _of_one_nest(kernel, place):
        if buffer in (reads(other) if stored else writes(other)):
            why = f"{other.name}, of the same loops, {'reads' if stored else 'writes'} {buffer}"
            raise refusal("SM1033", what, why, "reindex first, then move blocks")
    return _with_nest(kernel, place, new, copy, alloc, after=stored), name


def _of_one_nest(kernel: Kernel, place: Place) -> list[Stage]:
    """The other stages of its scope under the outermost loop around a stage."""
    nests = (members(Block((stmt,))) for stmt in scope_body(kernel, place.scope).stmts)
    found = next(each for each in nests if any(stage is place.stmt for stage in each))
    return [each for each in found if each is not place.stmt]


def indices_of(stage: Stage, buffer: str, limits: Mapping[Symbol, Expr]) -> set[tuple[Expr, ...]]:
    """The indices at which a block uses a buffer."""
    found = set()
    for stmt in walk(Block((stage,))):
        if isinstance(stmt, Let) and stmt.op == "load" and stmt.args[0] == buffer:
            found.add(tuple(simplify(expand(expr), limits) for expr in stmt.args[1]))
        elif isinstance(stmt, Store) and stmt.buffer == buffer:
            found.add(tuple(simplify(expand(expr), limits) for expr in stmt.index))
    return found


def _with_nest(kernel: Kernel, place: Place, new: Stage, copy: Stmt, alloc: Alloc, after: bool) -> Kernel:
    """The kernel with a block replaced, and a nest inserted before or after the statement of its scope that
    contains the block.
    """
    old = place.stmt
    scope = place.scope

    def changed(block: Block) -> Block:
        stmts: list[Stmt] = []
        for stmt in block.stmts:
            holds = any(each is old for each in walk(Block((stmt,))))
            if not holds:
                stmts.append(stmt)
                continue
            inside = rewritten(Block((stmt,)), lambda each: (new,) if each is old else None)
            stmts += [*inside.stmts, copy] if after else [copy, *inside.stmts]
        return with_alloc(Block(tuple(stmts)), alloc)

    if scope is None:
        return with_body(kernel, changed(kernel.body))
    return exchanged(kernel, scope, replace(scope, body=changed(scope.body)))
