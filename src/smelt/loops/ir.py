"""The loop IR: computations as functions from an index to a value, without an order.

    Graph  = Buffer*, Node*, inputs, outputs, mutations
    Node   = (outputs, body, origin)
    Body   = Pointwise | Reduction | Contraction | Attention | AttentionGradients | Scan | Fold | Scatter
           | Sort | Native | Extern | Bind | Check
    Value  = inner_fn(index) run under an `ops` handler

A buffer is written by one node, at every index of its shape, once. An index is a sequence of SymPy
expressions, one per dimension of the buffer (never flattened here).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
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
    """The origin of a node: the ATen operator and the user's source line (``file.py:12 in forward``).

    ``nodes``: the names of the contract graph's nodes that it comes from; for one in a body the bodies' names
    come first, ``true_graph_0.sin``.

    >>> print(Origin("aten.add.Tensor", "model.py:7 in forward"), "|", Origin("seed"))
    aten.add.Tensor at model.py:7 in forward | seed at ?
    """

    op: str
    where: str | None = None
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.op} at {self.where or '?'}"

    def joined(self, others: Iterable[Origin]) -> Origin:
        """This origin, which has the nodes of the others as well.

        >>> product, total = Origin("aten.mul.Tensor", None, ("mul",)), Origin("aten.sum", None, ("sum",))
        >>> product.joined([total]).nodes
        ('mul', 'sum')
        """
        nodes = dict.fromkeys((*self.nodes, *(name for each in others for name in each.nodes)))
        return Origin(self.op, self.where, tuple(nodes))


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named, typed, shaped piece of memory; strides are in elements.

    ``halo``: the number of zeros in memory before and after each dimension, which may be loaded but not
    stored; () for none. ``paired``: ATen and the caller see complex numbers here; loop functions see real
    ones, the last dimension holds real and imaginary part.
    """

    name: str
    dtype: torch.dtype
    shape: Shape
    strides: Shape
    halo: tuple[tuple[Expr, Expr], ...] = ()
    paired: bool = False

    @property
    def outside(self) -> tuple[torch.dtype, Shape, Shape]:
        """Dtype, shape and strides for ATen and the caller.

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
        """The number of halo elements before the buffer's first one."""
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
    ``product``: annotations for the loop over the terms, which say how a GPU tiles a matrix product, if these
    are its sums; None otherwise.
    """

    kind: str
    shape: Shape
    reduce_shape: Shape
    dtype: torch.dtype
    inner_fn: Callable[[Index, Index], Value]
    product: tuple[tuple[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """A loop-carried state along dimension ``dim`` of ``shape``, and one output element per iteration.

    ``state, (out_0[index], …) = inner_fn(index, state)`` for one index after the other along ``dim``. Along
    the other dimensions every line has a state of its own. ``state`` has the dtype and initial value of each
    part, ``dtypes`` those of the outputs. The iterations run in order, unless ``inner_fn`` is `Associative`.
    """

    shape: Shape
    dim: int
    state: tuple[tuple[torch.dtype, float | int | bool], ...]
    dtypes: tuple[torch.dtype, ...]
    inner_fn: Callable[[Index, Sequence[Value]], tuple[Sequence[Value], Sequence[Value]]]


@dataclass(frozen=True, slots=True)
class Associative:
    """The loop function of a scan whose state after an element is ``combine(state, element(index))``, an
    associative function: a target may combine any neighbours first. ``finish(index, state)`` gives the
    outputs.
    """

    element: Callable[[Index], Sequence[Value]]
    combine: Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]]
    finish: Callable[[Index, Sequence[Value]], Sequence[Value]]

    def __call__(self, index: Index, state: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Value]]:
        after = self.combine(state, self.element(index))
        return after, self.finish(index, after)


@dataclass(frozen=True, slots=True)
class Fold:
    """The state after a number of iterations, for each element separately: recurrences, fixed-point
    iterations.

    ``state = inner_fn(index, turn, state)`` for ``turn`` from 0 to ``turns - 1``; ``state`` has the initial
    values, as in a `Scan`. There is one output for each part: its value after the last iteration. ``turns``
    may be a size that depends on data.
    """

    shape: Shape
    turns: Expr
    state: tuple[tuple[torch.dtype, float | int | bool], ...]
    inner_fn: Callable[[Index, Expr, Sequence[Value]], Sequence[Value]]


ACCUMULATIONS = ("add", "mul", "maximum", "minimum")
"""The elementwise operators by which a scatter may combine elements."""


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
    """``values[*i, k], positions[*i, k]``: the k-th element of row i of ``source``, and its original position
    (int64).

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
    """A kernel that the user has written and that runs as it is. It is not fused with other nodes.

    ``kernel`` is a kernel of `smelt.nest.ir`, which this layer does not import: its parameters are the
    buffers ``reads``, then the node's outputs, all row-major; its sizes are the graph's. ``shapes`` and
    ``dtypes`` are those of the outputs. ``run(memory, sizes)`` interprets it: ``memory`` are flat tensors by
    parameter.
    """

    kernel: Any
    reads: tuple[str, ...]
    shapes: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]
    run: Callable[[Any, Any], None] = field(compare=False)


