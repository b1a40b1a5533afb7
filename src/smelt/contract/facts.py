"""What operators are (random, mutating, viewing), read off their schemas and tags."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten

RAISING = frozenset(
    {
        aten._assert_scalar.default,
        aten._assert_async.default,
        aten._assert_async.msg,
        aten._assert_tensor_metadata.default,
        aten.sym_constrain_range.default,
        aten.sym_constrain_range_for_size.default,
    }
)
"""Operators that are called for the error they may raise."""

_SHARING = frozenset({aten._unsafe_view.default, aten.reshape.default, aten._reshape_alias.default})
"""Operators whose result shares memory with the argument although their schema does not say so."""


@lru_cache(maxsize=4096)
def is_random(target: Any) -> bool:
    """Whether the operator draws from a generator: then it runs exactly once, in order."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


@lru_cache(maxsize=4096)
def is_mutating(target: Any) -> bool:
    """Whether the operator's schema writes to an argument."""
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


@lru_cache(maxsize=4096)
def is_view(target: Any) -> bool:
    """Whether the operator's result is its first argument's memory, looked at differently."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target in _SHARING:
        return True
    returns = target._schema.returns
    return any(each.alias_info is not None and not each.alias_info.is_write for each in returns)


@lru_cache(maxsize=4096)
def returns_nothing(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and not target._schema.returns


def has_effect(node: Node) -> bool:
    """Whether a call does something besides giving a result: writing, drawing numbers, raising."""
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return True
    return target in RAISING or is_mutating(target) or is_random(target) or returns_nothing(target)


def layout(value: Any) -> tuple[Any, ...] | None:
    """Shape, strides, offset and dtype of a strided tensor; sizes as ints or SymPy (no guards added)."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    return (value.dim(), value.dtype, value.device, tuple(number(each) for each in numbers))


def number(size: Any) -> Any:
    """A size as an int, or as SymPy expression where it is symbolic."""
    return size.node.expr if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) else size
