"""Rewrites of attention for GPUs: gradients as two kernels, few queries and many keys as parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch
from sympy import Expr
from torch.utils._sympy.functions import Max

from smelt.loops.ir import Attention, AttentionGradients, Extern, Node, Pointwise, Reduction, accumulator
from smelt.lowering.dims import convert
from smelt.ops import ops
from smelt.records import replace
from smelt.schedule.attention.lanes import has_blocks, tile
from smelt.schedule.products.tiles import ceiling
from smelt.symbolic import least

if TYPE_CHECKING:
    from smelt.schedule.graph.rewrites import Rewriter

FEWEST_KEYS = 256
"""The fewest keys of a part."""
PROGRAMS = 2
"""Programs for each multiprocessor that parts are made for."""


def gradients_apart(node: Node, rewriter: Rewriter) -> list[Node] | None:
    """Gradients by query, and by key and value → a node for each: their programs have different rows.

    (by_query, by_key, by_value) = gradients  →  (by_query, _, _) = gradients;
                                                  (_, by_key, by_value) = gradients
    """
    if not rewriter.target.blocks or not isinstance(node.body, AttentionGradients):
        return None
    by_query, by_key, by_value = node.outputs
    if by_query is None or (by_key is None and by_value is None):
        return None
    outputs = (by_query, None, None), (None, by_key, by_value)
    return [Node(each, node.body, node.origin) for each in outputs]


def own_results(node: Node, rewriter: Rewriter) -> list[Node] | None:
    """Attention in the place of a kernel of ATen's with other results → attention, and these results.

    (out, sums[i, q], others) = attention  →  (out, total) = attention; others = memory, if it is read;
                                              sums[i, q] = total[i, q] if there is such a query, else inf
    """
    body = node.body
    if not isinstance(body, Attention) or (body.sums is None and not body.others):
        return None
    out, sums, *others = node.outputs
    total, shape = sums, body.shape[:-1]
    after: list[Node] = []
    if sums is not None and body.sums is not None:
        total = rewriter.new_buffer(accumulator(body.dtype), shape)
        copied = _infinite_beyond(total, shape, accumulator(body.dtype))
        after.append(Node((sums,), Pointwise(body.sums, accumulator(body.dtype), copied), node.origin))
    for name, (size, dtype) in zip(others, body.others, strict=True):
        if name is not None and rewriter.is_read(name):
            memory = Extern("aten.new_empty.default", (body.call.args[0], list(size)), {"dtype": dtype})
            after.append(Node((name,), memory, node.origin))
    return [Node((out, total), replace(body, sums=None, others=()), node.origin), *after]


def _infinite_beyond(total: str, shape: Sequence[Expr], within: torch.dtype) -> Any:
    def copied(index: Sequence[Expr]) -> Any:
        at = tuple(index[: len(shape)])
        query, queries = (ops.index_expr(each, torch.int64) for each in (at[-1], shape[-1]))
        return ops.masked(ops.lt(query, queries), lambda: ops.load(total, at), math.inf)

    return copied


def split_keys(node: Node, rewriter: Rewriter) -> list[Node] | None:
    """Attention of few queries to many keys → attention to parts of the keys, whose results are combined.

    (out, total) = attention of all keys  →  (part[j], sum[j]) = attention of the keys j*L to (j + 1)*L;
        top = max_j sum[j];  weight[j] = exp(sum[j] - top);  all = sum_j weight[j];
        out = (sum_j weight[j] * part[j]) / all;  total = top + log(all)

    The parts are programs of their own; one kernel combines them, in which each column finds ``top`` again.
    Sizes that are symbols count as their hints: the number of parts is decided once, and their length grows
    with the keys.
    """
    body = node.body
    if not rewriter.target.blocks or not isinstance(body, Attention) or not has_blocks(body):
        return None
    keys = body.reduce_shape[0]
    count = parts_of(body, rewriter)
    if count < 2:
        return None
    within, (_, block) = accumulator(body.dtype), _tile(body)
    length = ceiling(ceiling(keys, count), block) * block
    shape = (sympy.Integer(count), *body.shape)
    parts, sums = rewriter.new_buffer(within, shape), rewriter.new_buffer(within, shape[:-1])
    top, total, found = (rewriter.new_buffer(within, body.shape) for _ in range(3))
    over = (sympy.Integer(count),)

    def weight(index: Sequence[Expr], part: Sequence[Expr]) -> Any:
        largest, zero = ops.load(top, index), ops.constant(0.0, within)
        below = ops.exp(ops.sub(ops.load(sums, (*part, *index[:-1])), largest))
        return ops.where(_is_blind(largest, within), zero, below)

    def weighted(index: Sequence[Expr], part: Sequence[Expr]) -> Any:
        return ops.mul(weight(index, part), ops.load(parts, (*part, *index)))

    def result(index: Sequence[Expr]) -> Any:
        whole = ops.load(total, index)
        one = ops.constant(1.0, within)
        safe = ops.where(ops.eq(whole, ops.constant(0.0, within)), one, whole)
        return convert(ops.truediv(ops.load(found, index), safe), within, body.dtype)

    def logarithm(index: Sequence[Expr]) -> Any:
        largest, whole = (ops.load(each, (*index, sympy.Integer(0))) for each in (top, total))
        blind = ops.constant(body.blind, within)
        return ops.where(_is_blind(largest, within), blind, ops.add(largest, ops.log(whole)))

    def largest(index: Sequence[Expr], part: Sequence[Expr]) -> Any:
        return ops.load(sums, (*part, *index[:-1]))

    nodes: list[tuple[tuple[str | None, ...], Any]] = [
        ((parts, sums), _part(body, shape, length, within)),
        ((top,), Reduction("max", body.shape, over, within, largest)),
        ((total,), Reduction("sum", body.shape, over, within, weight)),
    ]
    if node.outputs[0] is not None:
        nodes.append(((found,), Reduction("sum", body.shape, over, within, weighted)))
        nodes.append(((node.outputs[0],), Pointwise(body.shape, body.dtype, result)))
    if node.outputs[1] is not None:
        nodes.append(((node.outputs[1],), Pointwise(body.shape[:-1], within, logarithm)))
    return [Node(outputs, each, node.origin) for outputs, each in nodes]


def parts_of(body: Attention, rewriter: Rewriter) -> int:
    """The number of parts of the keys: as many as give the target `PROGRAMS` programs for each of its
    multiprocessors, of `FEWEST_KEYS` keys at least; 1 where there are programs enough without.
    """
    *batch, queries, _ = body.shape
    programs = rewriter.hint(batch) * -(-rewriter.hint([queries]) // _tile(body)[0])
    if programs == 0 or programs >= rewriter.target.multiprocessors:
        return 1
    wanted = -(-PROGRAMS * rewriter.target.multiprocessors // programs)
    return min(wanted, rewriter.hint([body.reduce_shape[0]]) // FEWEST_KEYS)


def _tile(body: Attention) -> tuple[int, int]:
    return tile(body.dtype.itemsize == 2, int(max(body.shape[-1], body.reduce_shape[1])))


def _part(body: Attention, shape: tuple[Expr, ...], length: Expr, within: torch.dtype) -> Attention:
    """The attention to parts of the keys: the first dimension is the part."""
    keys, columns = body.reduce_shape
    whole = length.is_Integer and keys == length * shape[0]

    def key_of(part: Expr, place: Expr) -> Expr:
        """The key at a place of a part; places beyond the last key, which nothing sees, have that one."""
        key = part * length + place
        return key if whole else least(key, keys - 1)

    def seen(index: Sequence[Expr]) -> Expr:
        end = keys if body.seen is None else least(keys, body.seen(index[1:]))
        return Max(sympy.Integer(0), end - index[0] * length)

    def of_key(index: Sequence[Expr]) -> tuple[Expr, ...]:
        part, *outer, key = index
        return (*outer, key_of(part, key))

    return replace(
        body,
        shape=shape,
        reduce_shape=(length, columns),
        dtype=within,
        query=lambda index, depth: body.query(index[1:], depth),
        key=lambda index, depth: body.key(of_key(index), depth),
        score=lambda index, product: body.score(of_key(index), product),
        value=lambda index: body.value((*of_key(index[:-1]), index[-1])),
        seen=None if whole and body.seen is None else seen,
        visible=None,
        blind=-math.inf,
    )


def _is_blind(largest: Any, within: torch.dtype) -> Any:
    return ops.eq(largest, ops.constant(-math.inf, within))
