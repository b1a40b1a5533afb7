"""Attention: ATen's attention kernels and their gradients, as loop functions of their operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.loops.ir import Attention, AttentionGradients, Extern, accumulator
from smelt.lowering.builder import Builder
from smelt.lowering.dims import convert
from smelt.lowering.dtypes import supported
from smelt.lowering.numbers import symbolic_number
from smelt.lowering.random.draw import Draw, scattered_chance
from smelt.lowering.tensor import Index, Tensor
from smelt.ops import ops
from smelt.records import replace
from smelt.symbolic import FloorDiv, same

aten = torch.ops.aten
ZERO = sympy.Integer(0)


def keep_attention(
    ctx: Builder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: Any = None,
    seed: Tensor | None = None,
) -> None:
    """Replace the last node by an attention node.

    The node is a call of ``aten._scaled_dot_product_flash_attention_for_cpu``, of one of CUDA's kernels, or
    of ``smelt.attention_with_dropout``, which has a seed. query (N, H, L, E); key, value (N, H, S, E), or
    with fewer heads, each for a group of queries' heads; attn_mask is added to the scores unless it is
    boolean, and broadcasts to (N, H, L, S).

    Raises:
        Unsupported: dropout without a seed, or a scale for which there is no rule: the call stays as it is.
    """
    kept = _kept(query, seed, dropout_p)
    body = _attention(query, key, value, is_causal, attn_mask, _factor(query, scale), _call(ctx), kept)
    node, buffers = ctx.graph.nodes[-1], ctx.graph.buffers
    _, sums, *others = (None if name is None else buffers[name] for name in node.outputs)
    shape = None if sums is None or sums.shape == body.shape[:-1] else sums.shape
    made = tuple(((), torch.int64) if each is None else (each.shape, each.dtype) for each in others)
    ctx.graph.nodes[-1] = replace(node, body=replace(body, sums=shape, others=made))


def keep_gradients(
    ctx: Builder,
    upstream: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    result: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Tensor | None = None,
    scale: Any = None,
    seed: Tensor | None = None,
) -> None:
    """The same for a call of ``aten._scaled_dot_product_flash_attention_for_cpu_backward``, or of
    ``smelt.attention_with_dropout_backward``.

    upstream (the gradient) and result (N, H, L, E), logsumexp (N, H, L), or as CUDA's kernels have it.

    Raises:
        Unsupported: as `keep_attention`.
    """
    factor, kept = _factor(query, scale), _kept(query, seed, dropout_p)
    attention = _attention(query, key, value, is_causal, attn_mask, factor, _call(ctx), kept)
    inner = inner_of(ctx, upstream, result)
    behind = (ZERO,) * (len(logsumexp.shape) - 3)
    sums = values_of(logsumexp.view(query.shape[:3], lambda index: (*index, *behind)))
    keep_gradients_of(ctx, attention, upstream, inner, sums, _times(factor), key.shape[1])


# -- CUDA's kernels -----------------------------------------------------------------------------------------


def _of_cuda(target: torch._ops.OpOverload) -> Callable[..., None]:
    """What keeps a call of one of CUDA's kernels, or of its gradients, by the names of its arguments."""
    known = target._schema.arguments
    aligned_at_end = "efficient" not in target.name()  # a causal mask, with other numbers of queries and keys

    def keep(ctx: Builder, *args: Any, **kwargs: Any) -> None:
        given: dict[str, Any] = {each.name: each.default_value for each in known if each.has_default_value()}
        given |= dict(zip((each.name for each in known), args)) | kwargs
        query, key, value = (given[name] for name in ("query", "key", "value"))
        bias, causal = given.get("attn_bias"), given["is_causal"]
        # Of cuDNN nobody says what it stores for a row without visible keys.
        _refuse(bias is not None and "cudnn" in target.name())
        _refuse(aligned_at_end and not _from_the_top(query, key, causal))
        _refuse(given.get("return_debug_mask", False))
        _refuse(given.get("grad_input_mask", (False,) * 4)[3])  # the bias has a gradient
        options = given["dropout_p"], causal, bias, given["scale"]
        if "logsumexp" in given:
            upstream = given["grad_out_" if "grad_out_" in given else "grad_out"]
            keep_gradients(ctx, upstream, query, key, value, given["out"], given["logsumexp"], *options)
        else:
            keep_attention(ctx, query, key, value, *options)

    return keep


def _from_the_top(query: Tensor, key: Tensor, is_causal: bool) -> bool:
    """Whether query ``q`` sees the first ``q + 1`` keys if it is causal: with other lengths Flash Attention
    counts from the last query and key.
    """
    return not is_causal or same(query.shape[-2], key.shape[-2])


def _refuse(refused: bool) -> None:
    if refused:
        raise Unsupported("a form of attention that its kernel of ATen's alone has")


def _times(factor: Callable[[], Any]) -> Callable[[Index, Any, Any], Any]:
    return lambda index, product, above: ops.mul(above, factor())


