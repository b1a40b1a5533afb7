"""Accesses and costs of nodes: the loop function is run once under a counting handler."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from sympy import Expr, Symbol

from smelt.loops.ir import (
    Attention,
    AttentionGradients,
    Attentions,
    Bind,
    Check,
    Contraction,
    Extern,
    Fold,
    Host,
    Index,
    Native,
    Node,
    Pointwise,
    Reduction,
    Scan,
    Sort,
    StridedView,
    Value,
)
from smelt.ops import TABLE, Handler, using
from smelt.records import dataclass
from smelt.symbolic import loop_var


@dataclass(frozen=True, slots=True)
class Read:
    """A distinct access of a buffer: ``indirect`` if the index holds a computed position."""

    buffer: str
    index: tuple[Expr, ...]
    indirect: bool
    masked: bool


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The accesses and costs of one element of a node, over ``variables`` (and ``reduce_variables`` for a
    Reduction; a Fold's is its iteration).

    ``whole`` are buffers used as a whole: an Extern's arguments, a Scatter's base, a Sort's source.
    ``operations``, ``cost`` (units of one float addition) are those of one call of the loop function;
    ``checks`` counts the indirect indices that may raise; ``place`` is a Scatter's place; ``exprs`` are the
    arguments of `ops.index_expr` and the sizes of indirect indices.

    ``code``: the structure of the loop function, with buffers by their number among ``buffers_read``: equal
    for functions that differ in buffers only. ``inlined``: producers that were inlined.
    """

    variables: tuple[Expr, ...]
    reduce_variables: tuple[Expr, ...]
    reads: tuple[Read, ...]
    whole: tuple[str, ...]
    writes: tuple[str, ...]
    operations: int
    cost: int
    checks: int
    place: tuple[Expr, ...] | None = None
    exprs: tuple[Expr, ...] = ()
    code: tuple[Any, ...] = ()
    inlined: tuple[str, ...] = ()

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
    index: Sequence[Expr] | None = None,
    rindex: Sequence[Expr] | None = None,
    inlined: Mapping[str, Pointwise] | None = None,
) -> Dependencies:
    """Runs the node's loop function once and records its accesses; results over ``i0 …``, ``r0 …`` without
    inlining are cached.

    Args:
        node: any node.
        index: the loop variables to use, ``i0 …`` where not given.
        rindex: those of the reduced dimensions (of a fold's iterations), ``r0 …`` where not given.
        inlined: buffers that are computed where they are read: their own reads are recorded instead.
    """
    if index is not None or rindex is not None or inlined:
        return _analyzed(node, index, rindex, inlined or {})
    if not node.known:
        node.known.append(_analyzed(node, None, None, {}))
    found: Dependencies = node.known[0]
    return found


def _analyzed(
    node: Node,
    index: Sequence[Expr] | None,
    rindex: Sequence[Expr] | None,
    inlined: Mapping[str, Pointwise],
) -> Dependencies:
    body = node.body
    writes = tuple(name for name in node.outputs if name is not None)
    if isinstance(body, Extern):
        whole = tuple(dict.fromkeys(view.buffer for view in views_in((body.args, body.kwargs))))
        return Dependencies((), (), (), whole, writes, 0, 0, 0)
    if isinstance(body, (Bind, Check)):
        return Dependencies((), (), (), (), writes, 0, 0, 0)
    if isinstance(body, Sort):
        return Dependencies((), (), (), (body.source,), writes, 0, 0, 0)
    if isinstance(body, Native):
        return Dependencies((), (), (), body.reads, writes, 0, 0, 0)
    over: tuple[Expr, ...] = variables("i", len(body.shape)) if index is None else tuple(index)
    counter = _Counter(inlined)
    if isinstance(body, Pointwise):
        counter.run(body.inner_fn, over)
        return counter.found(over, (), (), writes)
    if isinstance(body, (Reduction, Contraction, Attentions)):
        reduced: tuple[Expr, ...] = (
            variables("r", len(body.reduce_shape)) if rindex is None else tuple(rindex)
        )
        if isinstance(body, Attentions):
            counter.run(attention_values, body, over, reduced, None)
            counter.cost += _ATTENTION_COST
            return counter.found(over, reduced, (), writes)
        if isinstance(body, Contraction):
            counter.run(body.lhs, over, reduced)
            counter.run(body.rhs, over, reduced)
            if body.start is not None:
                counter.run(body.start, over)
            counter.cost += 2
            return counter.found(over, reduced, (), writes)
        counter.run(body.inner_fn, over, reduced)
        counter.cost += _REDUCTION_COST.get(body.kind, 1)
        return counter.found(over, reduced, (), writes)
    if isinstance(body, Scan):
        counter.run(body.inner_fn, over, tuple(range(-len(body.state), 0)))
        return counter.found(over, (), (), writes)
    if isinstance(body, Fold):
        turn = variables("r", 1) if rindex is None else tuple(rindex)
        counter.run(body.inner_fn, over, turn[0], tuple(range(-len(body.state), 0)))
        return counter.found(over, turn, (), writes)
    counter.run(body.inner_fn, over)
    place = tuple(counter.run(body.place, over))
    return counter.found(over, (), (body.base,), writes, place)


