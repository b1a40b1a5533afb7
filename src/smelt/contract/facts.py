"""Properties of operators (effects, views, sizes of results), read from their schemas and tags."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from sympy import Symbol
from torch.fx import Graph, Node

from smelt.reporting import DynamicSize
from smelt.runtime.externs import is_collective, is_mutating, is_random
from smelt.symbolic import is_guarded_one

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

REFUSED = "smelt_refused"
"""The ``node.meta`` key of calls that PyTorch is to run in any case; its value is the reason."""

PURE = ("flex_attention", "flex_attention_backward", "associative_scan", "out_dtype")
"""Higher-order operators without effects, whatever their bodies."""

EFFECT = "smelt_effect"
"""The ``node.meta`` key of calls with an effect that their schema does not state."""

_SHARING = frozenset(
    {
        aten._reshape_alias.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.unsafe_chunk.default,
        aten.unsafe_split.Tensor,
        aten.unsafe_split_with_sizes.default,
    }
)
"""Operators whose result shares memory with an argument although their schema does not say so."""


@lru_cache(maxsize=4096)
def is_view(target: Any) -> bool:
    """Whether the operator's result is a view of its first argument's memory."""
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
    """Whether a call has an effect: writes, draws of numbers, exceptions, communication with processes."""
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return target.name() not in PURE
    if node.meta.get(EFFECT):
        return True
    if is_collective(target):
        return True
    return target in RAISING or is_mutating(target) or is_random(target) or returns_nothing(target)


def new_sizes(node: Node) -> dict[Symbol, tuple[Any, ...]]:
    """The data-dependent sizes that a call's result introduces: symbol → its place.

    A place is a key path of ``torch.utils._pytree``: ``(CallMethodKey("size"), SequenceKey(0))``, or ``()``
    if the result is the number itself.
    """
    found: dict[Symbol, tuple[Any, ...]] = {}
    value = node.meta.get("val")
    bindings = node.meta.get("unbacked_bindings") or {}
    environment = environment_of(value) if bindings else None
    for own, path in bindings.items():
        symbol = own if environment is None else environment.replace(own)
        found[symbol if isinstance(symbol, Symbol) else own] = path
    if reads_number(node.target) and isinstance(value, (torch.SymInt, torch.SymFloat)):
        symbol = number(value)
        if isinstance(symbol, Symbol):
            found.setdefault(symbol, ())
    return found


def environment_of(value: Any) -> Any | None:
    """The ShapeEnv of the sizes in a node's metadata; None if all sizes are static."""
    if isinstance(value, (list, tuple)):
        return next((env for env in map(environment_of, value) if env is not None), None)
    sizes: tuple[Any, ...] = (value,)
    if isinstance(value, torch.Tensor):
        if not value._has_symbolic_sizes_strides:
            return None
        strided = value.layout is torch.strided
        sizes = (*value.shape, *((*value.stride(), value.storage_offset()) if strided else ()))
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return next((size.node.shape_env for size in sizes if isinstance(size, symbolic)), None)


def data_sizes(graph: Graph) -> list[DynamicSize]:
    """The data-dependent sizes of a graph, and the call that gives each of them."""
    found = []
    for node in graph.nodes:
        if node.op == "call_function":
            where = node.meta.get("where")
            place = f"what {node.target} gives" + (f" at {where}" if where else "")
            found += [DynamicSize(str(symbol), (place,)) for symbol in new_sizes(node)]
    return found


def reads_number(target: Any) -> bool:
    """Whether an operator returns a number that a tensor holds."""
    return target in (aten._local_scalar_dense.default, aten.item.default)


def layout(value: Any) -> tuple[Any, ...] | None:
    """Shape, strides, offset and dtype of a strided tensor, and its conjugate and negative bits.

    Sizes are ints or SymPy expressions (no guards added).
    """
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    read = (value.dtype, value.is_conj(), value.is_neg())
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    if value._has_symbolic_sizes_strides:
        numbers = tuple([number(each) for each in numbers])
    return (value.dim(), read, value.device, numbers)


def number(size: Any) -> Any:
    """A size as an int, or as a SymPy expression if it is symbolic and no guard makes it 1."""
    if isinstance(size, torch.SymInt) and is_guarded_one(size):
        return 1
    return size.node.expr if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) else size
