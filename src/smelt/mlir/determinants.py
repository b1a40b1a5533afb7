"""Determinants from loop functions: float64 elimination with row pivoting, of all matrices at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import Expr, Integer

from smelt.errors import Unsupported
from smelt.loops.ir import Buffer, Graph, Node, Origin, Pointwise, Reduction, StridedView
from smelt.mlir.arrays.dialect import Array, ArrayDialect
from smelt.ops import ops
from smelt.symbolic import contiguous_strides, numel

DETERMINANTS = ("aten._linalg_det.default", "aten._linalg_slogdet.default")
WIDE = torch.float64


def determinants(
    dialect: ArrayDialect, x: Array, run: Callable[[Graph, Sequence[Array]], list[Array]]
) -> list[Array]:
    """The determinants of ``x`` (…, n, n), their signs, and the logarithms of their sizes: (…) each.

    ``run``: evaluates a loop graph on operands.

    Raises:
        Unsupported: the dtype is not floating point, or the dialect has no loops.
    """
    if not x.dtype.is_floating_point:
        raise Unsupported(f"determinants of {x.dtype} matrices")
    outer, size = x.shape[:-2], x.shape[-1]
    count = numel(outer)
    found = [dialect.full(number, WIDE, (count,)) for number in (1.0, 1.0, 0.0)]
    if not any(each == 0 for each in x.shape):
        matrices = dialect.reshape(dialect.convert(x, WIDE), (count, size, size))
        graph = elimination(count, size)
        found = dialect.repeat(size, [matrices, *found], lambda k, state: run(graph, [k, *state]))[1:]
    return [dialect.convert(dialect.reshape(part, outer), x.dtype) for part in found]


def elimination(count: Expr, size: Expr) -> Graph:
    """One step of the elimination of ``count`` matrices, as a loop graph.

    ::

        pivot[b]  = the row from k on with the largest number in column k
        moved     = the matrices with rows k and pivot exchanged
        rest      = moved[b, i, j] - moved[b, i, k] / moved[b, k, k] * moved[b, k, j]   for rows i below k
        whole, sign, logarithm: multiplied by moved[b, k, k], negated where rows were exchanged

    Inputs: k (int64), matrices, whole, sign, logarithm. Outputs: the same after the step, without k.
    """
    graph = Graph(inputs=["k", "matrices", "whole", "sign", "logarithm"])
    matrix, line = (count, size, size), (count,)

    def buffer(name: str, shape: tuple[Expr, ...], dtype: torch.dtype = WIDE) -> None:
        graph.buffers[name] = Buffer(name, dtype, shape, tuple(contiguous_strides(shape)))

    def node(name: str, body: Pointwise | Reduction, dtype: torch.dtype = WIDE) -> None:
        buffer(name, body.shape, dtype)
        graph.nodes.append(Node((name,), body, Origin("aten._linalg_det.default")))

    buffer("k", (), torch.int64)
    buffer("matrices", matrix)
    for name in ("whole", "sign", "logarithm"):
        buffer(name, line)

    def step() -> Any:
        return ops.load("k", ())

    def at(position: Any) -> Expr:
        """An index read from data, which is in range."""
        found: Expr = ops.indirect_index(position, size, wrap=False, check=False)
        return found

    def row(i: Expr) -> Any:
        return ops.index_expr(i, torch.int64)

    def number(value: float) -> Any:
        return ops.constant(value, WIDE)

    def magnitude(index: Any, over: Any) -> Any:
        found = ops.abs(ops.load("matrices", (index[0], over[0], at(step()))))
        return ops.where(ops.ge(row(over[0]), step()), found, number(-1.0))

    def moved(index: Any) -> Any:
        b, i, j = index
        best = ops.load("pivot", (b,))
        source = ops.where(ops.eq(row(i), best), step(), row(i))
        source = ops.where(ops.eq(row(i), step()), best, source)
        return ops.load("matrices", (b, at(source), j))

    def diagonal(b: Expr) -> Any:
        return ops.load("moved", (b, at(step()), at(step())))

    def rest(index: Any) -> Any:
        b, i, j = index
        divisor = diagonal(b)
        divisor = ops.where(ops.eq(divisor, number(0.0)), number(1.0), divisor)
        factor = ops.truediv(ops.load("moved", (b, i, at(step()))), divisor)
        taken = ops.mul(factor, ops.load("moved", (b, at(step()), j)))
        here = ops.load("moved", (b, i, j))
        return ops.where(ops.gt(row(i), step()), ops.sub(here, taken), here)

    def signed(b: Expr) -> Any:
        stays = ops.eq(ops.load("pivot", (b,)), step())
        return ops.where(stays, diagonal(b), ops.neg(diagonal(b)))

    def new_whole(index: Any) -> Any:
        return ops.mul(ops.load("whole", index), signed(index[0]))

    def new_sign(index: Any) -> Any:
        return ops.mul(ops.load("sign", index), ops.sign(signed(index[0])))

    def new_logarithm(index: Any) -> Any:
        return ops.add(ops.load("logarithm", index), ops.log(ops.abs(diagonal(index[0]))))

    node("pivot", Reduction("argmax", line, (size,), WIDE, magnitude), torch.int64)
    node("moved", Pointwise(matrix, WIDE, moved))
    node("rest", Pointwise(matrix, WIDE, rest))
    for name, function in (("whole", new_whole), ("sign", new_sign), ("logarithm", new_logarithm)):
        node(f"new_{name}", Pointwise(line, WIDE, function))
    for name in ("rest", "new_whole", "new_sign", "new_logarithm"):
        made = graph.buffers[name]
        graph.outputs.append(StridedView(name, made.shape, made.strides, Integer(0)))
    return graph
