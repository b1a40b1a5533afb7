"""What a node reads and writes, and what it costs: its loop function is run once, to count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy
import torch
from sympy import Expr, Symbol

from smelt.loops.ir import Extern, Graph, Node, Pointwise, Reduction, StridedView
from smelt.ops import TABLE, Handler, using
from smelt.symbolic import loop_var, numel


@dataclass(frozen=True, slots=True)
class Read:
    """One distinct access of a buffer: ``indirect`` where the index holds a computed position."""

    buffer: str
    index: tuple[Expr, ...]
    indirect: bool
    masked: bool


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What one element of a node needs, over ``variables`` (and ``reduce_variables`` for a Reduction).

    ``whole`` are buffers used as a whole: an Extern's arguments, a Scatter's base. ``operations``, ``cost``
    (units of one float addition) are those of one call of the loop function; ``checks`` counts the indirect
    indices that may raise; ``place`` is a Scatter's place.
    """

    variables: tuple[Symbol, ...]
    reduce_variables: tuple[Symbol, ...]
    reads: tuple[Read, ...]
    whole: tuple[str, ...]
    writes: tuple[str, ...]
    operations: int
    cost: int
    checks: int
    place: tuple[Expr, ...] | None = None

    @property
    def buffers_read(self) -> tuple[str, ...]:
        """Every buffer read, in the order of first use."""
        return tuple(dict.fromkeys([*(read.buffer for read in self.reads), *self.whole]))


@lru_cache(maxsize=64)
def variables(prefix: str, count: int) -> tuple[Symbol, ...]:
    """The loop variables ``prefix0 …``, the same ones on every call.

    >>> variables("i", 2)
    (i0, i1)
    """
    return tuple(loop_var(f"{prefix}{d}") for d in range(count))


def analyze(
    node: Node,
    graph: Graph | None = None,
    index: Sequence[Symbol] | None = None,
    rindex: Sequence[Symbol] | None = None,
) -> Dependencies:
    """Run the node's loop function once and note what it touches.

    Args:
        node: any node.
        graph: its graph (not needed for what is found; kept so that callers read the same everywhere).
        index: the loop variables to use, ``i0 …`` where not given.
        rindex: those of the reduced dimensions, ``r0 …`` where not given.
    """
    body = node.body
    writes = tuple(name for name in node.outputs if name is not None)
    if isinstance(body, Extern):
        whole = tuple(dict.fromkeys(view.buffer for view in views_in((body.args, body.kwargs))))
        return Dependencies((), (), (), whole, writes, 0, 0, 0)
    over = variables("i", len(body.shape)) if index is None else tuple(index)
    counter = _Counter()
    if isinstance(body, Pointwise):
        counter.run(body.inner_fn, over)
        return counter.found(over, (), (), writes)
    if isinstance(body, Reduction):
        reduced = variables("r", len(body.reduce_shape)) if rindex is None else tuple(rindex)
        counter.run(body.inner_fn, over, reduced)
        counter.cost += _REDUCTION_COST.get(body.kind, 1)
        return counter.found(over, reduced, (), writes)
    counter.run(body.inner_fn, over)
    place = tuple(counter.run(body.place, over))
    return counter.found(over, (), (body.base,), writes, place)


_REDUCTION_COST = {"welford": 8, "online_softmax": 14, "argmax": 2, "argmin": 2}


def views_in(arg: Any) -> list[StridedView]:
    """Every StridedView in an Extern's arguments, in order."""
    if isinstance(arg, StridedView):
        return [arg]
    if isinstance(arg, dict):
        return views_in(list(arg.values()))
    if isinstance(arg, (list, tuple)):
        return [view for item in arg for view in views_in(item)]
    return []


