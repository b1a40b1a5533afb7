"""Operators that the Torch dialect does not have, decomposed by PyTorch's own decompositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from smelt.contract.facts import environment_of
from smelt.errors import Unsupported

aten = torch.ops.aten

_DECOMPOSED = frozenset(
    {
        aten.upsample_bilinear2d.vec,
        aten.upsample_bilinear2d.default,
        aten.upsample_bicubic2d.vec,
        aten.upsample_bicubic2d.default,
        aten.upsample_trilinear3d.vec,
        aten.upsample_trilinear3d.default,
        aten.nll_loss_forward.default,
        aten.nll_loss2d_forward.default,
    }
)
"""What the dialect has, but none of torch-mlir's pipelines takes."""


def is_decomposed(overload: OpOverload, registered: bool) -> bool:
    """Whether a call is to be decomposed."""
    return (overload in _DECOMPOSED or not registered) and has_decomposition(overload)


def has_decomposition(overload: OpOverload) -> bool:
    """Whether PyTorch can compute an operator from others.

    >>> has_decomposition(torch.ops.aten.addcmul.default), has_decomposition(torch.ops.aten.mm.default)
    (True, False)
    """
    return overload in decomposition_table or _is_composite(overload)


def body_of(node: Node, overload: OpOverload) -> tuple[GraphModule, list[Node]]:
    """A graph of simpler calls that gives what ``node`` gives, flat, and the nodes that are its operands.

    Raises:
        Unsupported: the decomposition holds only for some of the sizes that the program is for.
    """
    values, spec = pytree.tree_flatten((node.args, node.kwargs))
    operands = list(dict.fromkeys(value for value in values if _is_dynamic(value)))
    function: Callable[..., Any] = (
        overload.decompose if _is_composite(overload) else decomposition_table[overload]
    )

    def flat(*given: Any) -> list[Any]:
        known = dict(zip(operands, given))
        filled = [
            known[value] if value in operands else value.meta["val"] if isinstance(value, Node) else value
            for value in values
        ]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return pytree.tree_leaves(function(*args, **kwargs), is_leaf=lambda each: each is None)

    metas = [operand.meta["val"] for operand in operands]
    environment = environment_of(metas)
    guards = len(getattr(environment, "guards", ()))
    with torch.no_grad():
        body = make_fx(flat, tracing_mode="symbolic" if environment is not None else "fake")(*metas)
    if len(getattr(environment, "guards", ())) > guards:
        raise Unsupported("its decomposition holds only for some sizes")
    body.graph.eliminate_dead_code()
    for inner in body.graph.nodes:
        inner.meta["where"] = node.meta.get("where")
    return body, operands


def _is_dynamic(value: Any) -> bool:
    meta = value.meta.get("val") if isinstance(value, Node) else None
    return isinstance(meta, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_composite(overload: OpOverload) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd")
