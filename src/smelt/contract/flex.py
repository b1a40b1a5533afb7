"""Selection of the ``flex_attention`` calls that stay whole, because a kernel stores no scores for them."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from smelt.contract.facts import is_view, layout

aten = torch.ops.aten

FEWEST_QUERIES, FEWEST_KEYS, FEWEST_TERMS = 8, 16, 8
"""The least number of queries; with fewer, register tiles would be half empty."""

_LOOK_UPS = (aten.index.Tensor, aten.full.default, aten.scalar_tensor.default, aten._to_copy.default)


def has_kernel(node: Node) -> bool:
    """Whether a call is ``flex_attention`` on enough float32 numbers, with loop functions as bodies."""
    if node.target is not torch.ops.higher_order.flex_attention:
        return False
    query, key, value, score, blocks, scale, *_ = node.args
    operands = [each.meta["val"] for each in (query, key, value)]  # type: ignore[union-attr]
    if any(layout(each) is None or each.dtype is not torch.float32 for each in operands):
        return False
    if not isinstance(scale, (int, float)) or _most(node) > 2:
        return False
    module = node.graph.owning_module
    bodies = [getattr(module, str(each.target), None) for each in (score, blocks[-1])]  # type: ignore[union-attr, index]
    if not all(isinstance(body, GraphModule) and _is_arithmetic(body) for body in bodies):
        return False
    wanted = FEWEST_QUERIES, FEWEST_KEYS, FEWEST_TERMS
    sizes = operands[0].shape[-2], operands[1].shape[-2], operands[0].shape[-1]
    return all(not isinstance(size, int) or size >= least for size, least in zip(sizes, wanted))


def _most(node: Node) -> int:
    """The number of results of a call that are used: the first ones."""
    used = [user.args[1] for user in node.users if user.users]
    return max((place + 1 for place in used if isinstance(place, int)), default=0)


def _is_arithmetic(body: GraphModule) -> bool:
    """Whether a body has only elementwise operators and look-ups: no sums, random numbers or constants."""
    return all(
        node.op in ("placeholder", "output") or (node.op == "call_function" and _is_elementwise(node.target))
        for node in body.graph.nodes
    )


def _is_elementwise(target: Any) -> bool:
    if not isinstance(target, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags:
        return False
    return torch.Tag.pointwise in target.tags or is_view(target) or target in _LOOK_UPS
