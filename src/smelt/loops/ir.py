"""The loop IR: what is computed, as functions from an index to a value. Nothing here says in which order.

    Graph  = Buffer*, Node*, inputs, outputs, mutations
    Node   = (outputs, body, origin)
    Body   = Pointwise | Reduction | Contraction | Attention | AttentionGradients | Scan | Fold | Scatter
           | Sort | Native | Extern | Bind | Check
    Value  = inner_fn(index) run under an `ops` handler

A buffer is written by one node, at every index of its shape, once. An index is a sequence of SymPy
expressions, one per dimension of the buffer (never flattened here).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import sympy
import torch
from sympy import Expr, Symbol
from sympy.logic.boolalg import Boolean

from smelt.records import dataclass, field

Index = Sequence[Expr]
Value = Any
T = TypeVar("T")
Shape = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node comes from: the ATen operator and the user's source line (``file.py:12 in forward``)."""

    op: str
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named, typed, shaped piece of memory; strides are in elements.

    ``halo``: how many zeros lie before and after each dimension, which may be loaded but not stored; ()
    for none. ``paired``: ATen and the caller see complex numbers here; loop functions see real ones, the last
    dimension holds real and imaginary part.
    """

    name: str
    dtype: torch.dtype
    shape: Shape
    strides: Shape
    halo: tuple[tuple[Expr, Expr], ...] = ()
    paired: bool = False

    @property
    def outside(self) -> tuple[torch.dtype, Shape, Shape]:
        """Dtype, shape and strides as ATen and the caller see them.

        >>> two, four = sympy.Integer(2), sympy.Integer(4)
        >>> Buffer("z", torch.float32, (four, two), (two, sympy.Integer(1)), paired=True).outside
        (torch.complex64, (4,), (1,))
        """
        if not self.paired:
            return self.dtype, self.shape, self.strides
        return self.dtype.to_complex(), self.shape[:-1], tuple([step / 2 for step in self.strides[:-1]])

    @property
    def whole_shape(self) -> Shape:
        """The shape with the halo."""
        if not self.halo:
            return self.shape
        return tuple(
            before + size + after for size, (before, after) in zip(self.shape, self.halo, strict=True)
        )

    @property
    def first(self) -> Expr:
        """How many elements of the halo lie before the buffer's first one."""
        return sympy.Add(*(before * step for (before, _), step in zip(self.halo, self.strides)))


@dataclass(frozen=True, slots=True)
class Pointwise:
    """``out[index] = inner_fn(index)`` for every index of ``shape``."""

    shape: Shape
    dtype: torch.dtype
    inner_fn: Callable[[Index], Value]


REDUCTIONS: dict[str, int] = {
    "sum": 1,
    "prod": 1,
    "max": 1,
    "min": 1,
    "any": 1,
    "all": 1,
    "argmax": 1,
    "argmin": 1,
    "xor_sum": 1,
    "welford": 3,
    "online_softmax": 2,
}
"""Kind → number of outputs.

``max``/``min`` propagate NaN; ``argmax``/``argmin`` (int64) give the first of equals as the row-major
position in ``reduce_shape``, NaN counting as the extreme; ``welford`` gives (mean, sum of squared
deviations, count); ``online_softmax`` gives (max, sum of exp(x - max)).
"""


@dataclass(frozen=True, slots=True)
class Reduction:
    """``out[index] = kind over rindex of inner_fn(index, rindex)``.

    ``dtype`` is the dtype of the value reduced and, save for argmax/argmin (int64), of every output.
    """

    kind: str
    shape: Shape
    reduce_shape: Shape
    dtype: torch.dtype
    inner_fn: Callable[[Index, Index], Value]


@dataclass(frozen=True, slots=True)
class Scan:
    """A state handed on along dimension ``dim`` of ``shape``, and what each iteration makes of it.

    ``state, (out_0[index], …) = inner_fn(index, state)`` for one index after the other along ``dim``. Along
    the other dimensions every line has a state of its own. ``state`` has the dtype of each part and what it
    is at first, ``dtypes`` those of the outputs. Nothing is assumed of ``inner_fn``: its iterations go in
    order.
    """

    shape: Shape
    dim: int
    state: tuple[tuple[torch.dtype, float | int | bool], ...]
    dtypes: tuple[torch.dtype, ...]
    inner_fn: Callable[[Index, Sequence[Value]], tuple[Sequence[Value], Sequence[Value]]]


