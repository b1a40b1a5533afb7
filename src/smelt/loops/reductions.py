"""The definition of each kind of `smelt.loops.ir.REDUCTIONS` on torch tensors, accurate to float64."""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensor = torch.Tensor


MODES: dict[str, str] = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
"""Reduction → the operator that adds an element to it, where there is one (`smelt.nest.ir.Store.mode`)."""


def reduce(kind: str, value: Tensor) -> list[Tensor]:
    """Reduce the last dimension of ``value``; one tensor per output of ``kind``.

    An empty reduction gives the identity: 0, 1, the least (or greatest) of the dtype, False, True.

    >>> reduce("welford", torch.tensor([1.0, 3.0]))
    [tensor(2.), tensor(2.), tensor(2.)]
    """
    return _KINDS[kind](value)


def least(dtype: torch.dtype) -> float | int | bool:
    """The identity of ``max``: no number of the dtype is smaller."""
    if dtype is torch.bool:
        return False
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def greatest(dtype: torch.dtype) -> float | int | bool:
    """The identity of ``min``: no number of the dtype is larger."""
    if dtype is torch.bool:
        return True
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


def identity(kind: str, dtype: torch.dtype) -> float | int | bool:
    """The identity of a reduction, which is the value of an empty one.

    >>> identity("sum", torch.float32), identity("max", torch.int8), identity("min", torch.float64)
    (0.0, -128, inf)
    """
    if kind in ("max", "min"):
        return least(dtype) if kind == "max" else greatest(dtype)
    one = kind in ("prod", "all")
    return one if dtype is torch.bool else float(one) if dtype.is_floating_point else int(one)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else torch.int64


def _sum(value: Tensor) -> list[Tensor]:
    return [value.sum(-1, dtype=_wide(value.dtype)).to(value.dtype)]


def _prod(value: Tensor) -> list[Tensor]:
    return [value.prod(-1, dtype=_wide(value.dtype)).to(value.dtype)]


def _with(value: Tensor, identity: float | int | bool) -> Tensor:
    edge = torch.full((*value.shape[:-1], 1), identity, dtype=value.dtype)
    return torch.cat([value, edge], -1)


def _max(value: Tensor) -> list[Tensor]:
    return [_with(value, least(value.dtype)).amax(-1)]


def _min(value: Tensor) -> list[Tensor]:
    return [_with(value, greatest(value.dtype)).amin(-1)]


def _any(value: Tensor) -> list[Tensor]:
    return [(value != 0).any(-1).to(value.dtype)]


def _all(value: Tensor) -> list[Tensor]:
    return [(value != 0).all(-1).to(value.dtype)]


def _first(value: Tensor, extreme: Tensor) -> list[Tensor]:
    here = (value == extreme) | ((value != value) & (extreme != extreme))
    count = value.shape[-1]
    return [
        torch.where(here, torch.arange(count), count).amin(-1) if count else extreme.squeeze(-1).long() * 0
    ]


def _argmax(value: Tensor) -> list[Tensor]:
    return _first(value, _max(value)[0].unsqueeze(-1))


def _argmin(value: Tensor) -> list[Tensor]:
    return _first(value, _min(value)[0].unsqueeze(-1))


def _xor_sum(value: Tensor) -> list[Tensor]:
    result = torch.zeros(value.shape[:-1], dtype=value.dtype)
    for column in value.unbind(-1):
        result = result ^ column
    return [result]


def _welford(value: Tensor) -> list[Tensor]:
    count = value.shape[-1]
    wide = value.to(torch.float64)
    mean = wide.sum(-1) / max(count, 1)
    squares = (wide - mean.unsqueeze(-1)).square().sum(-1)
    return [part.to(value.dtype) for part in (mean, squares, torch.full_like(mean, count))]


def _online_softmax(value: Tensor) -> list[Tensor]:
    (top,) = _max(value)
    # from the rounded maximum: a consumer subtracts the same number
    total = (value.to(torch.float64) - top.to(torch.float64).unsqueeze(-1)).exp().sum(-1)
    return [top, total.to(value.dtype)]


_KINDS: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "sum": _sum,
    "prod": _prod,
    "max": _max,
    "min": _min,
    "any": _any,
    "all": _all,
    "argmax": _argmax,
    "argmin": _argmin,
    "xor_sum": _xor_sum,
    "welford": _welford,
    "online_softmax": _online_softmax,
}