def attention_values(body: Attentions, index: Index, rindex: Index, product: Value) -> list[Value]:
    """The results of each loop function of an attention, or of its gradients, run once."""
    (*outer, query, column), (key, depth) = index, rindex
    of = body if isinstance(body, Attention) else body.attention
    values = [
        of.query((*outer, query), (depth,)),
        of.key((*outer, key), (depth,)),
        of.score((*outer, query, key), product),
        of.value((*outer, key, column)),
    ]
    if of.kept is not None:
        values.append(of.kept((*outer, query, key)))
    if of.visible is not None:
        of.visible((*outer, query, key))
    if isinstance(body, AttentionGradients):
        values += [body.upstream(index), body.inner((*outer, query)), body.logsumexp((*outer, query))]
        values.append(body.derivative((*outer, query, key), product, product))
    return values


_ATTENTION_COST = 16
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


def bound_symbols(node: Node) -> tuple[Symbol, ...]:
    """The size symbols that a node defines.

    >>> from smelt.loops.ir import Origin
    >>> n = Symbol("n", integer=True)
    >>> bound_symbols(Node((), Bind(n, n * 0 + 3), Origin("aten.slice")))
    (n,)
    """
    body = node.body
    if isinstance(body, Bind):
        return (body.symbol,)
    if not isinstance(body, Extern):
        return ()
    own = () if body.symbol is None else (body.symbol,)
    return (*own, *(each.symbol for each in body.sizes))


def domain(node: Node) -> tuple[Expr, ...]:
    """The extents of the loops over a node's loop function; empty if there is none."""
    body = node.body
    if isinstance(body, Host):
        return ()
    if isinstance(body, Fold):
        return (*body.shape, body.turns)
    reduces = isinstance(body, (Reduction, Contraction, Attentions))
    return (*body.shape, *body.reduce_shape) if reduces else body.shape  # type: ignore[union-attr]


class _Counter(Handler):
    """Values are the numbers of their steps; a function's return is a step as well."""

    def __init__(self, inlined: Mapping[str, Pointwise]) -> None:
        self.inlined = inlined
        self.reads: dict[tuple[str, tuple[Expr, ...]], Read] = {}
        self.operations = self.cost = self.checks = 0
        self._masks = 0
        self._indirect: set[Expr] = set()
        self.exprs: dict[Expr, None] = {}
        self._code: list[Any] = []
        self._numbers: dict[str, int] = {}
        self._producers: dict[str, None] = {}
        self._known: ChainMap[tuple[str, tuple[Expr, ...]], int] = ChainMap()
        """Producers that were run, by place: those of a mask are dropped after it."""

    def run(self, function: Callable[..., Any], *indices: Any) -> Any:
        with using(self):
            result = function(*indices)
        self._step(_frozen(result))
        return result

    def found(
        self,
        over: tuple[Expr, ...],
        reduced: tuple[Expr, ...],
        whole: tuple[str, ...],
        writes: tuple[str, ...],
        place: tuple[Expr, ...] | None = None,
    ) -> Dependencies:
        reads = tuple(self.reads.values())
        return Dependencies(
            over,
            reduced,
            reads,
            whole,
            writes,
            self.operations,
            self.cost,
            self.checks,
            place,
            tuple(self.exprs),
            tuple(self._code),
            tuple(self._producers),
        )

    def _step(self, *what: Any) -> int:
        self._code.append(what)
        return len(self._code) - 1

    def elementwise(self, name: str, *args: int) -> int:
        self.operations += 1
        self.cost += TABLE[name].cost
        return self._step(name, args)

    def load(self, buffer: str, index: Sequence[Expr]) -> int:
        place = tuple(index)
        producer = self.inlined.get(buffer)
        if producer is not None:
            value = self._known.get((buffer, place))
            if value is None:
                value = self._known[buffer, place] = producer.inner_fn(place)
                self._producers[buffer] = None
            return value
        key = (buffer, place)
        seen = self.reads.get(key)
        if seen is None or (seen.masked and not self._masks):
            indirect = bool(self._indirect) and any(self._indirect & expr.free_symbols for expr in place)
            self.reads[key] = Read(buffer, place, indirect, self._masks > 0)
        return self._step("load", self._numbers.setdefault(buffer, len(self._numbers)), place)

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> int:
        return self._step("constant", repr(value), dtype)

    def index_expr(self, expr: Expr, dtype: torch.dtype) -> int:
        self.exprs[expr] = None
        self.operations += 1
        self.cost += 1
        return self._step("index_expr", expr, dtype)

    def to_dtype(self, x: int, dtype: torch.dtype) -> int:
        self.operations += 1
        self.cost += 1
        return self._step("to_dtype", x, dtype)

    def bitcast(self, x: int, dtype: torch.dtype) -> int:
        return self._step("bitcast", x, dtype)

    def masked(self, mask: int, body: Callable[[], int], other: float | int | bool) -> int:
        self._step("mask", mask)
        self._masks += 1
        self._known = self._known.new_child()
        try:
            result = body()
        finally:
            self._masks -= 1
            self._known = self._known.parents
        self.operations += 1
        self.cost += 1
        return self._step("masked", result, repr(other))

    def indirect_index(self, x: int, size: Expr, *, wrap: bool = True, check: bool | str = True) -> Expr:
        self.exprs[size] = None
        self.operations += 1
        self.cost += 2
        self.checks += bool(check)
        self._step("indirect_index", x, size, wrap, check)
        symbol = _indirect_symbol(len(self._indirect))
        self._indirect.add(symbol)
        return symbol


def _frozen(result: Any) -> Any:
    return tuple(map(_frozen, result)) if isinstance(result, (tuple, list)) else result


@lru_cache(maxsize=64)
def _indirect_symbol(number: int) -> Symbol:
    return loop_var(f"at{number}")