def bytes_read(found: Dependencies, node: Node, graph: Graph) -> Expr:
    """How many bytes the node needs from memory: each buffer's touched elements once.

    An access touches as many elements as the loops over its variables have turns, at most the whole buffer.
    """
    extents = dict(zip((*found.variables, *found.reduce_variables), domain(node)))
    touched: dict[str, Expr] = {}
    for read in found.reads:
        buffer = graph.buffers[read.buffer]
        whole = numel(buffer.shape)
        symbols = set().union(*(expr.free_symbols for expr in read.index)) if read.index else set()
        turns = numel(extents.values() if read.indirect else [extents[s] for s in extents if s in symbols])
        count = _least(turns, whole)
        touched[read.buffer] = (
            _least(touched[read.buffer] + count, whole) if read.buffer in touched else count
        )
    for name in found.whole:
        touched[name] = numel(graph.buffers[name].shape)
    return sympy.Add(*(count * graph.buffers[name].dtype.itemsize for name, count in touched.items()))


def bytes_written(node: Node, graph: Graph) -> Expr:
    """How many bytes of result the node stores."""
    written = [graph.buffers[name] for name in node.outputs if name is not None]
    return sympy.Add(*(numel(buffer.shape) * buffer.dtype.itemsize for buffer in written))


def domain(node: Node) -> tuple[Expr, ...]:
    """The extents of the loops over a node's loop function; nothing for an Extern."""
    body = node.body
    if isinstance(body, Extern):
        return ()
    return (*body.shape, *body.reduce_shape) if isinstance(body, Reduction) else body.shape


def _least(left: Expr, right: Expr) -> Expr:
    if left.is_Integer and right.is_Integer:
        return min(left, right)
    return right if left.is_Integer is False and right.is_Integer else left


class _Counter(Handler):
    """Values are nothing at all; only what is asked for counts."""

    def __init__(self) -> None:
        self.reads: dict[tuple[str, tuple[Expr, ...]], Read] = {}
        self.operations = self.cost = self.checks = 0
        self._masks = 0
        self._indirect: set[Expr] = set()

    def run(self, function: Callable[..., Any], *indices: Sequence[Expr]) -> Any:
        with using(self):
            return function(*indices)

    def found(
        self,
        over: tuple[Symbol, ...],
        reduced: tuple[Symbol, ...],
        whole: tuple[str, ...],
        writes: tuple[str, ...],
        place: tuple[Expr, ...] | None = None,
    ) -> Dependencies:
        reads = tuple(self.reads.values())
        return Dependencies(
            over, reduced, reads, whole, writes, self.operations, self.cost, self.checks, place
        )

    def elementwise(self, name: str, *args: Any) -> None:
        self.operations += 1
        self.cost += TABLE[name].cost

    def load(self, buffer: str, index: Sequence[Expr]) -> None:
        place = tuple(index)
        key = (buffer, place)
        seen = self.reads.get(key)
        if seen is not None and (self._masks or not seen.masked):
            return
        indirect = bool(self._indirect) and any(self._indirect & expr.free_symbols for expr in place)
        self.reads[key] = Read(buffer, place, indirect, self._masks > 0)

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> None:
        return None

    def index_expr(self, expr: Expr, dtype: torch.dtype) -> None:
        self.operations += 1
        self.cost += 1

    def to_dtype(self, x: Any, dtype: torch.dtype) -> None:
        self.operations += 1
        self.cost += 1

    def bitcast(self, x: Any, dtype: torch.dtype) -> None:
        return None

    def masked(self, mask: Any, body: Callable[[], Any], other: float | int | bool) -> None:
        self._masks += 1
        try:
            body()
        finally:
            self._masks -= 1
        self.operations += 1
        self.cost += 1

    def indirect_index(self, x: Any, size: Expr, *, wrap: bool = True, check: bool = True) -> Expr:
        self.operations += 1
        self.cost += 2
        self.checks += check
        symbol = _indirect_symbol(len(self._indirect))
        self._indirect.add(symbol)
        return symbol


@lru_cache(maxsize=64)
def _indirect_symbol(number: int) -> Symbol:
    return loop_var(f"at{number}")