@dataclass(frozen=True, slots=True)
class StridedView:
    """A view of a buffer's memory for an ATen call; strides and offset are in elements.

    ``dtype``: that of the elements; None: the buffer's own, in loop functions. A view of pairs of real
    numbers may be complex.
    """

    buffer: str
    shape: Shape
    strides: Shape
    offset: Expr
    dtype: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class Extern:
    """A call of an ATen operator.

    ``target`` is the overload's name (``aten.addmm.default``). ``args``/``kwargs`` hold literals, SymPy
    sizes, StridedViews, and lists of these. ``reason`` is None for calls that smelt chooses (matmul,
    convolution, attention) and says why otherwise: then it is a fallback. ``symbol`` receives the result
    where the operator returns a number; ``sizes`` are the symbols that its results bind: those whose sizes
    depend on data.

    ``bodies``: the branches and loop bodies of control flow (``higher_order.cond`` …), graphs of their own
    that take operands and return fresh memory; see `smelt.runtime.control`. ``overwrites``: buffers that the
    call writes to in place; the node's last outputs are their new contents, and no other node reads the old
    ones.
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

    If ``dim`` is None, that result itself is the number.
    """

    symbol: Symbol
    output: int
    dim: int | None


@dataclass(frozen=True, slots=True)
class Bind:
    """``symbol`` is ``value``, an expression of sizes that are defined before. Writes no buffer."""

    symbol: Symbol
    value: Expr


@dataclass(frozen=True, slots=True)
class Check:
    """Raise the built-in exception ``kind`` with ``message`` unless ``condition`` holds. Writes no buffer.

    ``condition`` is a SymPy Boolean over sizes that are defined before.
    """

    condition: Boolean
    message: str
    kind: str = "RuntimeError"


@dataclass(frozen=True, slots=True)
class Contraction:
    """``out[index] = start(index) + sum over rindex of lhs(index, rindex) * rhs(index, rindex)``.

    A matrix product or a convolution, a structured operation until it is scheduled: the loop functions define
    it, ``call`` is ATen's kernel for the same, with its operands and their geometry (strides, padding,
    groups). The loop functions give values of `accumulator` (dtype); products and their sums have that dtype,
    and are rounded to ``dtype`` once. ``start`` None: from zero. ``result`` is the number of this result
    among the call's ``results``.
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
    """The dtype in which a contraction with results of ``dtype`` multiplies and adds.

    >>> accumulator(torch.bfloat16), accumulator(torch.float64), accumulator(torch.int8)
    (torch.float32, torch.float64, torch.int64)
    """
    if dtype.is_floating_point:
        return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    return torch.int64


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention: each query's average of the values of visible keys, weighted by softmax, and the logarithm
    of its sum.

    ::

        score(*i, q, k) = score((*i, q, k), sum over r of query((*i, q), (r,)) * key((*i, k), (r,)))
        P(*i, q, k)  = exp(score(*i, q, k)) / sum over k of exp(score(*i, q, k))
        out[*i, q, c]   = sum over k of P(*i, q, k) * kept((*i, q, k)) * value((*i, k, c))
        logsumexp[*i, q] = log of sum over k of exp(score(*i, q, k))

    ``shape`` is (*i, q, c); ``reduce_shape`` (keys, depth): k runs over the first ``seen((*i, q))`` keys, all
    where ``seen`` is None. It never decreases as q grows, and may be larger than ``keys``. ``kept`` is the
    factor of dropout: 0, or more than 1; None: 1 for all. Where no score is above -inf, ``out`` is 0 and
    ``logsumexp`` is ``blind``. Where ``visible`` (a bool) is false a score is -inf for every finite product;
    None: unknown. The loop functions give values of `accumulator` (dtype), the second output has that dtype.
    ``call`` is ATen's kernel for the same; or a higher-order operator, for which ATen has none. ``sums``: the
    shape of the second output where it differs from (*i, q): it has more queries, whose sums are infinite, or
    a dimension of one element behind. ``others``: shapes and dtypes of the outputs that ATen's kernel has
    besides, which nobody reads.
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
    sums: Shape | None = None
    others: tuple[tuple[Shape, torch.dtype], ...] = ()

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of the outputs."""
        sums = self.shape[:-1] if self.sums is None else self.sums
        return self.shape, sums, *(shape for shape, _ in self.others)


