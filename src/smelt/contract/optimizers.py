"""Decompositions of optimizers' operators: ``_foreach_*`` lists and ``_fused_adam(w)``, tensor by tensor.

A list operator becomes one operator for each tensor, as in ATen's slow path
(``aten/src/ATen/native/ForeachOpsKernels.cpp``); the scheduler fuses them. The fused step follows the
formulas of ``aten/src/ATen/native/cpu/FusedAdamKernel.cpp``, which computes float16 and bfloat16 in float32.
(PyTorch has no fake kernels for ``_fused_sgd`` and ``_fused_adagrad``: they cannot be traced.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Table = dict[Any, Callable[..., Any]]
Number = float | int

_BY_NAME: dict[str, Callable[..., Any]] = {
    "copy": aten.copy.default,
    "max": aten.max.default,
    "norm": torch.linalg.vector_norm,
    "zero": torch.zeros_like,
}
"""List operators whose torch function has another name."""

_SCALAR_BY_NAME: dict[str, Callable[..., Any]] = {"maximum": torch.clamp_min, "minimum": torch.clamp_max}
"""List operators with a number as second argument whose torch function has another name: ATen clamps."""


def optimizer_decompositions() -> Table:
    """ATen overload → function, for every functional ``_foreach_*`` overload and fused Adam.

    >>> table = optimizer_decompositions()
    >>> one, two = torch.ones(2), torch.ones(3)
    >>> [each.tolist() for each in table[aten._foreach_add.Scalar]([one, two], 2.0)]
    [[3.0, 3.0], [3.0, 3.0, 3.0]]
    """
    table: Table = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::_foreach_"):
            function = _for_each(schema)
            if function is not None:
                packet = getattr(aten, schema.name.removeprefix("aten::"))
                table[getattr(packet, schema.overload_name or "default")] = function
    table[aten._fused_adam.default] = table[aten._fused_adam.tensor_lr] = partial(fused_adam, decoupled=False)
    table[aten._fused_adamw.default] = table[aten._fused_adamw.tensor_lr] = partial(
        fused_adam, decoupled=True
    )
    return table


def _for_each(schema: Any) -> Callable[..., Any] | None:
    """The list operator as a loop over its lists, or None if there is no such operator on one tensor."""
    if any(arg.alias_info is not None for arg in schema.arguments) or len(schema.returns) != 1:
        return None
    name, overload = schema.name.removeprefix("aten::_foreach_"), schema.overload_name
    function = _BY_NAME.get(name) or getattr(torch, name, None)
    if overload in ("Scalar", "ScalarList"):
        function = _SCALAR_BY_NAME.get(name, function)
    if name in ("addcmul", "addcdiv"):
        if overload == "Tensor":
            return None  # PyTorch cannot trace it: it reads the weights' values
        weighted = torch.addcmul if name == "addcmul" else torch.addcdiv
        return partial(_weighted, weighted)
    if function is None:
        return None
    return partial(_each, function)


def _each(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Tensor]:
    """``function`` on the i-th elements of all lists, for each i; other arguments go to every call."""
    count = max(len(arg) for arg in args if isinstance(arg, (list, tuple)))
    columns = [arg if isinstance(arg, (list, tuple)) else itertools.repeat(arg, count) for arg in args]
    given = {name: value for name, value in kwargs.items() if value is not None}
    return [function(*row, **given) for row in zip(*columns)]


def _weighted(
    function: Callable[..., Tensor],
    self: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    value: Number | Sequence[Number] = 1,
    *,
    scalars: Sequence[Number] | None = None,
) -> list[Tensor]:
    """``addcmul`` or ``addcdiv`` with one weight or a list of weights."""
    weights = value if scalars is None else scalars
    each = weights if isinstance(weights, (list, tuple)) else itertools.repeat(weights, len(self))
    return [function(x, a, b, value=weight) for x, a, b, weight in zip(self, first, second, each)]


# -- fused Adam ------------------------------------------------------------------------------------------


def _wide(x: Tensor) -> Tensor:
    """``x`` in the compute dtype of the fused kernels."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


class _Gradient:
    """A gradient as the fused kernels use it: unscaled, and negated for ``maximize``."""

    def __init__(self, grad: Tensor, scale: Tensor | None, maximize: bool) -> None:
        self.kept = grad if scale is None else (_wide(grad) / scale.to(_wide(grad).dtype)).to(grad.dtype)
        value = _wide(grad) if scale is None else _wide(grad) / scale.to(_wide(grad).dtype)
        self.value = -value if maximize else value


def _unless_found(found: Tensor | None, new: Sequence[Tensor], old: Sequence[Tensor]) -> list[Tensor]:
    """The new values in the old ones' dtypes; the old ones if ``found`` says that a gradient is infinite."""
    cast = [each.to(before.dtype) for each, before in zip(new, old)]
    if found is None:
        return cast
    return [torch.where(found == 1, before, each) for each, before in zip(cast, old)]


def fused_adam(
    self: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    *,
    lr: float | Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    decoupled: bool = False,
) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
    """``aten._fused_adam``, and ``aten._fused_adamw`` (``decoupled`` weight decay)."""
    params, kept, averages, squares, largest = [], [], [], [], []
    for position, param in enumerate(self):
        gradient = _Gradient(grads[position], grad_scale, maximize)
        change, wide = gradient.value, _wide(param)
        step = state_steps[position].double()
        correction = (lr / (1 - beta1**step)).to(wide.dtype)
        root = (1 - beta2**step).sqrt().to(wide.dtype)
        if weight_decay != 0:
            if decoupled:
                wide = wide - wide * (lr * weight_decay)
            else:
                change = change + wide * weight_decay
        average = torch.lerp(_wide(exp_avgs[position]), change, 1 - beta1)
        square = _wide(exp_avg_sqs[position]) * beta2 + change * change * (1 - beta2)
        highest = square
        if amsgrad:
            highest = torch.maximum(_wide(max_exp_avg_sqs[position]), square)
            largest.append(highest)
        params.append(wide - correction * average / (highest.sqrt() / root + eps))
        kept.append(gradient.kept)
        averages.append(average)
        squares.append(square)
    return (
        _unless_found(found_inf, params, self),
        _unless_found(found_inf, kept, grads),
        _unless_found(found_inf, averages, exp_avgs),
        _unless_found(found_inf, squares, exp_avg_sqs),
        _unless_found(found_inf, largest, max_exp_avg_sqs) if largest else list(max_exp_avg_sqs),
    )
