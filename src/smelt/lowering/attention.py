"""Attention: what ATen's kernel for it computes, as loop functions of its operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.loops.ir import Attention, Extern, accumulator
from smelt.lowering.builder import Builder
from smelt.lowering.dims import convert
from smelt.lowering.numbers import symbolic_number
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.symbolic import FloorDiv, same

ZERO = sympy.Integer(0)


def keep_attention(
    ctx: Builder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: Any = None,
) -> None:
    """Let the last node, a call of ``aten._scaled_dot_product_flash_attention_for_cpu``, be what it computes.

    query (N, H, L, E); key, value (N, H, S, E), or with fewer heads, each for a group of queries' heads;
    attn_mask is added to the scores where it is no boolean, and broadcasts to (N, H, L, S).

    Raises:
        Unsupported: dropout, or a scale for which there is no rule: the call stays as it is.
    """
    node = ctx.graph.nodes[-1]
    assert isinstance(node.body, Extern)
    if dropout_p != 0.0:
        raise Unsupported("attention with dropout")
    dtype, within = query.dtype, accumulator(query.dtype)
    factor = _factor(query, scale, within)
    group = FloorDiv(query.shape[1], key.shape[1])

    def load(x: Tensor, index: Index) -> Any:
        return convert(x.load(index), dtype, within)

    def of_group(x: Tensor, index: Index) -> Any:
        n, head, *rest = index
        return load(x, (n, head if same(query.shape[1], x.shape[1]) else FloorDiv(head, group), *rest))

    def score(index: Index, product: Any) -> Any:
        scaled = ops.mul(product, factor())
        if attn_mask is None:
            return scaled
        mask = attn_mask.load(_broadcast(attn_mask, index))
        if attn_mask.dtype is torch.bool:
            return ops.where(mask, scaled, ops.constant(-math.inf, within))
        return ops.add(scaled, convert(mask, attn_mask.dtype, within))

    body = Attention(
        (*query.shape[:-1], value.shape[-1]),
        (key.shape[-2], query.shape[-1]),
        dtype,
        lambda index, depth: load(query, (*index, *depth)),
        lambda index, depth: of_group(key, (*index, *depth)),
        score,
        lambda index: of_group(value, index),
        (lambda index: index[-1] + 1) if is_causal else None,
        node.body,
    )
    ctx.graph.nodes[-1] = replace(node, body=body)


def _factor(query: Tensor, scale: Any, dtype: torch.dtype) -> Callable[[], Any]:
    """What scores are multiplied with: ``scale``, or one over the root of the depth."""
    if isinstance(scale, Expr):
        number = symbolic_number(scale, dtype)
        return lambda: number(())
    depth = query.shape[-1]
    if scale is None and not depth.is_Integer:
        f64 = torch.float64

        def one_over_root() -> Any:
            root = ops.sqrt(ops.index_expr(depth, f64))
            return ops.to_dtype(ops.truediv(ops.constant(1.0, f64), root), dtype)

        return one_over_root
    factor = 1.0 / math.sqrt(int(depth)) if scale is None else float(scale)
    return lambda: ops.constant(factor, dtype)


def _broadcast(mask: Tensor, index: Index) -> tuple[Expr, ...]:
    """Where in the mask, whose dimensions are the last ones of the scores, element ``index`` is."""
    tail = index[len(index) - len(mask.shape) :]
    return tuple(ZERO if size == 1 else at for at, size in zip(tail, mask.shape, strict=True))