@dataclass(frozen=True, slots=True)
class Fold:
    """What becomes of a state in a number of iterations, for each element on its own: recurrences,
    iterations.

    ``state = inner_fn(index, turn, state)`` for ``turn`` from 0 to ``turns - 1``; at first it is what
    ``state`` says, as in a `Scan`. There is one output for each part: what it is after the last iteration.
    ``turns`` may be a size that depends on data.
    """

    shape: Shape
    turns: Expr
    state: tuple[tuple[torch.dtype, float | int | bool], ...]
    inner_fn: Callable[[Index, Expr, Sequence[Value]], Sequence[Value]]


ACCUMULATIONS = ("add", "mul", "maximum", "minimum")
"""The elementwise operators that a scatter may put an element into its place by."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """A copy of ``base`` with ``out[*place(index)] (mode)= inner_fn(index)`` for every index of ``shape``.

    The indices go in row-major order. ``mode``: ``None`` stores (the last of duplicates wins), one of
    `ACCUMULATIONS` combines: ``out = mode(out, value)``. ``place(index)`` may call ``ops.indirect_index``.
    """

    base: str
    shape: Shape
    dtype: torch.dtype
    inner_fn: Callable[[Index], Value]
    place: Callable[[Index], Index]
    mode: str | None = None


@dataclass(frozen=True, slots=True)
class Sort:
    """``values[*i, k], positions[*i, k]``: the k-th element of row i of ``source``, and where it was (int64).

    ``source`` is a buffer, row-major, whose rows are its last dimension; ``shape`` is its shape with the
    first ``limit`` of each row in order. NaN is the largest, -0 and 0 are equal; equal elements keep their
    order, descending as well.
    """

    source: str
    shape: Shape
    dtype: torch.dtype
    descending: bool


@dataclass(frozen=True, slots=True)
class Native:
    """A kernel that somebody has written, and that runs as it is. Nothing is fused into it.

    ``kernel`` is one of `smelt.nest.ir`, which this floor knows nothing of: its parameters are the buffers
    ``reads``, then the node's outputs, all row-major; its sizes are the graph's. ``shapes`` and ``dtypes``
    are those of the outputs. ``run(memory, sizes)`` interprets it: ``memory`` are flat tensors by parameter.
    """

    kernel: Any
    reads: tuple[str, ...]
    shapes: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]
    run: Callable[[Any, Any], None] = field(compare=False)


@dataclass(frozen=True, slots=True)
class StridedView:
    """A view of a buffer's memory as an ATen call can take it; strides and offset are in elements.

    ``dtype``: that of the elements; None: the buffer's own, as loop functions see it. A view of real numbers
    may be one of the complex numbers that pairs of them are.
    """

    buffer: str
    shape: Shape
    strides: Shape
    offset: Expr
    dtype: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class Extern:
    """An ATen operator called as it is.

    ``target`` is the overload's name (``aten.addmm.default``). ``args``/``kwargs`` hold literals, SymPy
    sizes, StridedViews, and lists of these. ``reason`` is None for calls that smelt chooses (matmul,
    convolution, attention) and says why otherwise: then it is a fallback. ``symbol`` receives the result
    where the operator returns a number; ``sizes`` are the symbols that its results bind: those whose sizes
    depend on data.

    ``bodies``: the branches and loop bodies of control flow (``higher_order.cond`` …), graphs of their own
    that take operands and return fresh memory; see `smelt.runtime.control`. ``overwrites``: buffers that the
    call writes to in place; the node's last outputs are these as they are afterwards, nothing else reads
    them.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reason: str | None = None
    symbol: Symbol | None = None
    sizes: tuple[SizeOf, ...] = ()
    bodies: tuple[Graph, ...] = ()
    overwrites: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SizeOf:
    """``symbol`` is the size of dimension ``dim`` of an Extern's result number ``output``.

    Where ``dim`` is None that result is itself the number.
    """

    symbol: Symbol
    output: int
    dim: int | None


