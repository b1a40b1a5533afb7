"""ATen calls as relax operators, if relax has an operator with the same semantics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.relax.operators import OPERATORS, OVERLOADS
from smelt.relax.types import TensorStructInfo
from smelt.relax.values import Call, Constant, Expr, ShapeExpr, const

aten = torch.ops.aten
Rule = Callable[..., Any]
RULES: dict[torch._ops.OpOverload, Rule] = {}


def rule(*overloads: torch._ops.OpOverload) -> Callable[[Rule], Rule]:
    """Register a rule: it maps a call's arguments to the relax call, or to None if there is none."""

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(overloads, function))
        return function

    return add


def named(overload: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The relax expression of an ATen call; None if no operator has the same semantics."""
    found = RULES.get(overload)
    if found is not None:
        try:
            return found(*args, **kwargs)
        except TypeError:  # arguments that the rule lacks
            return None
    operator = OVERLOADS.get(overload)
    if operator is None or kwargs or len(args) != len(operator.arguments):
        return None
    given = [_beside(each, args) for each in args]
    return None if None in given else operator(*given)


def _beside(value: Any, others: Sequence[Any]) -> Any:
    """A value of the program; a number becomes the constant that it is next to the call's tensors."""
    if isinstance(value, Expr) or not isinstance(value, (bool, int, float)):
        return value if isinstance(value, Expr) else None
    tensor = next((each for each in others if isinstance(each, Expr)), None)
    info = None if tensor is None else tensor.struct_info
    if not isinstance(info, TensorStructInfo) or info.dtype is None:
        return None
    dtype = info.dtype
    whole = not getattr(torch, dtype).is_floating_point
    if whole and isinstance(value, float):
        return None
    made = const(value, dtype)
    same = made.number == value or dtype in ("float32", "float64")
    return made if same else None


def _op(name: str, *args: Any, **attrs: Any) -> Call:
    return OPERATORS[name](*args, **attrs)


def _rank(x: Any) -> int:
    return int(x.struct_info.ndim)


@rule(aten.permute.default)
def _permute(x: Any, dims: Sequence[int]) -> Any:
    return _op("permute_dims", x, axes=list(dims))


@rule(aten.t.default)
def _t(x: Any) -> Any:
    return _op("permute_dims", x)


@rule(aten.transpose.int)
def _transpose(x: Any, first: int, second: int) -> Any:
    axes = list(range(_rank(x)))
    axes[first], axes[second] = axes[second], axes[first]
    return _op("permute_dims", x, axes=axes)


@rule(aten.view.default, aten.reshape.default, aten._unsafe_view.default)
def _reshape(x: Any, sizes: Sequence[Any]) -> Any:
    return _op("reshape", x, ShapeExpr(sizes))


@rule(aten.mm.default, aten.bmm.default, aten.matmul.default)
def _matmul(x: Any, y: Any) -> Any:
    return _op("matmul", x, y)


@rule(aten.addmm.default)
def _addmm(bias: Any, x: Any, y: Any) -> Any:
    return _op("add", _op("matmul", x, y), bias)


@rule(aten.linear.default)
def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    product = _op("matmul", x, _op("permute_dims", weight))
    return product if bias is None else _op("add", product, bias)


@rule(aten.convolution.default)
def _convolution(
    x: Any,
    weight: Any,
    bias: Any,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    dims = _rank(weight) - 2
    if _rank(x) != dims + 2 or not 1 <= dims <= 3:
        return None
    attrs: dict[str, Any] = {"strides": list(strides), "padding": [*padding, *padding]}
    if transposed:
        attrs["output_padding"] = list(output_padding)
    name = f"nn.conv{dims}d" + ("_transpose" if transposed else "")
    found = _op(name, x, weight, **attrs, dilation=list(dilation), groups=groups)
    if bias is None:
        return found
    return _op("add", found, _op("reshape", bias, ShapeExpr([1, -1, *[1] * dims])))


@rule(aten._softmax.default)
def _softmax(x: Any, dim: int, to_float: bool) -> Any:
    return None if to_float else _op("nn.softmax", x, axis=dim)


@rule(aten._log_softmax.default)
def _log_softmax(x: Any, dim: int, to_float: bool) -> Any:
    return None if to_float else _op("nn.log_softmax", x, axis=dim)


def _reduction(name: str) -> Rule:
    def run(x: Any, dims: Any = None, keepdim: bool = False) -> Any:
        if name == "sum" and not getattr(torch, x.struct_info.dtype).is_floating_point:
            return None
        return _op(name, x, axis=None if not dims else list(dims), keepdims=keepdim)

    return run


RULES[aten.mean.dim] = RULES[aten.mean.default] = _reduction("mean")
RULES[aten.sum.dim_IntList] = RULES[aten.sum.default] = _reduction("sum")
RULES[aten.amax.default] = _reduction("max")
RULES[aten.amin.default] = _reduction("min")


@rule(aten.expand.default)
def _expand(x: Any, sizes: Sequence[Any]) -> Any:
    extra = len(sizes) - _rank(x)
    known = x.struct_info.sizes
    full = [
        known[n - extra] if isinstance(size, int) and size == -1 else size for n, size in enumerate(sizes)
    ]
    return _op("broadcast_to", x, ShapeExpr(full))


@rule(aten.cat.default)
def _cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    return _op("concat", list(tensors), axis=dim)


@rule(aten.unsqueeze.default)
def _unsqueeze(x: Any, dim: int) -> Any:
    return _op("expand_dims", x, axis=[dim])


@rule(aten.squeeze.dims)
def _squeeze(x: Any, dims: Sequence[int]) -> Any:
    sizes = x.struct_info.sizes
    return _op("squeeze", x, axis=list(dims)) if all(sizes[each] == 1 for each in dims) else None


@rule(aten.slice.Tensor)
def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    begin = 0 if start is None else start
    end = x.struct_info.sizes[dim] if end is None else end
    return _op("strided_slice", x, [dim], [begin], [end], [step])


@rule(aten.select.int)
def _select(x: Any, dim: int, index: Any) -> Any:
    return _op("take", x, index, axis=dim) if isinstance(index, int) else None


@rule(aten.gelu.default)
def _gelu(x: Any, approximate: str = "none") -> Any:
    return _op("nn.gelu_tanh" if approximate == "tanh" else "nn.gelu", x)


@rule(aten.leaky_relu.default)
def _leaky_relu(x: Any, slope: float = 0.01) -> Any:
    return _op("nn.leakyrelu", x, alpha=slope)


@rule(aten.softplus.default)
def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return _op("nn.softplus", x, beta=beta, threshold=threshold)


@rule(aten.clamp.default, aten.hardtanh.default)
def _clamp(x: Any, lower: Any = None, upper: Any = None) -> Any:
    if lower is None or upper is None or isinstance(lower, Expr) or isinstance(upper, Expr):
        return None
    return _op("clip", x, lower, upper)


@rule(aten._to_copy.default)
def _to_copy(x: Any, *, dtype: Any = None) -> Any:
    return None if dtype is None else _op("astype", x, dtype=str(dtype).removeprefix("torch."))


@rule(aten.pow.Tensor_Scalar)
def _pow(x: Any, exponent: Any) -> Any:
    value = _beside(exponent, [x])
    return None if value is None else _op("power", x, value)


@rule(aten.div.Tensor)
def _div(x: Any, y: Any) -> Any:
    given = [_beside(each, [x, y]) for each in (x, y)]
    if None in given or not all(getattr(torch, each.dtype).is_floating_point for each in given):
        return None
    return _op("divide", *given)


def _compared(name: str) -> Rule:
    def run(x: Any, value: Any) -> Any:
        made = _beside(value, [x])
        return None if made is None else _op(name, x, made)

    return run


for _short, _name in {
    "eq": "equal",
    "ne": "not_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "lt": "less",
    "le": "less_equal",
}.items():
    RULES[getattr(aten, _short).Scalar] = _compared(_name)


@rule(aten.embedding.default)
def _embedding(weight: Any, indices: Any, padding_idx: int = -1) -> Any:
    return _op("take", weight, indices, axis=0)


@rule(aten.index_select.default)
def _index_select(x: Any, dim: int, index: Any) -> Any:
    return _op("take", x, index, axis=dim) if _rank(index) == 1 else None


@rule(aten.gather.default)
def _gather(x: Any, dim: int, index: Any) -> Any:
    return _op("gather_elements", x, index, axis=dim)


@rule(aten.cumsum.default)
def _cumsum(x: Any, dim: int) -> Any:
    return _op("cumsum", x, axis=dim) if getattr(torch, x.dtype).is_floating_point else None


@rule(aten.argmax.default)
def _argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return _op("argmax", x, axis=dim, keepdims=keepdim)


@rule(aten.argmin.default)
def _argmin(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return _op("argmin", x, axis=dim, keepdims=keepdim)


@rule(aten.tril.default)
def _tril(x: Any, diagonal: int = 0) -> Any:
    return _op("tril", x, diagonal)


@rule(aten.triu.default)
def _triu(x: Any, diagonal: int = 0) -> Any:
    return _op("triu", x, diagonal)


__all__ = ["RULES", "Constant", "named", "rule"]
