"""In-place reuse: a kernel writes its result into an input that is dead afterwards.

The decision is made on the kernel's plain nest. No iteration may read an element of the input after it, or
another iteration, has written there: the input is read at the index where the result is stored, or in an
earlier loop inside the same iteration over the same elements (the rows of a softmax). The two parameters then
become one, so later passes (loop transformations, C++) see a buffer that is read and written, and no
aliasing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from sympy import Expr

from smelt.nest.ir import Block, For, Guard, Let, Masked, Param, Stage, Stmt, Store
from smelt.records import dataclass, replace
from smelt.schedule.nests import BuiltKernel
from smelt.symbolic import flatten, numel, same, span


@dataclass(frozen=True, slots=True)
class _Access:
    """A load or store of a parameter: its index, the loops around it, and the positions of the statements
    around it, outermost first.
    """

    param: Param
    index: tuple[Expr, ...]
    loops: tuple[For, ...]
    path: tuple[int, ...]
    store: Store | None = None

    @property
    def place(self) -> Expr:
        """Its offset in the parameter's memory, in elements."""
        return flatten(self.index, self.param.strides)


def reuse_inputs(
    built: BuiltKernel, may_overwrite: Callable[[str, str], bool]
) -> tuple[BuiltKernel, dict[str, str]]:
    """The kernel with results stored into inputs, and the input that each such result replaces.

    ``may_overwrite(result, source)`` tells whether ``source`` is dead after this kernel, and of a storage
    kind that ``result`` may use.
    """
    params = dict(zip(built.buffers, built.kernel.params))
    found: dict[str, list[_Access]] = {name: [] for name in params}
    buffers = dict(zip((param.name for param in built.kernel.params), built.buffers))
    for access in _accesses(built.kernel.body, {param.name: param for param in built.kernel.params}):
        found[buffers[access.param.name]].append(access)
    taken: dict[str, str] = {}
    places: dict[str, tuple[str, tuple[Expr, ...]]] = {}
    for result, param in params.items():
        if not param.written or len(found[result]) != 1:
            continue
        store = found[result][0]
        for source, other in params.items():
            if other.written or source in taken.values() or not _same_extent(param, other):
                continue
            if not may_overwrite(result, source):
                continue
            indices = [_index_at(load, store) for load in found[source]]
            if indices[0] is not None and None not in indices:
                taken[result] = source
                places[param.name] = (other.name, indices[0])
                break
    if not taken:
        return built, taken
    written = {name for name, _ in places.values()}
    kept = tuple(
        replace(param, written=param.written or param.name in written)
        for param in built.kernel.params
        if param.name not in places
    )
    kernel = replace(built.kernel, params=kept, body=_moved(built.kernel.body, places))
    left = tuple(name for name in built.buffers if name not in taken)
    return replace(built, kernel=kernel, buffers=left), taken


def _same_extent(left: Param, right: Param) -> bool:
    """Whether both fill the same number of bytes without holes."""
    return (
        left.dtype == right.dtype
        and same(numel(left.shape), numel(right.shape))
        and _is_dense(left.shape, left.strides)
        and _is_dense(right.shape, right.strides)
    )


@lru_cache(maxsize=4096)
def _is_dense(shape: tuple[Expr, ...], strides: tuple[Expr, ...]) -> bool:
    return same(span(shape, strides), numel(shape))


def _index_at(load: _Access, store: _Access) -> tuple[Expr, ...] | None:
    """The index of the load in terms of the store's loops; None unless an element is loaded before it is
    stored, and by no other iteration.
    """
    if store.store is None or store.store.mode is not None or load.path >= store.path:
        return None
    if not {loop.var for loop in store.loops} <= store.place.free_symbols:
        return None
    shared = 0
    for ours, theirs in zip(load.loops, store.loops):
        if ours.var != theirs.var:
            break
        shared += 1
    loaded, stored = load.loops[shared:], store.loops[shared:]
    differs = any(a.end != b.end or a.begin != b.begin for a, b in zip(loaded, stored))
    if len(loaded) != len(stored) or differs:
        return None
    renamed = {a.var: b.var for a, b in zip(loaded, stored)}
    if not same(load.place.xreplace(renamed), store.place):
        return None
    return tuple(expr.xreplace(renamed) for expr in load.index)


def _accesses(
    block: Block, params: Mapping[str, Param], loops: tuple[For, ...] = (), path: tuple[int, ...] = ()
) -> Iterator[_Access]:
    for position, stmt in enumerate(block.stmts):
        here = (*path, position)
        if isinstance(stmt, Let):
            if stmt.op == "load" and stmt.args[0] in params:
                yield _Access(params[stmt.args[0]], stmt.args[1], loops, here)
        elif isinstance(stmt, For):
            yield from _accesses(stmt.body, params, (*loops, stmt), here)
        elif isinstance(stmt, (Masked, Guard)):
            yield from _accesses(stmt.body, params, loops, here)
        elif isinstance(stmt, Stage):  # its code stores where its operands are
            for access in _accesses(stmt.body, params, loops, here):
                yield replace(access, store=None)
        elif isinstance(stmt, Store) and stmt.buffer in params:
            yield _Access(params[stmt.buffer], stmt.index, loops, here, stmt)


def _moved(block: Block, places: dict[str, tuple[str, tuple[Expr, ...]]]) -> Block:
    """The block with stores moved to other buffers and indices."""

    def move(stmt: Stmt) -> Stmt:
        if isinstance(stmt, (For, Masked, Guard)):
            return replace(stmt, body=_moved(stmt.body, places))
        if isinstance(stmt, Store) and stmt.buffer in places:
            buffer, index = places[stmt.buffer]
            return replace(stmt, buffer=buffer, index=index)
        return stmt

    return Block(tuple(move(stmt) for stmt in block.stmts))