def keep_gradients_of(
    ctx: Builder,
    attention: Attention,
    upstream: Tensor,
    inner: Callable[[Index], Any],
    logsumexp: Callable[[Index], Any],
    derivative: Callable[[Index, Any, Any], Any],
    heads: Expr,
) -> None:
    """Replace the last but one node, whose last node computes ``inner``, by the gradients of an attention."""
    nodes = ctx.graph.nodes
    call = nodes.pop(-2)
    functions = values_of(upstream), inner, logsumexp, derivative
    body = AttentionGradients(attention, *functions, heads, attention.call, len(call.outputs))
    nodes.append(replace(call, outputs=call.outputs[:3], body=body))


def inner_of(ctx: Builder, upstream: Tensor, result: Tensor) -> Callable[[Index], Any]:
    """A sum for each query over upstream * result, in a new node."""
    left, right = values_of(upstream), values_of(result)
    (sums,) = ctx.reduction(
        "sum",
        lambda index, column: ops.mul(left((*index, *column)), right((*index, *column))),
        shape=upstream.shape[:-1],
        reduce_shape=upstream.shape[-1:],
        dtype=accumulator(upstream.dtype),
    )
    return sums.load


def _kept(query: Tensor, seed: Tensor | None, dropout_p: float) -> Callable[[Index], Any] | None:
    """The factor of each probability after dropout (`smelt.contract.dropout`); None without dropout."""
    if dropout_p == 0.0:
        return None
    if seed is None:
        raise Unsupported("attention with dropout")  # ATen's kernel refuses this too
    within = accumulator(query.dtype)
    rows = Draw(seed, query.shape[:-1])

    def kept(index: Index) -> Any:
        *row, column = index
        whole, none = (ops.constant(each, within) for each in (1.0 / (1.0 - dropout_p), 0.0))
        return ops.where(scattered_chance(rows.bits(row), column, 1.0 - dropout_p), whole, none)

    return kept


def _call(ctx: Builder) -> Extern:
    body = ctx.graph.nodes[-1].body
    assert isinstance(body, Extern)
    return body


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    attn_mask: Tensor | None,
    factor: Callable[[], Any],
    call: Extern,
    kept: Callable[[Index], Any] | None = None,
) -> Attention:
    dtype, within = query.dtype, accumulator(query.dtype)
    if not supported(dtype):
        raise Unsupported(f"attention in {dtype}")
    group = FloorDiv(query.shape[1], key.shape[1])
    queries, keys, values = values_of(query), values_of(key), values_of(value)

    def of_group(index: Index) -> Index:
        n, head, *rest = index
        return (n, head if same(query.shape[1], key.shape[1]) else FloorDiv(head, group), *rest)

    def score(index: Index, product: Any) -> Any:
        scaled = ops.mul(product, factor())
        if attn_mask is None:
            return scaled
        mask = attn_mask.load(_broadcast(attn_mask, index))
        if attn_mask.dtype is torch.bool:
            return ops.where(mask, scaled, ops.constant(-math.inf, within))
        return ops.add(scaled, convert(mask, attn_mask.dtype, within))

    def visible(index: Index) -> Any:
        assert attn_mask is not None
        mask = attn_mask.load(_broadcast(attn_mask, index))
        if attn_mask.dtype is torch.bool:
            return mask
        return ops.ne(convert(mask, attn_mask.dtype, within), ops.constant(-math.inf, within))

    return Attention(
        (*query.shape[:-1], value.shape[-1]),
        (key.shape[-2], query.shape[-1]),
        dtype,
        lambda index, depth: queries((*index, *depth)),
        lambda index, depth: keys(of_group((*index, *depth))),
        score,
        lambda index: values(of_group(index)),
        (lambda index: index[-1] + 1) if is_causal else None,
        call,
        kept,
        None if attn_mask is None else visible,
    )


def values_of(x: Tensor) -> Callable[[Index], Any]:
    """Loads a tensor's elements in the compute dtype."""
    return lambda index: convert(x.load(index), x.dtype, accumulator(x.dtype))


def _factor(query: Tensor, scale: Any) -> Callable[[], Any]:
    """The factor of scores: ``scale``, or 1 / sqrt(depth)."""
    dtype = accumulator(query.dtype)
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
    """The mask's index for element ``index`` of the scores, to whose last dimensions it broadcasts."""
    tail = index[len(index) - len(mask.shape) :]
    return tuple(ZERO if size == 1 else at for at, size in zip(tail, mask.shape, strict=True))


_CUDA = (
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_flash_attention_backward.default,
    aten._scaled_dot_product_efficient_attention_backward.default,
    aten._scaled_dot_product_cudnn_attention_backward.default,
)

ATTENTIONS: dict[torch._ops.OpOverload, Callable[..., None]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: keep_attention,
    torch.ops.smelt.attention_with_dropout.default: keep_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: keep_gradients,
    torch.ops.smelt.attention_with_dropout_backward.default: keep_gradients,
    **{target: _of_cuda(target) for target in _CUDA},
}
"""The calls that are attentions or their gradients → what replaces the last node by the loop functions."""
