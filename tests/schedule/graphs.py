"""Loop graphs that exercise the scheduler, built by hand from loop functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from sympy import Expr, Integer

from smelt.loops.ir import Buffer, Graph, Mutation
from smelt.lowering.builder import Builder
from smelt.lowering.tensor import Tensor
from smelt.ops import ops
from smelt.symbolic import contiguous_strides

F32 = torch.float32


def given(graph: Graph, name: str, *shape: Expr, dtype: torch.dtype = F32) -> Tensor:
    graph.buffers[name] = Buffer(name, dtype, shape, contiguous_strides(shape))
    graph.inputs.append(name)
    return Tensor(name, dtype, shape)


def start() -> tuple[Graph, Builder]:
    graph = Graph()
    return graph, Builder(graph)


def softmax_norm(rows: Expr, columns: Expr) -> Graph:
    """Softmax, then layer norm with weights, column sums, a transpose and a total."""
    graph, b = start()
    x, w = given(graph, "x", rows, columns), given(graph, "w", columns)

    def over_rows(kind: str, source: Tensor) -> tuple[Tensor, ...]:
        return b.reduction(
            kind, lambda i, r: source.load((i[0], r[0])), shape=(rows,), reduce_shape=(columns,), dtype=F32
        )

    def full(fn: Callable[..., object], shape: tuple[Expr, ...] = (rows, columns)) -> Tensor:
        return b.pointwise(fn, shape=shape, dtype=F32)

    (largest,) = over_rows("max", x)
    e = full(lambda i: ops.exp(ops.sub(x.load(i), largest.load((i[0],)))))
    (total,) = over_rows("sum", e)
    soft = full(lambda i: ops.truediv(e.load(i), total.load((i[0],))))
    mean, m2, _ = over_rows("welford", soft)
    rstd = full(lambda i: ops.rsqrt(ops.add(m2.load(i), ops.constant(1e-5, F32))), (rows,))
    normal = full(
        lambda i: ops.mul(
            ops.mul(ops.sub(soft.load(i), mean.load((i[0],))), rstd.load((i[0],))), w.load((i[1],))
        )
    )
    (columns_sum,) = b.reduction(
        "sum", lambda i, r: normal.load((r[0], i[0])), shape=(columns,), reduce_shape=(rows,), dtype=F32
    )
    turned = full(lambda i: ops.neg(normal.load((i[1], i[0]))), (columns, rows))
    (everything,) = b.reduction(
        "sum", lambda i, r: normal.load((r[0], r[1])), shape=(), reduce_shape=(rows, columns), dtype=F32
    )
    graph.outputs = [b.strided(t) for t in (soft, normal, columns_sum, turned, everything)]
    return graph


def reshaped_chain(rows: Expr, heads: int, width: int) -> Graph:
    """Pointwise work in [rows, heads*width], in [rows, heads, width] and in [heads, rows, width], and
    row sums.
    """
    graph, b = start()
    n, h, d = rows, Integer(heads), Integer(width)
    x, bias = given(graph, "x", n, h * d), given(graph, "bias", h * d)
    y = b.pointwise(lambda i: ops.exp(ops.add(x.load(i), bias.load((i[1],)))), shape=(n, h * d), dtype=F32)
    split = b.pointwise(
        lambda i: ops.mul(y.load((i[0], i[1] * d + i[2])), y.load((i[0], i[1] * d + i[2]))),
        shape=(n, h, d),
        dtype=F32,
    )
    turned = b.pointwise(lambda i: ops.neg(split.load((i[1], i[0], i[2]))), shape=(h, n, d), dtype=F32)
    (sums,) = b.reduction(
        "sum", lambda i, r: split.load((*i, *r)), shape=(n, h), reduce_shape=(d,), dtype=F32
    )
    scaled = b.pointwise(
        lambda i: ops.truediv(split.load(i), sums.load((i[0], i[1]))), shape=(n, h, d), dtype=F32
    )
    graph.outputs = [b.strided(t) for t in (y, turned, scaled)]
    return graph


def inplace_update(size: Expr) -> Graph:
    """SGD with momentum: two inputs get new contents, one result reads an old one."""
    graph, b = start()
    p, g, m = given(graph, "p", size), given(graph, "g", size), given(graph, "m", size)
    momentum = b.pointwise(
        lambda i: ops.add(ops.mul(m.load(i), ops.constant(0.9, F32)), g.load(i)), shape=(size,), dtype=F32
    )
    updated = b.pointwise(
        lambda i: ops.sub(p.load(i), ops.mul(momentum.load(i), ops.constant(0.1, F32))),
        shape=(size,),
        dtype=F32,
    )
    shifted = b.pointwise(
        lambda i: ops.add(p.load((size - 1 - i[0],)), ops.constant(1.0, F32)), shape=(size,), dtype=F32
    )
    graph.mutations = [Mutation("m", momentum.buffer), Mutation("p", updated.buffer)]
    graph.outputs = [b.strided(shifted)]
    return graph


def embedding_backward(rows: Expr, vocabulary: int, width: int) -> Graph:
    """A scatter with duplicates into zeros, and work after it."""
    graph, b = start()
    ids, grad = given(graph, "ids", rows, dtype=torch.int64), given(graph, "grad", rows, Integer(width))
    shape = (Integer(vocabulary), Integer(width))
    zeros = b.pointwise(lambda i: ops.constant(0.0, F32), shape=shape, dtype=F32)
    table = b.scatter(
        zeros,
        grad.load,
        lambda i: (ops.indirect_index(ids.load((i[0],)), shape[0]), i[1]),
        shape=(rows, Integer(width)),
        mode="add",
    )
    halved = b.pointwise(lambda i: ops.mul(table.load(i), ops.constant(0.5, F32)), shape=shape, dtype=F32)
    graph.outputs = [b.strided(halved)]
    return graph


def long_sum(size: Expr, kind: str = "sum") -> Graph:
    """A reduction to one number that is split, and a pointwise result of its producer."""
    graph, b = start()
    x = given(graph, "x", size)
    y = b.pointwise(lambda i: ops.mul(x.load(i), x.load(i)), shape=(size,), dtype=F32)
    (total,) = b.reduction(kind, lambda i, r: y.load((r[0],)), shape=(), reduce_shape=(size,), dtype=F32)
    graph.outputs = [b.strided(y), b.strided(total)]
    return graph