@dataclass(frozen=True, slots=True)
class Bind:
    """``symbol`` is ``value``, an expression of sizes that are known by then. Writes no buffer."""

    symbol: Symbol
    value: Expr


@dataclass(frozen=True, slots=True)
class Check:
    """Raise the built-in exception ``kind`` with ``message`` unless ``condition`` holds. Writes no buffer.

    ``condition`` is a SymPy Boolean over sizes that are known by then.
    """

    condition: Boolean
    message: str
    kind: str = "RuntimeError"


@dataclass(frozen=True, slots=True)
class Contraction:
    """``out[index] = start(index) + sum over rindex of lhs(index, rindex) * rhs(index, rindex)``.

    A matrix product or a convolution, which keeps its meaning until it is scheduled: the loop functions say
    what is computed, ``call`` is ATen's kernel for the same, with its operands and their geometry (strides,
    padding, groups). The loop functions give values of `accumulator` (dtype); products and their sums have
    that dtype, and are rounded to ``dtype`` once. ``start`` None: from zero. ``result`` is the number of the
    call's result that is meant, of ``results``.
    """

    shape: Shape
    reduce_shape: Shape
    dtype: torch.dtype
    lhs: Callable[[Index, Index], Value]
    rhs: Callable[[Index, Index], Value]
    start: Callable[[Index], Value] | None
    call: Extern
    result: int = 0
    results: int = 1


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a contraction that gives ``dtype`` multiplies and adds.

    >>> accumulator(torch.bfloat16), accumulator(torch.float64), accumulator(torch.int8)
    (torch.float32, torch.float64, torch.int64)
    """
    if dtype.is_floating_point:
        return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    return torch.int64


@dataclass(frozen=True, slots=True)
class Attention:
    """What each query makes of the values of the keys that it sees; and how much it saw.

    ::

        score(*i, q, k) = score((*i, q, k), sum over r of query((*i, q), (r,)) * key((*i, k), (r,)))
        P(*i, q, k)  = exp(score(*i, q, k)) / sum over k of exp(score(*i, q, k))
        out[*i, q, c]   = sum over k of P(*i, q, k) * kept((*i, q, k)) * value((*i, k, c))
        logsumexp[*i, q] = log of sum over k of exp(score(*i, q, k))

    ``shape`` is (*i, q, c); ``reduce_shape`` (keys, depth): k runs over the first ``seen((*i, q))`` keys, all
    where ``seen`` is None. It never falls as q grows, and may be larger than ``keys``. ``kept`` is what
    dropout makes of a share: 0, or more than 1; None: 1 for all. Where no score is above -inf, ``out`` is 0
    and ``logsumexp`` is ``blind``. Where ``visible`` (a bool) is false a score is -inf, whatever finite
    number the product is; None: nothing is known of that. The loop functions give values of `accumulator`
    (dtype), the second output has that dtype. ``call`` is ATen's kernel for the same; or a higher-order
    operator, for which ATen has none.
    """

    shape: Shape
    reduce_shape: Shape
    dtype: torch.dtype
    query: Callable[[Index, Index], Value]
    key: Callable[[Index, Index], Value]
    score: Callable[[Index, Value], Value]
    value: Callable[[Index], Value]
    seen: Callable[[Index], Expr] | None
    call: Extern
    kept: Callable[[Index], Value] | None = None
    visible: Callable[[Index], Value] | None = None
    blind: float = 0.0

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of the outputs."""
        return self.shape, self.shape[:-1]