@dataclass(frozen=True, slots=True)
class AttentionGradients:
    """The gradients by query, key and value of an `Attention`, from the gradient by its result, ``upstream``.

    ::

        P(*i, q, k)  = exp(score(*i, q, k) - logsumexp(*i, q))
        dP(*i, q, k) = kept((*i, q, k)) * sum over c of upstream(*i, q, c) * value((*i, k, c))
        dS(*i, q, k) = derivative((*i, q, k), product, P(*i, q, k) * (dP(*i, q, k) - inner(*i, q)))
        by_query[*i, q, r] = sum over k of dS(*i, q, k) * key((*i, k), (r,))
        by_key[*j, k, r]   = sum over i and q of dS(*i, q, k) * query((*i, q), (r,))
        by_value[*j, k, c] = sum over i and q of P(*i, q, k) * kept((*i, q, k)) * upstream(*i, q, c)

    ``score``, ``kept`` and their inputs are those of ``attention``, and so is ``seen``: here the visible keys
    are ``q`` plus a constant number. ``derivative`` makes the gradient by the product of that by its score;
    ``logsumexp`` is the attention's, ``inner`` the sum over c of upstream * result. ``heads`` is the size of
    the last dimension of ``j``: if it is smaller than that of ``i``, consecutive heads of queries share keys
    and values. The loop functions give values of `accumulator` (dtype). ``call``: as that of `Attention`; it
    has ``results``, of which the first three are these.
    """

    attention: Attention
    upstream: Callable[[Index], Value]
    inner: Callable[[Index], Value]
    logsumexp: Callable[[Index], Value]
    derivative: Callable[[Index, Value, Value], Value]
    heads: Expr
    call: Extern
    results: int = 3

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
"""Structured operations, until a kernel is chosen for them: one of ours, or ATen's."""

Host = Extern | Bind | Check
"""Bodies that are no loop functions and run between kernels."""

Body = Pointwise | Reduction | Contraction | Attentions | Scan | Fold | Scatter | Sort | Native | Host


@dataclass(frozen=True, slots=True)
class Node:
    """A computation and the buffers it writes. Position ``i`` of ``outputs`` is the body's output ``i``; None
    if an output is not used (or, for an Extern, is not a tensor). ``known``: cached results of
    `smelt.loops.dependencies.analyze`.
    """

    outputs: tuple[str | None, ...]
    body: Body
    origin: Origin
    known: list[Any] = field(default_factory=list, init=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mutation: at the end, the input buffer ``target`` holds the contents of ``source`` (shapes are equal,
    strides may differ).
    """

    target: str
    source: str


@dataclass(slots=True)
class Graph:
    """A whole program at loop level, in an order in which it can run.

    ``outputs`` are StridedViews of buffers (a view of an input stays a view of it), sizes or None; a tensor
    that the program returns twice is one StridedView object, equal objects are separate tensors on the same
    memory. ``hints`` maps each dynamic size to the number seen while capturing. ``frozen``: inputs (tensors)
    that rarely change between calls: values that depend on them alone are computed ahead. The runtime detects
    a change (`smelt.runtime.folded`). ``saved``: buffers that are outputs for the backward only; their layout
    is free. ``limits``: the largest values of sizes that depend on data, where they are known. ``known``: see
    `worked_out`.
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
    limits: dict[Symbol, Expr] = field(default_factory=dict)
    known: dict[tuple[Any, ...], tuple[Any, Any]] = field(default_factory=dict, compare=False, repr=False)

    def worked_out(self, what: str, of: Any, make: Callable[[], T], *more: Hashable) -> T:
        """The result of ``make`` for a body or a loop function of this graph, cached.

        Keys are compared by identity: a structural comparison of loop functions would traverse all their
        captured values.
        """
        key = (what, id(of), *more)
        if key not in self.known:
            self.known[key] = of, make()  # while it is kept, its identity is unique
        return self.known[key][1]

    def with_bodies(self) -> Iterator[Graph]:
        """The graph, and the bodies of its control flow, outer before inner."""
        yield self
        for node in self.nodes:
            if isinstance(node.body, Extern):
                for body in node.body.bodies:
                    yield from body.with_bodies()
