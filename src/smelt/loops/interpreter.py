"""The reference interpreter: loop functions over torch tensors. It is the oracle: exact before fast.

A loop variable is an ``arange`` that broadcasts over the whole iteration domain, so one call of a loop
function computes every element. Sums accumulate in float64 and round once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from sympy import Expr, Symbol

from smelt.errors import SmeltError
from smelt.loops.elementwise import apply, index_error
from smelt.loops.host import argument, bind_sizes, check, memory, number, resolve, view_of
from smelt.loops.ir import (
    Attention,
    AttentionGradients,
    Bind,
    Body,
    Check,
    Contraction,
    Extern,
    Fold,
    Graph,
    Native,
    Node,
    Origin,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
    StridedView,
    accumulator,
)
from smelt.loops.reductions import reduce
from smelt.ops import Handler, using
from smelt.records import dataclass
from smelt.runtime.control import CONTROL
from smelt.symbolic import evaluate, loop_var
from smelt.symbolic.expr import evaluate_on

Tensor = torch.Tensor


class Interpreter(Handler):
    """Computes a loop function for its whole domain at once.

    ``buffers`` are the tensors that loads read; ``values`` gives the value of each symbol: a number, or a
    tensor for a loop variable. An index out of range where the mask holds is a compiler bug.
    """

    def __init__(
        self, buffers: Mapping[str, Tensor], values: Mapping[Symbol, Any], origin: Origin | None = None
    ) -> None:
        self.buffers = buffers
        self.values: dict[Symbol, Any] = dict(values)
        self.origin = origin or Origin("?")
        self._masks: list[Tensor] = []

    # -- the protocol ---------------------------------------------------------------------------------------

    def elementwise(self, name: str, *args: Tensor) -> Tensor:
        if self._masks and name in _DIVIDES and not args[1].dtype.is_floating_point:
            # a division by zero counts only where the mask holds
            args = (args[0], torch.where(self._mask(), args[1], torch.ones_like(args[1])))
        return apply(name, args)

    def load(self, buffer: str, index: Sequence[Expr]) -> Tensor:
        tensor = self.buffers[buffer]
        if len(index) != tensor.ndim:
            self._fail(f"load of {buffer} with {len(index)} indices, it has {tensor.ndim} dimensions")
        positions = [self._in_range(buffer, d, expr, tensor.shape[d]) for d, expr in enumerate(index)]
        if tensor.numel() == 0:  # every element of the domain is masked out, or the domain is empty
            shape = torch.broadcast_shapes(*(p.shape for p in positions)) if positions else ()
            return torch.zeros(shape, dtype=tensor.dtype)
        return tensor[tuple(positions)] if positions else tensor

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> Tensor:
        wide = torch.float64 if dtype.is_floating_point else torch.int64
        return torch.tensor(value, dtype=wide).to(dtype)

    def index_expr(self, expr: Expr, dtype: torch.dtype) -> Tensor:
        return self._evaluate(expr).to(dtype)

    def to_dtype(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype)

    def bitcast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.contiguous().view(dtype)

    def masked(self, mask: Tensor, body: Callable[[], Tensor], other: float | int | bool) -> Tensor:
        self._masks.append(mask)
        try:
            value = body()
        finally:
            self._masks.pop()
        return torch.where(mask, value, self.constant(other, value.dtype))

    def indirect_index(self, x: Tensor, size: Expr, *, wrap: bool = True, check: bool | str = True) -> Expr:
        extent = self._evaluate(size)
        position = x.to(torch.int64)
        if wrap:
            position = torch.where(position < 0, position + extent, position)
        if check and self._holds_somewhere((position < 0) | (position >= extent)):
            raise index_error(check)
        symbol = Symbol(f"indirect{len(self.values)}", integer=True)
        self.values[symbol] = position
        return symbol

    # -- helpers --------------------------------------------------------------------------------------------

    def _evaluate(self, expr: Expr) -> Tensor:
        return torch.as_tensor(evaluate_on(expr, self.values))

    def _mask(self) -> Tensor:
        mask = self._masks[0]
        for inner in self._masks[1:]:
            mask = mask & inner
        return mask

    def _holds_somewhere(self, condition: Tensor) -> bool:
        return bool((condition & self._mask()).any() if self._masks else condition.any())

    def _in_range(self, buffer: str, dim: int, expr: Expr, size: int) -> Tensor:
        position = self._evaluate(expr)
        outside = (position < 0) | (position >= size)
        if self._holds_somewhere(outside):
            self._fail(f"{buffer}: index {expr} of dimension {dim} leaves [0, {size})")
        return position.clamp(0, max(size - 1, 0))

    def _fail(self, what: str) -> None:
        raise SmeltError(
            "SM0501", what, where=self.origin.where, why=f"the loop function of {self.origin.op} is wrong"
        )


_DIVIDES = ("fmod", "remainder", "floordiv", "truncdiv")


# -- bodies ---------------------------------------------------------------------------------------------


def evaluate_body(
    body: Body,
    buffers: Mapping[str, Tensor],
    sizes: Mapping[Symbol, int] | None = None,
    origin: Origin | None = None,
) -> list[Any]:
    """Computes a body, with one entry per output: contiguous tensors (an Extern's are as ATen gives them).

    Args:
        body: the body to run.
        buffers: the tensors it may load, by name; each has its buffer's shape.
        sizes: the number of each size symbol.
        origin: for messages.

    Raises:
        IndexError: a checked indirect index was out of range.
        SmeltError: SM0501, the loop function loads outside of a buffer.

    >>> import sympy
    >>> from smelt.ops import ops
    >>> two = sympy.Integer(2)
    >>> double = Pointwise((two,), torch.float32, lambda i: ops.add(ops.load("x", i), ops.load("x", i)))
    >>> evaluate_body(double, {"x": torch.tensor([1.0, 2.0])})
    [tensor([2., 4.])]
    """
    sizes = dict(sizes or {})
    if isinstance(body, Extern):
        return _call(body, buffers, sizes)
    if isinstance(body, Bind):
        return [evaluate(body.value, sizes)]
    if isinstance(body, Check):
        check(body, sizes)
        return []
    if isinstance(body, Pointwise):
        return [_pointwise(body, buffers, sizes, origin)]
    if isinstance(body, Reduction):
        return _reduction(body, buffers, sizes, origin)
    if isinstance(body, Contraction):
        return [_contraction(body, buffers, sizes, origin)]
    if isinstance(body, Attention):
        return _attention(body, buffers, sizes, origin)
    if isinstance(body, AttentionGradients):
        return _attention_gradients(body, buffers, sizes, origin)
    if isinstance(body, Scan):
        return _scan(body, buffers, sizes, origin)
    if isinstance(body, Fold):
        return _fold(body, buffers, sizes, origin)
    if isinstance(body, Sort):
        return _sort(body, buffers, sizes)
    if isinstance(body, Native):
        return _native(body, buffers, sizes)
    return [_scatter(body, buffers, sizes, origin)]


@contextmanager
def _domain(
    shape: Sequence[Expr], buffers: Mapping[str, Tensor], sizes: Mapping[Symbol, int], origin: Origin | None
) -> Iterator[tuple[Interpreter, list[Symbol], list[int]]]:
    extents = [evaluate(size, sizes) for size in shape]
    variables = [loop_var(f"i{d}") for d in range(len(shape))]
    values: dict[Symbol, Any] = dict(sizes)
    for d, (variable, extent) in enumerate(zip(variables, extents)):
        values[variable] = torch.arange(extent).view([-1 if e == d else 1 for e in range(len(shape))])
    handler = Interpreter(buffers, values, origin)
    if 0 in extents:  # nothing is computed, so nothing is out of range
        handler._masks.append(torch.tensor(False))
    with using(handler):
        yield handler, variables, extents


def _pointwise(
    body: Pointwise, buffers: Mapping[str, Tensor], sizes: Mapping[Symbol, int], origin: Origin | None
) -> Tensor:
    with _domain(body.shape, buffers, sizes, origin) as (handler, variables, extents):
        value = body.inner_fn(tuple(variables))
        _expect(handler, value, body.dtype)
        return value.expand(extents).clone(memory_format=torch.contiguous_format)


def _reduction(
    body: Reduction, buffers: Mapping[str, Tensor], sizes: Mapping[Symbol, int], origin: Origin | None
) -> list[Tensor]:
    rank = len(body.shape)
    with _domain([*body.shape, *body.reduce_shape], buffers, sizes, origin) as (handler, variables, extents):
        value = body.inner_fn(tuple(variables[:rank]), tuple(variables[rank:]))
        _expect(handler, value, body.dtype)
        return reduce(body.kind, value.expand(extents).reshape(*extents[:rank], _product(extents[rank:])))


def _contraction(
    body: Contraction, buffers: Mapping[str, Tensor], sizes: Mapping[Symbol, int], origin: Origin | None
) -> Tensor:
    """Sums in float64 (int64) by `torch.einsum`; an operand has dimensions of one element for loops that it
    does not depend on.
    """
    rank, within = len(body.shape), accumulator(body.dtype)
    wide = torch.float64 if within.is_floating_point else torch.int64
    with _domain([*body.shape, *body.reduce_shape], buffers, sizes, origin) as (handler, variables, extents):
        over = tuple(variables[:rank]), tuple(variables[rank:])
        operands: list[Any] = []
        for value in (body.lhs(*over), body.rhs(*over)):
            _expect(handler, value, within)
            value = value.to(wide).reshape([1] * (len(extents) - value.ndim) + list(value.shape))
            dims = [d for d, extent in enumerate(value.shape) if extent != 1 or d >= rank]
            full = value.expand([e if d >= rank else v for d, (e, v) in enumerate(zip(extents, value.shape))])
            operands += [full.reshape([full.shape[d] for d in dims]), dims]
        kept = sorted({d for dims in operands[1::2] for d in dims if d < rank})
        total = torch.einsum(*operands, kept)
        total = total.reshape([extent if d in kept else 1 for d, extent in enumerate(extents[:rank])])
        if body.start is not None:
            start = body.start(over[0])
            _expect(handler, start, within)
            total = (
                total
                + start.to(wide).reshape([1] * (len(extents) - start.ndim) + list(start.shape))[
                    (..., *[0] * len(over[1]))
                ]
            )
        return total.expand(extents[:rank]).to(body.dtype).contiguous()


def _attention(
    body: Attention, buffers: Mapping[str, Tensor], sizes: Mapping[Symbol, int], origin: Origin | None
) -> list[Tensor]:
    with _attention_domain(body, buffers, sizes, origin) as made:
        rank, extents = len(body.shape), made.extents
        (*outer, _, column, key, _) = made.variables
        probabilities = torch.softmax(made.scores, rank)
        blind = made.scores == -math.inf
        if extents[rank] < _lanes() and body.blind == 0.0:
            blind = ~(made.scores > -math.inf)
        blind = blind.all(rank, keepdim=True)
        probabilities = probabilities.masked_fill(blind, 0.0)
        total = torch.logsumexp(made.scores, rank, keepdim=True).masked_fill(blind, body.blind)
        values = made.wide(body.value((*outer, key, column)))
        out = (probabilities * made.kept * values).sum(rank, keepdim=True)
        out = out.expand(*extents[:rank], 1, 1)[..., 0, 0]
        total = total[..., 0, 0, 0].to(made.within)
        if body.sums is not None:
            _, sums, *_ = ([evaluate(size, sizes) for size in shape] for shape in body.shapes)
            beyond = sums[rank - 2] - extents[rank - 2]
            total = torch.nn.functional.pad(total, (0, beyond), value=math.inf).reshape(sums)
        others = [
            torch.zeros([evaluate(size, sizes) for size in shape], dtype=dtype)
            for shape, dtype in body.others
        ]
        return [out.to(body.dtype).contiguous(), total.contiguous(), *others]


def _lanes() -> int:
    """The number of keys in a vector of ATen's kernel. With fewer keys it finds the largest score by
    comparison, so that a row of NaN counts as a row without visible keys.
    """
    return 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8


def _attention_gradients(
    body: AttentionGradients,
    buffers: Mapping[str, Tensor],
    sizes: Mapping[Symbol, int],
    origin: Origin | None,
) -> list[Tensor]:
    with _attention_domain(body.attention, buffers, sizes, origin) as made:
        rank, extents, wide = len(body.shape), made.extents, made.wide
        (*outer, query, column, key, _) = made.variables
        over = (*outer, query, column)
        logsumexp, inner_sum = (wide(each((*outer, query))) for each in (body.logsumexp, body.inner))
        probabilities = torch.exp(made.scores - logsumexp)
        upstream = wide(body.upstream(over)).expand(*extents[:rank], 1, 1)
        weighted = upstream * wide(body.attention.value((*outer, key, column)))
        dp = made.kept * weighted.sum(rank - 1, keepdim=True)
        product, above = (each.to(made.within) for each in (made.products, probabilities * (dp - inner_sum)))
        ds = wide(body.derivative((*outer, query, key), product, above))
        found = [
            (ds * made.keys).sum(rank)[..., 0, :],
            (ds * made.queries).sum(rank - 2)[..., 0, :, :],
            (probabilities * made.kept * upstream).sum(rank - 2)[..., 0].mT,
        ]
        for position, shape in enumerate(body.shapes):
            inner = [evaluate(size, sizes) for size in shape]
            inner.insert(-2, extents[rank - 3] // inner[-3])  # heads that share their keys
            each = found[position].expand(*extents[: rank - 2], -1, -1)
            found[position] = each.reshape(inner).sum(-3).to(body.dtype).contiguous()
        return found


@dataclass(slots=True)
class _Scored:
    """Values inside an attention's loops, with dimensions (*i, q, c, k, r), in float64.

    ``queries`` and ``keys`` are the operands, ``products`` (*i, q, 1, k, 1) their sums, ``scores`` those of
    these, -inf for masked keys; ``kept`` is the factor of dropout. ``wide`` widens a value of the loop
    functions.
    """

    variables: list[Symbol]
    extents: list[int]
    within: torch.dtype
    wide: Callable[[Any], Tensor]
    queries: Tensor
    keys: Tensor
    products: Tensor
    scores: Tensor
    kept: Tensor


@contextmanager
def _attention_domain(
    body: Attention, buffers: Mapping[str, Tensor], sizes: Mapping[Symbol, int], origin: Origin | None
) -> Iterator[_Scored]:
    rank, within = len(body.shape), accumulator(body.dtype)
    with _domain([*body.shape, *body.reduce_shape], buffers, sizes, origin) as (handler, variables, extents):
        (*outer, query, _, key, depth) = variables

        def wide(value: Any) -> Tensor:
            _expect(handler, value, within)
            return value.to(torch.float64).reshape([1] * (len(extents) - value.ndim) + list(value.shape))

        queries, keys = (
            wide(value).expand([-1] * (rank + 1) + extents[-1:])
            for value in (body.query((*outer, query), (depth,)), body.key((*outer, key), (depth,)))
        )
        products = (queries * keys).sum(-1, keepdim=True).to(within)
        scores = wide(body.score((*outer, query, key), products))
        scores = scores.expand(*extents[: rank - 1], 1, extents[-2], 1)
        if body.seen is not None:
            seen = handler._evaluate(body.seen((*outer, query)))
            scores = scores.masked_fill(handler._evaluate(key) >= seen, -math.inf)
        one = torch.ones((), dtype=torch.float64)
        kept = one if body.kept is None else wide(body.kept((*outer, query, key)))
        yield _Scored(variables, extents, within, wide, queries, keys, products, scores, kept)


def _scan(
    body: Scan, buffers: Mapping[str, Tensor], sizes: Mapping[Symbol, int], origin: Origin | None
) -> list[Tensor]:
    with _domain(body.shape, buffers, sizes, origin) as (handler, variables, extents):
        along = variables[body.dim]
        state = [handler.constant(first, dtype) for dtype, first in body.state]
        line = [1 if d == body.dim else extent for d, extent in enumerate(extents)]
        outs = [torch.empty(extents, dtype=dtype) for dtype in body.dtypes]
        for step in range(extents[body.dim]):
            handler.values[along] = torch.full([1] * len(extents), step)
            after, values = body.inner_fn(tuple(variables), tuple(state))
            state = list(after)
            for part, (dtype, _) in zip(state, body.state, strict=True):
                _expect(handler, part, dtype)
            for out, value, dtype in zip(outs, values, body.dtypes, strict=True):
                _expect(handler, value, dtype)
                out.narrow(body.dim, step, 1).copy_(value.expand(line))
    return outs


def _fold(
    body: Fold, buffers: Mapping[str, Tensor], sizes: Mapping[Symbol, int], origin: Origin | None
) -> list[Tensor]:
    turn = loop_var("r0")
    with _domain(body.shape, buffers, sizes, origin) as (handler, index, extents):
        state = [handler.constant(first, dtype) for dtype, first in body.state]
        for step in range(evaluate(body.turns, sizes)):
            handler.values[turn] = torch.full([1] * len(extents), step)
            state = list(body.inner_fn(tuple(index), turn, tuple(state)))
            for part, (dtype, _) in zip(state, body.state, strict=True):
                _expect(handler, part, dtype)
        return [part.expand(extents).clone(memory_format=torch.contiguous_format) for part in state]


def _sort(body: Sort, buffers: Mapping[str, Tensor], sizes: Mapping[Symbol, int]) -> list[Tensor]:
    limit = evaluate(body.shape[-1], sizes)
    values, positions = torch.sort(buffers[body.source], dim=-1, stable=True, descending=body.descending)
    return [part[..., :limit].contiguous() for part in (values, positions)]


def _native(body: Native, buffers: Mapping[str, Tensor], sizes: Mapping[Symbol, int]) -> list[Tensor]:
    results = [
        torch.zeros([evaluate(size, sizes) for size in shape], dtype=dtype)
        for shape, dtype in zip(body.shapes, body.dtypes)
    ]
    given = [buffers[name].contiguous() for name in body.reads]
    names = [param.name for param in body.kernel.params]
    body.run({name: tensor.view(-1) for name, tensor in zip(names, [*given, *results])}, dict(sizes))
    return results


def _scatter(
    body: Scatter, buffers: Mapping[str, Tensor], sizes: Mapping[Symbol, int], origin: Origin | None
) -> Tensor:
    out = buffers[body.base].clone(memory_format=torch.contiguous_format)
    with _domain(body.shape, buffers, sizes, origin) as (handler, variables, extents):
        value = body.inner_fn(tuple(variables))
        _expect(handler, value, body.dtype)
        place = body.place(tuple(variables))
        positions = [
            handler._in_range("the scatter's result", d, e, out.shape[d]) for d, e in enumerate(place)
        ]
    if _product(extents) == 0:
        return out
    flat = torch.zeros((), dtype=torch.int64)
    for position, size in zip(positions, out.shape):
        flat = flat * size + position
    source, where = value.expand(extents).reshape(-1), flat.expand(extents).reshape(-1)
    target = out.view(-1)
    if body.mode is None:
        order = torch.full_like(target, -1, dtype=torch.int64)
        order.scatter_reduce_(0, where, torch.arange(len(where)), "amax")  # the last of duplicates wins
        written = order >= 0
        target[written] = source[order[written]]
        return out
    if body.mode not in _SCATTERED:
        raise SmeltError(
            "SM0502", f"a scatter has no mode {body.mode!r}", where=origin.where if origin else None
        )
    wide = torch.float64 if body.dtype.is_floating_point else torch.int64
    combined = target.to(wide).scatter_reduce_(0, where, source.to(wide), _SCATTERED[body.mode])
    target.copy_(combined.to(body.dtype))
    return out


_SCATTERED = {"add": "sum", "mul": "prod", "maximum": "amax", "minimum": "amin"}
"""`torch.scatter_reduce`'s names of the operators of `ACCUMULATIONS`."""


def _product(sizes: Sequence[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def _expect(handler: Interpreter, value: Tensor, dtype: torch.dtype) -> None:
    if value.dtype != dtype:
        handler._fail(f"the loop function gives {value.dtype}, the node says {dtype}")


def _call(body: Extern, buffers: Mapping[str, Tensor], sizes: Mapping[Symbol, int]) -> list[Any]:
    if body.overwrites:
        buffers = {**buffers, **{name: buffers[name].clone() for name in body.overwrites}}
    args = [argument(arg, buffers, sizes) for arg in body.args]
    kwargs = {name: argument(value, buffers, sizes) for name, value in body.kwargs.items()}
    if body.target in CONTROL:
        result = CONTROL[body.target].run([partial(_run_body, each) for each in body.bodies], *args, **kwargs)
        return list(result or ())
    result = resolve(body.target)(*args, **kwargs)
    results = list(result) if isinstance(result, (list, tuple)) else [] if result is None else [result]
    return [*results, *(buffers[name] for name in body.overwrites)]


def _run_body(graph: Graph, operands: Sequence[Any]) -> list[Any]:
    """Runs a branch or loop body on operands that may have other layouts than its buffers."""
    sizes = bind_sizes(graph, operands)
    inputs = list(operands)
    for position, name in enumerate(graph.inputs):
        if isinstance(name, str):
            strides = [evaluate(stride, sizes) for stride in graph.buffers[name].outside[2]]
            made = torch.empty_strided(inputs[position].shape, strides, dtype=inputs[position].dtype)
            inputs[position] = made.copy_(inputs[position])
    return run_graph(graph, inputs)


# -- graphs ---------------------------------------------------------------------------------------------


def run_graph(graph: Graph, inputs: Sequence[Tensor | int | None]) -> list[Any]:
    """Runs a whole graph on the given inputs, one for each of ``graph.inputs``; mutations change them.

    Returns:
        One entry per output: tensors (views of their buffers) and numbers.

    Raises:
        SmeltError: SM0502, the inputs do not fit the graph.
    """
    values = bind_sizes(graph, inputs)
    buffers: dict[str, Tensor] = {name: memory(value) for name, value in graph.constants.items()}
    for name, value in zip(graph.inputs, inputs):
        if isinstance(name, str) and isinstance(value, Tensor):
            buffers[name] = memory(value)
    for node in graph.nodes:
        _run(graph, node, buffers, values)
    outputs = [
        view_of(out, buffers, values) if isinstance(out, StridedView) else out for out in graph.outputs
    ]
    fresh = [buffers[mutation.source].clone() for mutation in graph.mutations]
    for mutation, source in zip(graph.mutations, fresh):
        buffers[mutation.target].copy_(source)
    return [number(out, values) for out in outputs]


def _run(graph: Graph, node: Node, buffers: dict[str, Tensor], values: dict[Symbol, Any]) -> None:
    results = evaluate_body(node.body, buffers, values, node.origin)
    if isinstance(node.body, (Extern, Bind)) and node.body.symbol is not None:
        values[node.body.symbol] = results[0]
        return
    if isinstance(node.body, Extern):
        for each in node.body.sizes:
            result = results[each.output]
            values[each.symbol] = result if each.dim is None else result.shape[each.dim]
    for name, result in zip(node.outputs, results):
        if name is None:
            continue
        buffer, result = graph.buffers[name], memory(result)
        shape = [evaluate(size, values) for size in buffer.shape]
        strides = [evaluate(stride, values) for stride in buffer.strides]
        if result is None and 0 in shape:  # ATen omits unreadable results
            result = torch.empty(shape, dtype=buffer.dtype)
        if list(result.shape) != shape or result.dtype != buffer.dtype:
            what = f"{name} is {buffer.dtype} {shape}, computed was {result.dtype} {list(result.shape)}"
            raise SmeltError(
                "SM0501", what, where=node.origin.where, why=f"the node of {node.origin.op} is wrong"
            )
        buffers[name] = torch.empty_strided(shape, strides, dtype=buffer.dtype).copy_(result)