@dataclass(frozen=True, slots=True)
class AttentionGradients:
    """The gradients by query, key and value of an `Attention`, from the one by its result, ``upstream``.

    ::

        P(*i, q, k)  = exp(score(*i, q, k) - logsumexp(*i, q))
        dS(*i, q, k) = P(*i, q, k) * derivative(*i, q, k) * sum over c of upstream(*i, q, c)
                       * (kept((*i, q, k)) * value((*i, k, c)) - result(*i, q, c))
        by_query[*i, q, r] = sum over k of dS(*i, q, k) * key((*i, k), (r,))
        by_key[*j, k, r]   = sum over i and q of dS(*i, q, k) * query((*i, q), (r,))
        by_value[*j, k, c] = sum over i and q of P(*i, q, k) * kept((*i, q, k)) * upstream(*i, q, c)

    ``score``, ``kept`` and what they are made of are those of ``attention``, and so is what a query sees:
    here that is ``q`` and a number of keys that is the same for all. ``derivative`` is the derivative of a
    score by its product, ``logsumexp`` and ``result`` are what the attention gave. ``heads`` is the size of
    the last dimension of ``j``: where it is smaller than that of ``i``, as many of these as follow one
    another share their keys and values. The loop functions give values of `accumulator` (dtype). ``call`` is
    ATen's kernel for the same.
    """

    attention: Attention
    upstream: Callable[[Index], Value]
    result: Callable[[Index], Value]
    logsumexp: Callable[[Index], Value]
    derivative: Callable[[Index], Value]
    heads: Expr
    call: Extern

    @property
    def shape(self) -> Shape:
        """(*i, q, c)."""
        return self.attention.shape

    @property
    def reduce_shape(self) -> Shape:
        """(keys, depth)."""
        return self.attention.reduce_shape

    @property
    def dtype(self) -> torch.dtype:
        return self.attention.dtype

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of the outputs: by query, by key, by value."""
        (*outer, queries, columns), (keys, depth) = self.shape, self.reduce_shape
        inner = (*outer[:-1], self.heads)
        return (*outer, queries, depth), (*inner, keys, depth), (*inner, keys, columns)


Attentions = Attention | AttentionGradients

Contractions = Contraction | Attentions
"""What keeps its meaning until a kernel is chosen for it: one of ours, or ATen's."""

Host = Extern | Bind | Check
"""What is no loop function: it runs between kernels."""

Body = Pointwise | Reduction | Contraction | Attentions | Scan | Fold | Scatter | Sort | Native | Host


@dataclass(frozen=True, slots=True)
class Node:
    """One computation and the buffers it writes. Position ``i`` of ``outputs`` is the body's output ``i``;
    None where an output is not used (or, for an Extern, is not a tensor). ``known``: what
    `smelt.loops.dependencies.analyze` has found out about it."""

    outputs: tuple[str | None, ...]
    body: Body
    origin: Origin
    known: list[Any] = field(default_factory=list, init=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Mutation:
    """At the end, the input buffer ``target`` holds what ``source`` holds (shapes equal, strides may not)."""

    target: str
    source: str


@dataclass(slots=True)
class Graph:
    """A whole program at loop level, in an order in which it can run.

    ``outputs`` are StridedViews of buffers (a view of an input stays a view of it), sizes or None; what the
    program returns twice is one StridedView object, equal ones are tensors of their own on the same memory.
    ``hints`` maps each dynamic size to the number seen while capturing. ``frozen``: inputs (tensors) that do
    not change between calls, as a rule: what depends on them alone is worth computing ahead. Where one does
    change, whoever runs the program notices (`smelt.runtime.folded`). ``saved``: buffers that are outputs for
    no one but the backward; their dimensions may lie in any order. ``known``: see `worked_out`.
    """

    buffers: dict[str, Buffer] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[str | Symbol | None] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    constant_paths: dict[str, str] = field(default_factory=dict)
    outputs: list[StridedView | Expr | int | float | bool | None] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)
    hints: dict[Symbol, int] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    saved: frozenset[str] = frozenset()
    known: dict[tuple[Any, ...], tuple[Any, Any]] = field(default_factory=dict, compare=False, repr=False)

    def worked_out(self, what: str, of: Any, make: Callable[[], T], *more: Hashable) -> T:
        """What ``make`` finds out about a body or a loop function of this graph: found out once, then known.

        Things are told apart by identity: to compare two loop functions is to go through all that they hold.
        """
        key = (what, id(of), *more)
        if key not in self.known:
            self.known[key] = of, make()  # as long as it is kept, no other has its identity
        return self.known[key][1]

    def with_bodies(self) -> Iterator[Graph]:
        """The graph, and the bodies of its control flow, outer before inner."""
        yield self
        for node in self.nodes:
            if isinstance(node.body, Extern):
                for body in node.body.bodies:
                    yield from body.with_bodies()
